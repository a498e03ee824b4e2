"""Read-only files behind http:// and https://, such as the dumps of dumps.wikimedia.org."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import requests
import smart_open
import urllib3
from requests.adapters import HTTPAdapter

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
        raise StorageError(f"{uri}: {operation}: HTTP status {status}") from error
    except (requests.RequestException, OSError, ValueError) as error:
        raise StorageError(f"{uri}: {operation}: {retries.one_line(error)}") from error


def _open(uri: str, position: int = 0) -> IO[bytes]:
    session = requests.Session()
    adapter = HTTPAdapter(max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    # The bytes as they are stored: decompression belongs to the reader that knows the format.
    options: dict[str, Any] = {"session": session, "timeout": TIMEOUT_SECONDS}
    file = smart_open.open(uri, "rb", compression="disable", transport_params=options)
    if position:
        file.seek(position)
    return cast("IO[bytes]", file)


def _retrying_open(uri: str, position: int = 0) -> IO[bytes]:
    with _errors(uri, "read"):
        return retries.call(lambda: _open(uri, position), transient=is_transient, what=f"{uri}: read")


def size(uri: str) -> int:
    """The size in bytes, by the server's Content-Length."""
    with _retrying_open(uri) as file, _errors(uri, "size"):
        return file.seek(0, 2)


def read_range(uri: str, start: int, length: int) -> bytes:
    """``length`` bytes from ``start``, fewer at the end."""
    if length <= 0:
        return b""

    def read() -> bytes:
        with _open(uri, start) as file:
            return file.read(length)

    with _errors(uri, "read"):
        return retries.call(read, transient=is_transient, what=f"{uri}: read")


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file; every read is a range request."""
    return ranged.RangedFile(lambda start, length: read_range(uri, start, length), size(uri), uri)


def open_stream(uri: str) -> ranged.ResumingStream:
    """A forward stream that survives broken connections."""
    return ranged.ResumingStream(lambda position: _retrying_open(uri, position), is_transient, uri)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with open_stream(uri) as stream, _errors(uri, "read"):
        return stream.readall() or b""


def download_file(uri: str, local: Path) -> None:
    """Downloads the file to ``local``."""
    with open_stream(uri) as stream, _errors(uri, "download"), local.open("wb") as target:
        shutil.copyfileobj(cast("IO[bytes]", stream), target, 1 << 20)
