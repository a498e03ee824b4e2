"""Downloads one file into a partial file that later calls continue, and checks its hash."""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import requests

from bertmill.fetching.dumps import RemoteFile
from cluster.storage import http, retries
from schemas.errors import StorageError

_CHUNK_BYTES = 1 << 20
_LONGEST_VERSION = 1000
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class HashMismatchError(Exception):
    """The download is complete, but its hash differs from the published one."""


class DownloadStoppedError(Exception):
    """The caller requested a stop. The next call continues the partial file."""


def remote_size(url: str) -> int:
    """The size in bytes, or 0 when the server does not report it."""

    def send() -> int:
        with http.request(url, {}, method="HEAD") as response:
            length = response.headers.get("Content-Length", "")
            return int(length) if length.isdecimal() else 0

    return http.call(url, "size", send)


class Watcher(Protocol):
    """Counts the bytes of downloads."""

    def resume(self, size: int) -> None:
        """An earlier run has downloaded ``size`` bytes."""

    def advance(self, size: int) -> None:
        """``size`` bytes were received (negative when a download restarts)."""


def download(file: RemoteFile, part: Path, watcher: Watcher, stopped: Callable[[], bool]) -> None:
    """Downloads ``file`` to ``part``, from where an earlier call stopped, and checks the hash.

    The file ``part`` with the suffix .version names the version on the server that ``part`` belongs to (its
    ETag or date). A part of another version starts again. Raises StorageError when the server does not answer
    within the retry budget, or when another process writes the part, FileNotFoundError when the server does
    not have the file, HashMismatchError after it has removed the part, DownloadStoppedError when
    ``stopped()``.
    """
    with _locked(part, file.url) as target, http.request_errors(file.url, "download"):
        watcher.resume(target.tell())
        attempts = retries.Attempts(f"{file.url}: download")
        complete = False
        while not complete:
            before = target.tell()
            try:
                for size in _transfer(file.url, target, _version_file(part)):
                    watcher.advance(size)
                    _stop_if(stopped(), file.url)
                complete = True
            except Exception as error:
                if not http.is_transient(error):
                    raise
                if target.tell() > before:
                    attempts.succeeded()
                attempts.failed(error, http.retry_after(error))
        os.fsync(target.fileno())
        _check(file, part, watcher)
    _version_file(part).unlink(missing_ok=True)


def _stop_if(stopped: bool, url: str) -> None:
    if stopped:
        raise DownloadStoppedError(url)


def remove_part(part: Path) -> None:
    """Removes a partial file and its .version file."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


@contextmanager
def _locked(part: Path, url: str) -> Iterator[BinaryIO]:
    """The partial file, open for appending, for this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as target:
            try:
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(f"{part}: another process is downloading {url} to this file") from error
            yield target
    except FileNotFoundError:  # on the server
        raise
    except OSError as error:
        raise StorageError(f"{part}: write: {error.strerror or error}") from error


def _check(file: RemoteFile, part: Path, watcher: Watcher) -> None:
    with part.open("rb") as written:
        digest = hashlib.file_digest(written, file.algorithm).hexdigest()
    if digest != file.digest:
        watcher.advance(-part.stat().st_size)
        remove_part(part)
        raise HashMismatchError(
            f"{file.url}: the {file.algorithm} is {digest}, but {file.digest} is published"
        )


def _transfer(url: str, target: BinaryIO, version_file: Path) -> Iterator[int]:
    """Appends the missing bytes. Yields the size of each piece, negative when the download restarts."""
    start = target.tell()
    version = _stored_version(version_file)
    headers = {"Range": f"bytes={start}-", "If-Range": version} if start and version else {}
    try:
        response = http.request(url, headers)
    except requests.HTTPError as error:
        if error.response is None or error.response.status_code != 416 or not start:
            raise
        if _range_of(error.response)[1] == start:
            return
        yield -_restart(target)
        raise retries.HalfAnswerError(f"{url}: the file ends before byte {start}") from error
    with response:
        if response.status_code != 206:
            yield -_restart(target)
            version_file.write_text(_version(response), encoding="utf-8")
        elif (received_from := _range_of(response)[0]) != start:
            # A server that handles a range wrongly may do so every time, so the next request has no range.
            yield -_restart(target)
            raise retries.HalfAnswerError(
                f"{url}: requested bytes from {start}, got bytes from {received_from}"
            )
        while data := response.raw.read(_CHUNK_BYTES, decode_content=False):
            target.write(data)
            target.flush()
            yield len(data)


def _stored_version(version_file: Path) -> str:
    """What If-Range may name, or "" without a version that a header can hold, such as a damaged one."""
    if not version_file.is_file():
        return ""
    version = version_file.read_bytes()[: _LONGEST_VERSION + 1].decode("latin-1")
    fits = len(version) <= _LONGEST_VERSION and version.isascii() and version.isprintable()
    return version if fits else ""


def _restart(target: BinaryIO) -> int:
    """Empties the file and returns its old size."""
    size = target.tell()
    target.truncate(0)
    target.seek(0)
    return size


def _range_of(response: requests.Response) -> tuple[int | None, int | None]:
    """First byte and total size of the response's Content-Range, or None for missing ones."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    return (int(match[1]) if match[1] else None), (int(match[2]) if match[2] != "*" else None)


def _version(response: requests.Response) -> str:
    """What If-Range accepts: a strong ETag or the date, or "" when the server gives neither."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
