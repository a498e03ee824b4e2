"""Files on a local or shared POSIX file system, with the operations of an object store."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from cluster.storage.entries import FileInfo
from schemas.errors import StorageError, StorageFullError

_TEMPORARY = ".part-"
"""Marks a file that is being written. Listings omit it, as an object store would."""


def path_of(uri: str) -> Path:
    """The local path of a plain path or a file:// URI, which is not percent-decoded.

    Raises StorageError for a name that no file can have.
    """
    if "\0" in uri:
        raise StorageError(f"{uri!r}: a file name cannot contain a NUL byte")
    return Path(uri.removeprefix("file://"))


_WRITING = ("write", "create")
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def _errors(uri: str, operation: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if operation in _WRITING:
            raise StorageError(
                f"{uri}: {operation}: the folder cannot be created or has been deleted"
            ) from error
        raise FileNotFoundError(uri) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        kind = StorageFullError if is_full(error) else StorageError
        raise kind(f"{uri}: {operation}: {reason}") from error


def is_full(error: BaseException) -> bool:
    """Whether a write failed because the disk is full. Non-Python libraries keep only the text of the error.

    >>> is_full(OSError(28, "No space left on device")), is_full(RuntimeError("Disk quota exceeded (122)"))
    (True, True)
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return any(os.strerror(number) in str(error) for number in _FULL)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    with _errors(uri, "read"):
        return path_of(uri).read_bytes()


def read_range(uri: str, start: int, length: int) -> bytes:
    """``length`` bytes from ``start``, fewer at the end of the file."""
    with _errors(uri, "read"), path_of(uri).open("rb") as file:
        file.seek(start)
        return file.read(length)


def size(uri: str) -> int:
    """The size in bytes. A folder is not a file and raises FileNotFoundError."""
    path = path_of(uri)
    with _errors(uri, "size"):
        status = path.stat()
    if not path.is_file():
        raise FileNotFoundError(uri)
    return status.st_size


def list_files(uri: str) -> Iterator[FileInfo]:
    """All finished files below the folder, unordered. None if the folder does not exist."""
    root = path_of(uri)
    prefix = uri.rstrip("/")

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    with _errors(uri, "list"):
        for folder, _, names in os.walk(root, onerror=fail):
            relative = Path(folder).relative_to(root).as_posix()
            for name in names:
                info = None if _TEMPORARY in name else _info(folder, relative, name, prefix)
                if info is not None:
                    yield info


def _info(folder: str, relative: str, name: str, prefix: str) -> FileInfo | None:
    try:
        status = (Path(folder) / name).stat()
    except FileNotFoundError:  # deleted since it was listed, or a dangling link
        return None
    inner = name if relative == "." else f"{relative}/{name}"
    return FileInfo(f"{prefix}/{inner}", status.st_size, status.st_mtime)


def put_bytes(uri: str, data: bytes) -> None:
    """Writes the file atomically: temporary name, fsync, rename."""
    path = path_of(uri)
    with _errors(uri, "write"), _temporary(path) as temporary:
        _write_synced(temporary, data)
        temporary.replace(path)
        _sync_folder(path.parent)


def put_if_absent(uri: str, data: bytes) -> bool:
    """Creates the file atomically unless it exists. True if this call created it.

    A hard link is the only atomic "create with content or fail" that POSIX and NFS share.
    """
    path = path_of(uri)
    with _errors(uri, "create"), _temporary(path) as temporary:
        _write_synced(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP):
                raise StorageError(f"{uri}: create: this file system has no hard links") from error
            raise
        _sync_folder(path.parent)
    return True


def upload_file(local: Path, uri: str) -> None:
    """Copies a local file to ``uri`` atomically."""
    path = path_of(uri)
    with _errors(str(local), "read"):
        source = local.open("rb")
    with source, _errors(uri, "write"), _temporary(path) as temporary:
        with temporary.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)


def delete(uri: str) -> None:
    """Deletes the file. A missing file is not an error."""
    with _errors(uri, "delete"):
        path_of(uri).unlink(missing_ok=True)


def delete_prefix(uri: str) -> None:
    """Deletes the folder and its content. A missing folder is not an error."""
    path = path_of(uri)
    if len(path.resolve().parts) < 3:
        raise StorageError(f"{uri}: refusing to delete everything below the root")
    with _errors(uri, "delete"):
        if path.is_dir():
            # Another process may be deleting the same folder.
            shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(_function: object, _path: str, problem: tuple[object, BaseException, object]) -> None:
    if not isinstance(problem[1], FileNotFoundError):
        raise problem[1]


def abort_uploads(uri: str, older_than: float) -> int:
    """Removes files below the folder that killed processes left unfinished. Returns their number.

    Removes only files last written before ``older_than`` (seconds since 1970).
    """
    removed = 0
    with _errors(uri, "remove unfinished files"):
        for folder, _, names in os.walk(path_of(uri)):
            for path in (Path(folder) / name for name in names if name.startswith(_TEMPORARY)):
                # Its writer may finish it now, or another process may remove it.
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < older_than:
                        path.unlink()
                        removed += 1
    return removed


def open_read(uri: str) -> IO[bytes]:
    """The open file."""
    with _errors(uri, "open"):
        return path_of(uri).open("rb")


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    if path.exists() and not path.is_file():
        # A rename would replace a device, such as /dev/stdout, with a file.
        raise StorageError(f"{path}: write: exists and is not a regular file; choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{path.name[:100]}-{secrets.token_hex(6)}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes a rename or a link in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
