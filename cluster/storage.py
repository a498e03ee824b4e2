"""Every read and write of bertmill, by URI: local paths, file://, s3://, gs:// and, read-only, http(s)://
and whatever else smart-open can seek in (sftp://, azure://, ftp:// ...).

Missing files raise FileNotFoundError(uri) everywhere; all other failures are a StorageError that names
the URI and the operation, after retries where a retry can help. A write is seen whole or not at all.
"""

import fnmatch
import glob
import io
import logging
import posixpath
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cluster import gcs, local_files, ranged, s3, transports, web
from cluster.files import FileInfo
from schemas.errors import StorageError

log = logging.getLogger(__name__)

_STALE_SECONDS = 3600.0
"""The clocks of store and host may differ, and another job may be writing younger files."""

__all__ = [
    "FileInfo",
    "abort_uploads",
    "delete",
    "delete_prefix",
    "download_file",
    "end_stale_uploads",
    "exists",
    "expand_glob",
    "join",
    "list_files",
    "open_read",
    "open_stream",
    "parquet_file",
    "put_bytes",
    "put_if_absent",
    "read_bytes",
    "read_range",
    "scheme",
    "size",
    "upload_file",
]

_BACKENDS: dict[str, ModuleType] = {
    "file": local_files,
    "s3": s3,
    "gs": gcs,
    "http": web,
    "https": web,
}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_MAGIC = re.compile(r"[*?\[]")

Result = TypeVar("Result")


def scheme(uri: str) -> str:
    """The scheme in small letters; ``file`` for a plain path."""
    match = _SCHEME.match(uri)
    return match.group(1).lower() if match else "file"


def join(uri: str, *parts: str) -> str:
    """``uri/part/part``. Raises StorageError for a part that would leave the folder.

    Names read from manifests and checkpoints come through here, so ``..``, absolute paths and empty
    names are refused, whoever wrote them.
    """
    for part in parts:
        pieces = part.split("/")
        if any(piece in ("", ".", "..") for piece in pieces) or "\\" in part or "\0" in part:
            raise StorageError(f"{uri}: {part!r} is not a name inside this folder")
    base = uri if uri.endswith("://") else uri.rstrip("/") or "/"
    return posixpath.join(base, *parts)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    return cast("bytes", _backend(uri, "read_bytes")(uri))


def read_range(uri: str, start: int, length: int) -> bytes:
    """``length`` bytes from byte ``start``; fewer, or none, past the end."""
    return cast("bytes", _backend(uri, "read_range")(uri, start, length))


def size(uri: str) -> int:
    """The size in bytes."""
    return cast("int", _backend(uri, "size")(uri))


def exists(uri: str) -> bool:
    """Whether the file exists; a folder is not a file."""
    try:
        size(uri)
    except FileNotFoundError:
        return False
    return True


def list_files(prefix_uri: str) -> list[FileInfo]:
    """Every file below the folder, at any depth, sorted by URI; [] if there is none."""
    return sorted(_backend(prefix_uri, "list_files")(prefix_uri))


def expand_glob(pattern: str) -> list[str]:
    """The files that match, sorted. ``*``, ``?`` and ``[...]`` stay inside a name, ``**`` crosses folders.

    A pattern without them is the file itself, or [] if it does not exist.
    """
    if scheme(pattern) in ("http", "https") or not _MAGIC.search(pattern):
        return [pattern] if exists(pattern) else []
    if scheme(pattern) == "file":
        prefix = "file://" if pattern.startswith("file://") else ""
        names = glob.glob(pattern.removeprefix(prefix), recursive=True)  # noqa: PTH207 - absolute patterns
        return sorted(prefix + name for name in names if Path(name).is_file())
    folder = _MAGIC.split(pattern, maxsplit=1)[0].rpartition("/")[0]
    matches = _glob_expression(pattern)
    return [info.uri for info in list_files(folder) if matches.fullmatch(info.uri)]


def put_bytes(uri: str, data: bytes) -> None:
    """Writes ``data``, replacing what was there; a reader sees the old file or the new one."""
    _backend(uri, "put_bytes")(uri, data)


def put_if_absent(uri: str, data: bytes) -> bool:
    """Creates the file unless it exists; of many concurrent calls exactly one returns True."""
    return cast("bool", _backend(uri, "put_if_absent")(uri, data))


def upload_file(local: str | Path, uri: str) -> None:
    """Copies a local file to ``uri``, visible only when complete."""
    if not Path(local).is_file():
        raise FileNotFoundError(str(local))
    _backend(uri, "upload_file")(Path(local), uri)


def download_file(uri: str, local: str | Path) -> None:
    """Copies ``uri`` to a local file, visible only when complete; the folder is made."""
    target = Path(local)
    temporary = target.with_name(f".part-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if scheme(uri) == "file":
            with open_read(uri) as source, temporary.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        else:
            _backend(uri, "download_file")(uri, temporary)
        temporary.replace(target)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{uri}: download to {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def delete(uri: str) -> None:
    """Deletes the file; one that is not there is no error."""
    _backend(uri, "delete")(uri)


def delete_prefix(uri: str) -> None:
    """Deletes the folder and everything below it. Raises StorageError for a whole bucket or root."""
    _backend(uri, "delete_prefix")(uri)


def abort_uploads(uri: str, older_than: float) -> int:
    """Ends uploads below the folder that a killed process left unfinished; returns their number.

    ``older_than``: only those begun before this time, on local storage: last written to before it
    (seconds since 1970). Stores without a list of them end them by themselves.
    """
    if scheme(uri) == "file":
        return local_files.abort_uploads(uri, older_than)
    return s3.abort_uploads(uri, older_than) if scheme(uri) == "s3" else 0


def end_stale_uploads(uri: str) -> None:
    """`abort_uploads` for those of an hour ago, which are nobody's any more, and says so in the log.

    A store that refuses is no reason to stop: a key may be allowed to write and not to list uploads.
    """
    try:
        ended = abort_uploads(uri, time.time() - _STALE_SECONDS)
    except StorageError as error:
        log.warning("%s: what killed processes had begun to write stays for now: %s", uri, error)
        return
    if ended:
        log.warning("%s: removed %d files that killed processes had begun to write", uri, ended)


def open_read(uri: str) -> BinaryIO:
    """A seekable, buffered binary file that reads remote storage by range."""
    if scheme(uri) == "file":
        return cast("BinaryIO", local_files.open_read(uri))
    raw = cast("io.RawIOBase", _backend(uri, "open_raw")(uri))
    return cast("BinaryIO", io.BufferedReader(raw, ranged.BUFFER_BYTES))


def open_stream(uri: str) -> IO[bytes]:
    """A forward binary stream for one long pass; broken connections are resumed."""
    if scheme(uri) == "file":
        return local_files.open_read(uri)
    raw = cast("io.RawIOBase", _backend(uri, "open_stream")(uri))
    return cast("IO[bytes]", io.BufferedReader(raw, ranged.BUFFER_BYTES))


def parquet_file(uri: str) -> pq.ParquetFile:
    """The Parquet file behind ``uri``; remote ones are read by the ranges that Parquet plans.

    Raises StorageError if it is not a Parquet file, for instance a truncated one.
    """
    if scheme(uri) == "file":
        source: Any = local_files.open_read(uri)
    else:
        source = pa.PythonFile(_backend(uri, "open_raw")(uri), mode="r")
    try:
        return pq.ParquetFile(source, pre_buffer=True)
    except pa.ArrowInvalid as error:
        source.close()
        raise StorageError(f"{uri}: read as Parquet: {' '.join(str(error).split())}") from error


def _backend(uri: str, operation: str) -> Callable[..., Any]:
    backend = _BACKENDS.get(scheme(uri))
    if backend is None and transports.known(scheme(uri)):
        backend = transports
    if backend is None:
        raise StorageError(
            f"{uri}: unknown storage {scheme(uri)}://; known: {', '.join(sorted(_BACKENDS))}, "
            "and to read from: what smart-open knows"
        )
    function = getattr(backend, operation, None)
    if function is None:
        raise StorageError(f"{uri}: {scheme(uri)}:// is read-only and has no {operation}")
    return cast("Callable[..., Any]", function)


def _glob_expression(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob over whole keys, with the rules of glob.glob(recursive=True)."""
    parts: list[str] = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        parts.append(_glob_token(token))
    return re.compile("".join(parts), re.DOTALL)


def _glob_token(token: str) -> str:
    fixed = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in fixed:
        return fixed[token]
    if len(token) > 2 and token[0] == "[":
        # fnmatch knows what in a set is no regular expression: [^a], [z-a], [[], [a&&b].
        translated = fnmatch.translate(token)
        return "(?!/)" + translated[: translated.rindex(")") + 1]
    return re.escape(token)
