"""Read-only files behind http:// and https://, such as the dumps of dumps.wikimedia.org.

Not smart-open: its seek costs a second request, and after a broken connection it may go on in another
version of the file. Every request here after the first names the version that was opened.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

import requests
import urllib3

from cluster import ranged, retries
from schemas.errors import StorageError

TIMEOUT_SECONDS = 60.0
_RETRIED = (429, 500, 502, 503, 504)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in _RETRIED
    return isinstance(
        error,
        requests.ConnectionError
        | requests.Timeout
        | requests.exceptions.ChunkedEncodingError
        | urllib3.exceptions.HTTPError
        | retries.HalfAnswerError
        | ConnectionError
        | TimeoutError,
    )


@contextmanager
def _errors(uri: str, operation: str) -> Iterator[None]:
    try:
        yield
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (404, 410):
            raise FileNotFoundError(uri) from error
        if status == 412:
            raise StorageError(f"{uri}: {operation}: the file changed while it was read") from error
        raise StorageError(f"{uri}: {operation}: HTTP status {status}") from error
    except requests.RequestException as error:
        raise StorageError(f"{uri}: {operation}: {retries.one_line(error)}") from error


@lru_cache(maxsize=4)
def _session(_process: int) -> requests.Session:
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=32))
    session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=32))
    return session


def _get(uri: str, headers: dict[str, str]) -> requests.Response:
    """The answer, its body not read yet. Raises requests.RequestException, HTTPError from status 400."""
    # The bytes as they are stored: decompression belongs to the reader that knows the format.
    wanted = {"Accept-Encoding": "identity", **headers}
    answer = _session(os.getpid()).get(uri, headers=wanted, stream=True, timeout=TIMEOUT_SECONDS)
    try:
        answer.raise_for_status()
    except requests.HTTPError:
        answer.close()
        raise
    return answer


def _same_version(answer: requests.Response) -> dict[str, str]:
    """Headers that make a later request fail with 412 when the file has changed since ``answer``."""
    tag = answer.headers.get("ETag", "")
    if tag.startswith('"'):  # a weak one, W/"...", must not be used for ranges
        return {"If-Match": tag}
    date = answer.headers.get("Last-Modified")
    return {"If-Unmodified-Since": date} if date else {}


def _open(uri: str) -> tuple[int, dict[str, str]]:
    """Size and version headers of the file. Raises StorageError if the server gives no size."""

    def ask() -> tuple[int, dict[str, str]]:
        with _get(uri, {}) as answer:
            length = answer.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise StorageError(f"{uri}: size: the server does not say it")
            return int(length), _same_version(answer)

    with _errors(uri, "open"):
        return retries.call(ask, transient=is_transient, what=f"{uri}: open")


def size(uri: str) -> int:
    """The size in bytes, by the server's Content-Length."""
    return _open(uri)[0]


def read_range(uri: str, start: int, length: int, version: dict[str, str] | None = None) -> bytes:
    """``length`` bytes from ``start``, fewer at the end. Raises StorageError if the server has no ranges."""
    if length <= 0:
        return b""
    headers = {"Range": f"bytes={start}-{start + length - 1}", **(version or {})}

    def read() -> bytes:
        try:
            answer = _get(uri, headers)
        except requests.HTTPError as error:
            if error.response is not None and error.response.status_code == 416:  # past the end
                return b""
            raise
        with answer:
            if answer.status_code != 206 and start:
                raise StorageError(f"{uri}: read: the server does not answer range requests")
            data = cast("bytes", _read(answer, length))
            ranged.check_range(answer.headers.get("Content-Range"), start, length, len(data), uri)
            return data

    with _errors(uri, "read"):
        return retries.call(read, transient=is_transient, what=f"{uri}: read")


def _read(answer: requests.Response, length: int) -> Any:
    return answer.raw.read(length, decode_content=False)


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file over one version; every read is a range request."""
    total, version = _open(uri)
    return ranged.RangedFile(lambda start, length: read_range(uri, start, length, version), total, uri)


def open_stream(uri: str) -> ranged.ResumingStream:
    """A forward stream over one version that survives broken connections."""
    version: dict[str, str] = {}

    def open_at(position: int) -> IO[bytes]:
        headers = {"Range": f"bytes={position}-", **version} if position else {}

        def ask() -> requests.Response:
            answer = _get(uri, headers)
            if position and answer.status_code != 206:
                answer.close()
                raise StorageError(f"{uri}: read: the server cannot resume at byte {position}")
            ranged.check_range(answer.headers.get("Content-Range"), position, None, 0, uri)
            return answer

        with _errors(uri, "read"):
            answer = retries.call(ask, transient=is_transient, what=f"{uri}: read")
        if not position:
            version.update(_same_version(answer))
        return cast("IO[bytes]", _Body(answer))

    return ranged.ResumingStream(open_at, is_transient, uri)


class _Body:
    """The body of an answer as a file object; a body that ends early raises."""

    def __init__(self, answer: requests.Response) -> None:
        self._answer = answer

    def read(self, length: int) -> bytes:
        return cast("bytes", _read(self._answer, length))

    def close(self) -> None:
        self._answer.close()


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with open_stream(uri) as stream:
        return stream.readall() or b""


def download_file(uri: str, local: Path) -> None:
    """Downloads the file to ``local``."""
    with open_stream(uri) as stream, local.open("wb") as target:
        shutil.copyfileobj(cast("IO[bytes]", stream), target, 1 << 20)
