"""Read-only files in every other storage that smart-open supports: sftp, azure, ftp, s3a ...

Sources may be stored there. Reads seek, because otherwise each work unit would read its files from the start.
So a transport that cannot seek (hdfs, webhdfs) is an error that names it.
"""

import errno
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from smart_open import open as smart_open
from smart_open import transport

from cluster.storage import ranged, retries
from schemas.errors import StorageError
from schemas.redaction import redact

# Transport without an installed library -> the reason.
_UNAVAILABLE = cast("dict[str, str]", getattr(transport, "_ERRORS", {}))


def is_supported(scheme: str) -> bool:
    """Whether smart-open has a transport of this name, installed or not."""
    return scheme in transport.SUPPORTED_SCHEMES or scheme in _UNAVAILABLE


def is_transient(error: BaseException) -> bool:
    """Whether the same read may succeed later."""
    return isinstance(error, ConnectionError | TimeoutError | EOFError)


def _is_missing(error: BaseException | None) -> bool:
    """Whether the error, or one of its causes, means that the file does not exist."""
    while error is not None:
        answer = getattr(error, "response", None)
        fields = answer.get("Error", {}) if isinstance(answer, dict) else {}
        codes = (
            fields.get("Code"),
            getattr(error, "status_code", None),
            getattr(answer, "status_code", None),
        )
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", None) == errno.ENOENT:
            return True
        # S3 and HTTP give a code, FTP a reply that starts with one.
        if any(str(code) in ("404", "NoSuchKey", "NoSuchBucket") for code in codes):
            return True
        if str(error).startswith("550 "):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _errors(uri: str, operation: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if is_transient(error):
            raise
        if _is_missing(error):
            raise FileNotFoundError(redact(uri)) from error
        raise StorageError(f"{uri}: {operation}: {retries.one_line(error)}") from error


def _open(uri: str) -> IO[bytes]:
    """The file at its start. Raises StorageError if it cannot seek."""
    with _errors(uri, "open"):
        file = cast("IO[bytes]", smart_open(uri, "rb", compression="disable"))
        if not file.seekable():
            file.close()
            name = uri.partition(":")[0]
            raise StorageError(
                f"{uri}: {name}:// cannot seek, so it cannot be read by range; "
                "copy the file to a disk or an object store"
            )
        return file


class _Reopening:
    """A seekable file, read by range, that reopens broken connections."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._file: IO[bytes] | None = None

    def size(self) -> int:
        """The size in bytes."""
        return cast("int", self._call(lambda file: file.seek(0, io.SEEK_END), "size"))

    def read(self, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``, fewer at the end."""

        def read(file: IO[bytes]) -> bytes:
            file.seek(start)
            parts: list[bytes] = []
            left = length
            while left and (part := file.read(left)):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

        return cast("bytes", self._call(read, "read"))

    def close(self) -> None:
        """Closes the connection."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _call(self, action: Any, operation: str) -> Any:
        def attempt() -> Any:
            try:
                if self._file is None:
                    self._file = _open(self._uri)
                return action(self._file)
            except Exception:
                self._file = None
                raise

        with _errors(self._uri, operation):
            return retries.call(attempt, transient=is_transient, what=f"{self._uri}: {operation}")


class _File(ranged.RangedFile):
    """A ranged file that closes its connection."""

    def __init__(self, uri: str) -> None:
        self._source = _Reopening(uri)
        super().__init__(self._source.read, self._source.size(), uri)

    def close(self) -> None:
        """Closes the connection."""
        self._source.close()
        super().close()


def size(uri: str) -> int:
    """The size in bytes."""
    with _File(uri) as file:
        return file.seek(0, io.SEEK_END)


def read_range(uri: str, start: int, length: int) -> bytes:
    """``length`` bytes from ``start``, fewer at the end."""
    if length <= 0:
        return b""
    source = _Reopening(uri)
    try:
        # Some transports refuse to seek past the end.
        return source.read(start, length) if start < source.size() else b""
    finally:
        source.close()


def open_raw(uri: str) -> ranged.RangedFile:
    """An unbuffered seekable file."""
    return _File(uri)


def open_stream(uri: str) -> ranged.RangedFile:
    """A forward stream that resumes a broken connection."""
    return _File(uri)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with _File(uri) as file:
        return file.readall() or b""


def download_file(uri: str, local: Path) -> None:
    """Downloads the file to ``local``."""
    with io.BufferedReader(_File(uri), ranged.BUFFER_BYTES) as source, local.open("wb") as target:
        shutil.copyfileobj(source, target, ranged.BUFFER_BYTES)
