"""Read-only files at http:// and https://, such as the dumps of dumps.wikimedia.org.

This module does not use smart-open, whose seek costs a second request and which may continue in another
version of the file after a broken connection. Here every request after the first names the opened version.

The user agent names this program and, from the environment variable BERTMILL_CONTACT, a contact, as Wikimedia
requires (https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy). Requests wait
as long as the server's Retry-After header says.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import requests
import urllib3
from urllib3.util import Retry

from cluster.storage import ranged, retries
from schemas.errors import StorageError
from schemas.redaction import redact
from schemas.versions import CODE_VERSION

CONTACT_VARIABLE = "BERTMILL_CONTACT"
TIMEOUT_SECONDS = 60.0
_RETRIED = (429, 500, 502, 503, 504)

Result = TypeVar("Result")


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


def retry_after(error: BaseException) -> float:
    """The seconds to wait that a failed response requests (Retry-After, in seconds or as a date), or 0."""
    response = error.response if isinstance(error, requests.HTTPError) else None
    value = response.headers.get("Retry-After", "") if response is not None else ""
    try:
        return Retry().parse_retry_after(value) if value else 0.0
    except urllib3.exceptions.InvalidHeader:
        return 0.0


def user_agent() -> str:
    """The name of this program with the contact from the environment, for the servers' logs."""
    contact = os.environ.get(CONTACT_VARIABLE, "").strip()
    return f"bertmill/{CODE_VERSION}" + (f" ({contact})" if contact else "")


@contextmanager
def request_errors(uri: str, operation: str) -> Iterator[None]:
    """Turns errors of requests into FileNotFoundError or a one-line StorageError."""
    try:
        yield
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (404, 410):
            raise FileNotFoundError(redact(uri)) from error
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


def request(uri: str, headers: dict[str, str], method: str = "GET") -> requests.Response:
    """The response with an unread body. Raises requests.RequestException, which HTTPError (400 and up) is."""
    # Request the stored bytes, because the reader of the format decompresses them.
    all_headers = {"Accept-Encoding": "identity", "User-Agent": user_agent(), **headers}
    response = _session(os.getpid()).request(
        method, uri, headers=all_headers, stream=True, timeout=TIMEOUT_SECONDS, allow_redirects=True
    )
    try:
        response.raise_for_status()
    except requests.HTTPError:
        response.close()
        raise
    return response


def call(uri: str, operation: str, action: Callable[[], Result]) -> Result:
    """The result of ``action``, which makes requests, with retries and one-line errors."""
    with request_errors(uri, operation):
        return retries.call(
            action, transient=is_transient, what=f"{uri}: {operation}", retry_after=retry_after
        )


def _same_version(response: requests.Response) -> dict[str, str]:
    """Headers that make a later request fail with 412 if the file has changed since this response."""
    tag = response.headers.get("ETag", "")
    if tag.startswith('"'):  # a weak tag, W/"...", is not valid for ranges
        return {"If-Match": tag}
    date = response.headers.get("Last-Modified")
    return {"If-Unmodified-Since": date} if date else {}


def _open(uri: str) -> tuple[int, dict[str, str]]:
    """Size and version headers of the file. Raises StorageError if the server gives no size."""

    def send() -> tuple[int, dict[str, str]]:
        with request(uri, {}) as response:
            length = response.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise StorageError(f"{uri}: size: the server sends no Content-Length")
            return int(length), _same_version(response)

    return call(uri, "open", send)


def size(uri: str) -> int:
    """The size in bytes, from the server's Content-Length."""
    return _open(uri)[0]


def read_range(uri: str, start: int, length: int, version: dict[str, str] | None = None) -> bytes:
    """``length`` bytes from ``start``, fewer at the end. Raises StorageError if the server ignores ranges."""
    if length <= 0:
        return b""
    headers = {"Range": f"bytes={start}-{start + length - 1}", **(version or {})}

    def read() -> bytes:
        try:
            response = request(uri, headers)
        except requests.HTTPError as error:
            if error.response is not None and error.response.status_code == 416:  # past the end
                return b""
            raise
        with response:
            if response.status_code != 206 and start:
                raise StorageError(f"{uri}: read: the server does not support range requests")
            data = cast("bytes", _read(response, length))
            ranged.check_range(response.headers.get("Content-Range"), start, length, len(data), uri)
            return data

    return call(uri, "read", read)


def _read(response: requests.Response, length: int) -> Any:
    return response.raw.read(length, decode_content=False)


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file over one version. Each read is a range request."""
    total, version = _open(uri)
    return ranged.RangedFile(lambda start, length: read_range(uri, start, length, version), total, uri)


def open_stream(uri: str) -> ranged.ResumingStream:
    """A forward stream over one version that survives broken connections."""
    version: dict[str, str] = {}

    def open_at(position: int) -> IO[bytes]:
        headers = {"Range": f"bytes={position}-", **version} if position else {}

        def send() -> requests.Response:
            response = request(uri, headers)
            if position and response.status_code != 206:
                response.close()
                raise StorageError(f"{uri}: read: the server cannot resume at byte {position}")
            ranged.check_range(response.headers.get("Content-Range"), position, None, 0, uri)
            return response

        response = call(uri, "read", send)
        if not position:
            version.update(_same_version(response))
        return cast("IO[bytes]", _Body(response))

    return ranged.ResumingStream(open_at, is_transient, uri)


class _Body:
    """The body of a response as a file object. Raises if the body ends early."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response

    def read(self, length: int) -> bytes:
        return cast("bytes", _read(self._response, length))

    def close(self) -> None:
        self._response.close()


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with open_stream(uri) as stream:
        return stream.readall() or b""


def download_file(uri: str, local: Path) -> None:
    """Downloads the file to ``local``."""
    with open_stream(uri) as stream, local.open("wb") as target:
        shutil.copyfileobj(cast("IO[bytes]", stream), target, 1 << 20)
