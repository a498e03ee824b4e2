"""The folder that a dump is copied to, local or in a store, and the state of its files.

``TARGET/<wiki>/<date>/`` has the files, their list of checksums, and last ``_SUCCESS``. A file has its final
name only once its hash has been checked against that list.
"""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from bertmill.fetching.dumps import CHECKSUMS, SHA1_CHECKSUMS, SUCCESS, Dump, RemoteFile
from cluster import storage
from schemas.errors import StorageError
from schemas.redaction import public_uri


class FetchedFile(BaseModel):
    """A file of a complete folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    algorithm: str
    digest: str


class Success(BaseModel):
    """The content of ``_SUCCESS``: where the files are from, and each file by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wiki: str
    date: str
    url: str
    files: dict[str, FetchedFile]


_LINE = re.compile(r"[0-9a-f]{40,64}  [A-Za-z0-9_][A-Za-z0-9_.-]*")


def _line(file: RemoteFile) -> str:
    """The line of a file in a list as sha256sum and sha1sum write it."""
    return f"{file.digest}  {file.name}"


class DumpFolder:
    """The folder of one wiki and date in the target.

    ``scratch`` holds partial files when the target is not local. A local target holds them itself.
    """

    def __init__(self, target: str, wiki: str, date: str, scratch: str | None) -> None:
        self.uri = storage.join(target, wiki, date)
        self._local = storage.scheme(target) == "file"
        if self._local:
            self._parts = Path(self.uri.removeprefix("file://"))
        else:
            root = Path(scratch) if scratch else Path(tempfile.gettempdir()) / f"bertmill-{os.getuid()}-fetch"
            self._parts = root / hashlib.sha256(self.uri.encode()).hexdigest()[:16]

    def is_complete(self) -> bool:
        """Whether ``_SUCCESS`` exists, and all files that it names have their sizes."""
        try:
            success = Success.model_validate_json(storage.read_bytes(storage.join(self.uri, SUCCESS)))
        except (FileNotFoundError, ValidationError):
            return False
        sizes = self._sizes()
        return all(sizes.get(name) == file.bytes for name, file in success.files.items())

    def prepare(self, dump: Dump) -> list[RemoteFile]:
        """The missing files. Deletes files that the server has replaced or dropped since."""
        known = {line for name in (CHECKSUMS, SHA1_CHECKSUMS) for line in self._lines(name)}
        sizes = self._sizes()
        checked = {file for file in dump.files if file.name in sizes and _line(file) in known}
        # In this order, so that a file under its final name always has the hash of the list.
        storage.delete(storage.join(self.uri, SUCCESS))
        for name in {line.partition("  ")[2] for line in known} - {file.name for file in checked}:
            storage.delete(storage.join(self.uri, name))
        for name in {CHECKSUMS, SHA1_CHECKSUMS} - {dump.checksums_name}:
            storage.delete(storage.join(self.uri, name))
        text = "".join(f"{_line(file)}\n" for file in dump.files)
        storage.put_bytes(storage.join(self.uri, dump.checksums_name), text.encode())
        return [file for file in dump.files if file not in checked]

    def _lines(self, name: str) -> list[str]:
        """The lines of a list of checksums that an earlier run may have written, without damaged ones."""
        try:
            raw = storage.read_bytes(storage.join(self.uri, name))
        except FileNotFoundError:
            return []
        return [line for line in raw.decode("utf-8", "replace").splitlines() if _LINE.fullmatch(line)]

    def part(self, file: RemoteFile) -> Path:
        """The local path of the partial file. Another version of the file has another path."""
        return self._parts / f".part-{file.digest[:16]}-{file.name}"

    def publish(self, file: RemoteFile) -> None:
        """Gives the checked partial file its final name."""
        part, uri = self.part(file), storage.join(self.uri, file.name)
        if self._local:
            try:
                part.replace(self._parts / file.name)
            except OSError as error:
                raise StorageError(f"{uri}: write: {error.strerror or error}") from error
        else:
            storage.upload_file(part, uri)
            part.unlink()

    def finish(self, dump: Dump) -> int:
        """Writes ``_SUCCESS``, and returns the bytes of all files.

        Raises StorageError when a file was deleted meanwhile.
        """
        sizes = self._sizes()
        deleted = [file.name for file in dump.files if file.name not in sizes]
        if deleted:
            raise StorageError(f"{storage.join(self.uri, deleted[0])}: deleted while the dump was fetched")
        files = {
            file.name: FetchedFile(bytes=sizes[file.name], algorithm=file.algorithm, digest=file.digest)
            for file in dump.files
        }
        success = Success(wiki=dump.wiki, date=dump.date, url=public_uri(dump.url), files=files)
        raw = json.dumps(success.model_dump(), indent=1, sort_keys=True).encode()
        storage.put_bytes(storage.join(self.uri, SUCCESS), raw)
        return sum(file.bytes for file in files.values())

    def _sizes(self) -> dict[str, int]:
        return {info.uri.rpartition("/")[2]: info.size for info in storage.list_files(self.uri)}
