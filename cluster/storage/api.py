"""Reads and writes files by URI: local paths, file://, s3:// and gs://. Also reads http(s):// and every other
storage in which smart-open can seek (sftp://, azure://, ftp:// ...).

A missing file raises FileNotFoundError(uri). Every other failure is a StorageError that names the URI and
the operation, after retries where a retry can help. Writes are atomic: readers see the whole file or none.
"""

import fnmatch
import glob
import io
import logging
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cluster.storage import local_files, ranged
from cluster.storage.entries import FileInfo
from schemas.errors import DamagedParquetError, StorageError

logger = logging.getLogger(__name__)

_STALE_SECONDS = 3600.0
"""Long enough to allow for clock differences and for other jobs that are still writing."""

_SCHEMES = ("file", "gs", "http", "https", "s3")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
_ALMOST_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(.*)", re.DOTALL)
_MAGIC = re.compile(r"[*?\[]")

Result = TypeVar("Result")


def scheme(uri: str) -> str:
    """The scheme in lower case, or ``file`` for a plain path.

    >>> scheme("S3://bucket/key"), scheme("/data/x")
    ('s3', 'file')
    """
    match = _SCHEME.match(uri)
    return match.group(1).lower() if match else "file"


def malformed(uri: str) -> str | None:
    """Why ``uri`` is neither a path nor a URI, although it looks like one. None if it is one.

    Without this check, ``s3:/bucket/runs`` would be a local folder named ``s3:``.

    >>> malformed("s3:/bucket/runs")
    "'s3:/bucket/runs': write s3://bucket/runs"
    """
    match = _ALMOST_SCHEME.match(uri)
    if match is None:
        return None
    scheme_name, rest = match[1].lower(), match[2]
    path = rest.lstrip("/")
    correct = f"{uri!r}: write {scheme_name}:{'///' if scheme_name == 'file' else '//'}{path}"
    if not rest.startswith("//"):
        return correct if _backend_of(scheme_name) is not None else None
    if scheme_name == "file":
        return None if rest.startswith("///") and match[1] == "file" else correct
    # Other schemes may omit the host: hdfs:///path, datasets:///folder.
    if scheme_name in _SCHEMES and (rest.startswith("///") or not path):
        return f"{uri!r}: no bucket or host after {scheme_name}://; write {scheme_name}://BUCKET/KEY"
    return None if match[1] == scheme_name else correct


def join(uri: str, *parts: str) -> str:
    """``uri/part/part``. Raises StorageError for a part that would leave the folder.

    Names from manifests and checkpoints pass through here, so it refuses ``..``, absolute paths and empty
    names.

    >>> join("s3://bucket/corpus/", "data/shard.parquet")
    's3://bucket/corpus/data/shard.parquet'
    """
    for part in parts:
        pieces = part.split("/")
        if any(piece in ("", ".", "..") for piece in pieces) or "\\" in part or "\0" in part:
            raise StorageError(f"{uri}: {part!r} must be a name inside this folder")
    base = uri if uri.endswith("://") else uri.rstrip("/") or "/"
    return posixpath.join(base, *parts)


def read_bytes(uri: str) -> bytes:
    """The whole file."""
    return cast("bytes", _backend(uri, "read_bytes")(uri))


def read_range(uri: str, start: int, length: int) -> bytes:
    """``length`` bytes from byte ``start``, or fewer at the end."""
    return cast("bytes", _backend(uri, "read_range")(uri, start, length))


def size(uri: str) -> int:
    """The size in bytes."""
    return cast("int", _backend(uri, "size")(uri))


def exists(uri: str) -> bool:
    """Whether the file exists. A folder is not a file."""
    try:
        size(uri)
    except FileNotFoundError:
        return False
    return True


def list_files(prefix_uri: str) -> list[FileInfo]:
    """All files below the folder at any depth, sorted by URI. [] if it has none."""
    return sorted(_backend(prefix_uri, "list_files")(prefix_uri))


def expand_glob(pattern: str) -> list[str]:
    """The files that match, sorted. ``*``, ``?`` and ``[...]`` match within a name, ``**`` across folders.

    A pattern without wildcards matches the file itself, or nothing if it does not exist.
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
    """Writes ``data`` and replaces an existing file. A reader sees the old file or the new one."""
    _backend(uri, "put_bytes")(uri, data)


def put_if_absent(uri: str, data: bytes) -> bool:
    """Creates the file unless it exists. Of concurrent calls exactly one returns True."""
    return cast("bool", _backend(uri, "put_if_absent")(uri, data))


def check_writable(folder_uri: str) -> None:
    """Writes, reads and deletes a small file in the folder. Raises StorageError that names the failed step.

    The second of two conditional puts must fail. Otherwise two jobs could overwrite each other.
    """
    probe = join(folder_uri, f"probe-{secrets.token_hex(8)}")
    created = put_if_absent(probe, b"probe")
    try:
        if not created or put_if_absent(probe, b"probe") or read_bytes(probe) != b"probe":
            raise StorageError(
                f"{folder_uri}: the store ignores conditional writes, so two jobs could overwrite each other;"
                " use a store that supports If-None-Match on PUT"
            )
    finally:
        delete(probe)


def upload_file(local: str | Path, uri: str) -> None:
    """Copies a local file to ``uri``, where it appears only when complete."""
    if not Path(local).is_file():
        raise FileNotFoundError(str(local))
    _backend(uri, "upload_file")(Path(local), uri)


def download_file(uri: str, local: str | Path) -> None:
    """Copies ``uri`` to a local file, which appears only when complete. Creates its folder."""
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
    """Deletes the file. A missing file is not an error."""
    _backend(uri, "delete")(uri)


def delete_prefix(uri: str) -> None:
    """Deletes the folder and everything below it. Raises StorageError for a whole bucket or root."""
    _backend(uri, "delete_prefix")(uri)


def abort_uploads(uri: str, older_than: float) -> int:
    """Removes uploads below the folder that killed processes left unfinished. Returns their number.

    Removes only uploads that started before ``older_than`` (seconds since 1970), or local files last written
    before it. Google Cloud Storage removes unfinished uploads itself.
    """
    if scheme(uri) == "file":
        return local_files.abort_uploads(uri, older_than)
    return cast("int", _backend(uri, "abort_uploads")(uri, older_than)) if scheme(uri) == "s3" else 0


def end_stale_uploads(uri: str) -> None:
    """Removes unfinished uploads that are older than an hour, and logs their number.

    If the store denies this, only logs a warning, because a key may allow writing but not listing uploads.
    """
    try:
        removed = abort_uploads(uri, time.time() - _STALE_SECONDS)
    except StorageError as error:
        logger.warning(
            "%s: could not clean up unfinished uploads, will retry on the next run: %s", uri, error
        )
        return
    if removed:
        logger.warning("%s: removed %d unfinished uploads of killed processes", uri, removed)


def open_read(uri: str) -> BinaryIO:
    """A seekable buffered binary file. Reads remote storage with range requests."""
    if scheme(uri) == "file":
        return cast("BinaryIO", local_files.open_read(uri))
    raw = cast("io.RawIOBase", _backend(uri, "open_raw")(uri))
    return cast("BinaryIO", io.BufferedReader(raw, ranged.BUFFER_BYTES))


def open_stream(uri: str) -> IO[bytes]:
    """A forward-only binary stream for one long pass. It resumes broken connections."""
    if scheme(uri) == "file":
        return local_files.open_read(uri)
    raw = cast("io.RawIOBase", _backend(uri, "open_stream")(uri))
    return cast("IO[bytes]", io.BufferedReader(raw, ranged.BUFFER_BYTES))


def parquet_file(uri: str) -> pq.ParquetFile:
    """The Parquet file at ``uri``. Reads remote files by the ranges that Parquet plans.

    Raises StorageError if it is not a Parquet file, for instance a truncated one, and DamagedParquetError
    if only its footer cannot be read.
    """
    if scheme(uri) == "file":
        source: Any = local_files.open_read(uri)
    else:
        source = pa.PythonFile(_backend(uri, "open_raw")(uri), mode="r")
    try:
        return pq.ParquetFile(source, pre_buffer=True)
    except FileNotFoundError:
        source.close()
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        source.close()
        # pyarrow raises ArrowInvalid without the marks of Parquet, and OSError for the bytes between them.
        kind = StorageError if isinstance(error, pa.ArrowInvalid) else DamagedParquetError
        raise kind(f"{uri}: read as Parquet: {' '.join(str(error).split())}") from error


def _backend(uri: str, operation: str) -> Callable[..., Any]:
    problem = malformed(uri)
    if problem is not None:
        raise StorageError(problem)
    backend = _backend_of(scheme(uri))
    if backend is None:
        raise StorageError(
            f"{uri}: unknown storage {scheme(uri)}://; use one of {', '.join(_SCHEMES)}, "
            "or to read only, any scheme of smart-open"
        )
    function = getattr(backend, operation, None)
    if function is None:
        raise StorageError(f"{uri}: {scheme(uri)}:// is read-only and has no {operation}")
    return cast("Callable[..., Any]", function)


@cache
def _backend_of(scheme_name: str) -> ModuleType | None:
    """The module for a scheme, or None for an unknown one.

    Imports each module on first use, because importing the libraries of all takes a second in every worker
    process of both jobs.
    """
    if scheme_name == "file":
        return local_files
    if scheme_name == "s3":
        from cluster.storage import s3

        return s3
    if scheme_name == "gs":
        from cluster.storage import gcs

        return gcs
    if scheme_name in ("http", "https"):
        from cluster.storage import http

        return http
    from cluster.storage import smart_open_backend

    return smart_open_backend if smart_open_backend.is_supported(scheme_name) else None


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
        # fnmatch escapes sets that mean something else in a regular expression: [^a], [z-a], [[], [a&&b].
        translated = fnmatch.translate(token)
        return "(?!/)" + translated[: translated.rindex(")") + 1]
    return re.escape(token)
