"""Google Cloud Storage, for gs:// URIs. Requires the optional google-cloud-storage.

Uses Google's default credentials. Every read after the first names the generation that was opened, and a
conditional put requires generation 0, which means "no object".
"""

import importlib
import io
import os
import secrets
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import requests

from cluster.storage import ranged, retries
from cluster.storage.entries import FileInfo
from schemas.errors import StorageError

_STREAM_BYTES = 16 << 20
_TIMEOUT_SECONDS = 30.0

# The library's own retries of 120 s would multiply with ours.
_ONCE: dict[str, Any] = {"timeout": _TIMEOUT_SECONDS, "retry": None}

Result = TypeVar("Result")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StorageError("gs:// needs google-cloud-storage: pip install 'bertmill[gs]'") from error


@lru_cache(maxsize=4)
def _new_client(_process: int, _emulator: str | None) -> Any:
    try:
        return _library("google.cloud.storage").Client()
    except _library("google.auth.exceptions").GoogleAuthError as error:
        raise StorageError(f"gs://: no credentials: {retries.one_line(error)}") from error


def client() -> Any:
    """The client of this process."""
    return _new_client(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))


def split(uri: str) -> tuple[str, str]:
    """Bucket and name of a gs:// URI. Raises StorageError without a bucket."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not bucket:
        raise StorageError(f"{uri}: must have the form gs://BUCKET/NAME")
    return bucket, name


def _blob(uri: str) -> Any:
    bucket, name = split(uri)
    return client().bucket(bucket).blob(name)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    api = _library("google.api_core.exceptions")
    auth = _library("google.auth.exceptions")
    if isinstance(error, auth.RefreshError):
        # The metadata server of the machine did not answer.
        return bool(error.retryable) or isinstance(error.__cause__, auth.TransportError)
    return isinstance(
        error,
        api.ServerError
        | api.TooManyRequests
        | api.RetryError
        | auth.TransportError
        | requests.ConnectionError
        | requests.Timeout
        | requests.exceptions.ChunkedEncodingError
        | requests.exceptions.JSONDecodeError
        | retries.HalfAnswerError
        | ConnectionError
        | TimeoutError,
    )


def _call(uri: str, operation: str, action: Callable[[], Result]) -> Result:
    api = _library("google.api_core.exceptions")
    auth = _library("google.auth.exceptions").GoogleAuthError
    try:
        return retries.call(action, transient=is_transient, what=f"{uri}: {operation}")
    except api.NotFound as error:
        if operation in ("write", "create", "upload", "list"):
            raise StorageError(f"{uri}: {operation}: the bucket does not exist") from error
        raise FileNotFoundError(uri) from error
    except (api.Forbidden, api.Unauthorized, auth) as error:
        raise StorageError(f"{uri}: {operation}: access denied: {retries.one_line(error)}") from error
    except api.PreconditionFailed as error:
        raise StorageError(f"{uri}: {operation}: the object changed while it was read") from error
    except (api.GoogleAPIError, requests.RequestException) as error:
        raise StorageError(f"{uri}: {operation}: {retries.one_line(error)}") from error


def _get(uri: str) -> Any:
    """The blob with its metadata. Raises FileNotFoundError."""
    blob = _blob(uri)
    _call(uri, "size", lambda: blob.reload(**_ONCE))
    return blob


def read_bytes(uri: str) -> bytes:
    """The whole object."""
    blob = _blob(uri)
    data: bytes = _call(uri, "read", lambda: blob.download_as_bytes(raw_download=True, **_ONCE))
    return data


def read_range(uri: str, start: int, length: int, generation: int | None = None) -> bytes:
    """``length`` bytes from ``start``, fewer at the end. With ``generation``, only from that version."""
    if length <= 0:
        return b""
    blob = _blob(uri)
    past_the_end = _library("google.api_core.exceptions").RequestRangeNotSatisfiable

    def get() -> bytes:
        try:
            data: bytes = blob.download_as_bytes(
                start=start,
                end=start + length - 1,
                raw_download=True,
                if_generation_match=generation,
                **_ONCE,
            )
        except past_the_end:
            return b""
        if len(data) > length:
            raise retries.HalfAnswerError(f"requested {length} bytes, but the response has {len(data)}")
        return data

    return _call(uri, "read", get)


def size(uri: str) -> int:
    """The size in bytes."""
    return int(_get(uri).size)


def list_files(uri: str) -> Iterator[FileInfo]:
    """All objects below the folder ``uri``."""
    bucket, name = split(uri)
    prefix = f"{name.rstrip('/')}/" if name else ""

    def blobs() -> list[Any]:
        try:
            return list(client().list_blobs(bucket, prefix=prefix, **_ONCE))
        except AttributeError as error:  # the library parses an empty body as a page
            raise retries.HalfAnswerError("the response is not a listing") from error

    for blob in _call(uri, "list", blobs):
        if blob.name.startswith(prefix) and not blob.name.endswith("/"):
            yield FileInfo(f"gs://{bucket}/{blob.name}", int(blob.size), blob.updated.timestamp())


def put_bytes(uri: str, data: bytes) -> None:
    """Writes the object atomically."""
    blob = _blob(uri)
    _call(uri, "write", lambda: blob.upload_from_string(data, **_ONCE))


def put_if_absent(uri: str, data: bytes) -> bool:
    """Creates the object unless it exists. True if this call created it.

    As on S3, a nonce lets a retry recognize its own object.
    """
    blob, nonce = _blob(uri), secrets.token_hex(16)
    blob.metadata = {"created-by": nonce}
    exists = _library("google.api_core.exceptions").PreconditionFailed

    def put() -> bool:
        try:
            blob.upload_from_string(data, if_generation_match=0, **_ONCE)
        except exists:
            return False
        return True

    if _call(uri, "create", put):
        return True
    try:
        return bool((_get(uri).metadata or {}).get("created-by") == nonce)
    except FileNotFoundError:  # another writer deleted it in between
        return False


def upload_file(local: Path, uri: str) -> None:
    """Uploads a file, in chunks if it is large."""
    blob = _blob(uri)
    _call(uri, "upload", lambda: blob.upload_from_filename(str(local), timeout=_TIMEOUT_SECONDS))


def download_file(uri: str, local: Path) -> None:
    """Downloads an object to ``local``."""
    blob = _blob(uri)
    _call(
        uri,
        "download",
        lambda: blob.download_to_filename(str(local), raw_download=True, timeout=_TIMEOUT_SECONDS),
    )


def delete(uri: str) -> None:
    """Deletes the object. A missing object is not an error."""
    blob = _blob(uri)
    missing = _library("google.api_core.exceptions").NotFound

    def remove() -> None:
        try:
            blob.delete(**_ONCE)
        except missing:
            return

    _call(uri, "delete", remove)


def delete_prefix(uri: str) -> None:
    """Deletes all objects below the folder ``uri``."""
    if not split(uri)[1].strip("/"):
        raise StorageError(f"{uri}: refusing to delete a whole bucket")
    for info in list_files(uri):
        delete(info.uri)


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file over one generation of the object."""
    blob = _get(uri)
    generation = int(blob.generation)
    return ranged.RangedFile(
        lambda start, length: read_range(uri, start, length, generation), int(blob.size), uri
    )


def open_stream(uri: str) -> io.BufferedReader:
    """A forward stream over one generation. Reads large ranges and retries each one."""
    return io.BufferedReader(open_raw(uri), _STREAM_BYTES)
