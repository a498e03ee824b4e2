"""The filesystem that Ray Train gets for a run: Ray can see the checkpoints, but cannot damage them.

Ray Train accepts a checkpoint that it did not upload only below the folder of its own record of the run,
and it trusts that record: a new job refuses to start once a checkpoint in the record is gone, Ray deletes
a checkpoint that it drops from the record, and a failed write of the record ends the workers. This
filesystem writes Ray's record for users and never reads it, deletes nothing, and only logs a failed
write. Reads and writes go through cluster/storage/api.py, with its retries.
"""

import io
import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from cluster import storage
from cluster.storage import local_files
from schemas.errors import StorageError

logger = logging.getLogger(__name__)

_RECORD = "checkpoint_manager_snapshot.json"


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """A filesystem for Ray's RunConfig, and the path of the folder ``uri`` on it."""
    scheme = storage.scheme(uri)
    path = str(local_files.path_of(uri)) if scheme == "file" else uri.partition("://")[2]
    return fs.PyFileSystem(RunStorage(scheme)), path.rstrip("/")


class RunStorage(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The files of one URI scheme. A folder exists if it holds files or is named like a checkpoint."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunStorage) and other._scheme == self._scheme

    def __hash__(self) -> int:
        return hash(self._scheme)

    def uri_of(self, path: str) -> str:
        """The URI of a path."""
        return path if self._scheme == "file" else f"{self._scheme}://{path}"

    def get_type_name(self) -> str:
        """A name for messages."""
        return f"bertmill+{self._scheme}"

    def normalize_path(self, path: str) -> str:
        """``path``, which is already normalized."""
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Ray's record never exists, and a checkpoint that our retention has deleted is an empty folder."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        name = PurePosixPath(path).name
        if name == _RECORD:
            return fs.FileInfo(path, fs.FileType.NotFound)
        try:
            return fs.FileInfo(path, fs.FileType.File, size=storage.size(self.uri_of(path)))
        except FileNotFoundError:
            below = name.startswith("step-") or bool(storage.list_files(self.uri_of(path)))
            return fs.FileInfo(path, fs.FileType.Directory if below else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """All files below a folder, and the folders between."""
        base = selector.base_dir.rstrip("/")
        root = self.uri_of(base)
        entries = dict(self._below(base, root))
        if not entries and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        depth = base.count("/") + 1
        return [info for path, info in entries.items() if selector.recursive or path.count("/") == depth]

    def _below(self, base: str, root: str) -> Iterator[tuple[str, fs.FileInfo]]:
        for info in storage.list_files(root):
            inside = PurePosixPath(info.uri[len(root) :].lstrip("/"))
            for folder in reversed(inside.parents[:-1]):
                path = f"{base}/{folder}"
                yield path, fs.FileInfo(path, fs.FileType.Directory)
            path = f"{base}/{inside}"
            yield path, fs.FileInfo(path, fs.FileType.File, size=info.size)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """The file, for reading."""
        return pa.PythonFile(storage.open_read(self.uri_of(path)), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        """The file, for random access."""
        return self.open_input_stream(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """A small file, written when it is closed."""
        del metadata
        return pa.PythonFile(_RecordFile(self.uri_of(path)), mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Does nothing, because folders exist through their files."""

    def delete_dir(self, path: str) -> None:
        """Does nothing, because our own retention deletes old checkpoints."""

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """See ``delete_dir``."""

    def delete_root_dir_contents(self) -> None:
        """See ``delete_dir``."""

    def delete_file(self, path: str) -> None:
        """See ``delete_dir``."""

    def move(self, src: str, dest: str) -> None:
        """Not supported."""
        raise NotImplementedError(f"{src}: files of a run are not moved")

    def copy_file(self, src: str, dest: str) -> None:
        """Not supported."""
        raise NotImplementedError(f"{src}: files of a run are not copied")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """Not supported."""
        raise NotImplementedError(f"{path}: files of a run are not appended to")


class _RecordFile(io.BytesIO):
    """Ray's record of the run. A failed write is only logged, because it is not worth a restart."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self._uri = uri

    def close(self) -> None:
        """Writes the content."""
        if not self.closed:
            try:
                storage.put_bytes(self._uri, self.getvalue())
            except (StorageError, OSError) as error:
                logger.warning("%s: could not write Ray's record, which is harmless: %s", self._uri, error)
        super().close()
