"""Commit last: a unit's data files first, then one small marker. A rerun skips every unit with a marker.

The hash of a stage is part of its folder's name, so a build never finds the results of another config or code
version. A marker with another hash is an error.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from cluster import scratch, storage
from schemas.errors import CorpusError, StorageError, reason_of
from schemas.redaction import public_fields
from schemas.versions import CODE_VERSION

_MARKER_SUFFIX = ".done.json"
_READERS = 16

Counts = TypeVar("Counts")


def stable_hash(*parts: Any) -> str:
    """SHA-256 of the JSON form of ``parts``, which does not depend on the order of keys.

    It ignores credentials and signatures in URIs, so a build resumes with new ones.
    """
    text = json.dumps(public_fields(parts), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class DataFile:
    """A file that a unit wrote, named by its path below the stage folder or by a full URI outside it."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class NoCounts:
    """The counts of a unit without counts."""


@dataclass(frozen=True)
class RowCounts:
    """The counts of a unit that writes one table."""

    rows: int


@dataclass(frozen=True)
class Marker(Generic[Counts]):
    """The result of a finished unit: its files and its counts. The stage defines the dataclass of counts."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    unit_id: str
    stage_hash: str
    files: list[DataFile]
    counts: Counts


@cache
def _adapter(counts: Any) -> TypeAdapter[Marker[Any]]:
    return TypeAdapter(Marker[counts])


@dataclass(frozen=True)
class StageFolder(Generic[Counts]):
    """Where one stage of one build keeps its data files and markers."""

    uri: str
    stage_hash: str
    counts: type[Counts]
    """The dataclass of the counts in each marker."""

    @property
    def _adapter(self) -> TypeAdapter[Marker[Counts]]:
        return _adapter(self.counts)  # type: ignore[arg-type]  # classes are hashable

    @staticmethod
    def create(work_uri: str, stage: str, counts: type[Counts], *inputs: Any) -> "StageFolder[Counts]":
        """The folder of ``stage``. ``inputs`` is what its output depends on besides the code version."""
        stage_hash = stable_hash(stage, CODE_VERSION, *inputs)
        return StageFolder(storage.join(work_uri, f"{stage}-{stage_hash[:12]}"), stage_hash, counts)

    def path(self, name: str) -> str:
        """The URI of a file in this folder."""
        return storage.join(self.uri, name)

    def commit(self, unit_id: str, files: Iterable[DataFile], counts: Counts) -> Marker[Counts]:
        """Declares a unit finished. Its files must be in storage already."""
        marker = Marker(unit_id, self.stage_hash, list(files), counts)
        body = self._adapter.dump_python(marker, mode="json")
        raw = json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
        storage.put_bytes(self.path(unit_id + _MARKER_SUFFIX), raw)
        return marker

    def marker(self, unit_id: str) -> Marker[Counts] | None:
        """The marker of a unit, or None if it is not finished. Raises CorpusError if it is another unit's."""
        uri = self.path(unit_id + _MARKER_SUFFIX)
        try:
            marker = self._adapter.validate_json(storage.read_bytes(uri))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise CorpusError(
                f"{uri}: not a marker of a finished unit: {field}: {reason_of(first)}"
            ) from error
        if marker.stage_hash != self.stage_hash or marker.unit_id != unit_id:
            raise CorpusError(f"{uri}: marker of another unit or config; remove the folder to rebuild it")
        return marker

    def finished(self) -> dict[str, Marker[Counts]]:
        """All markers of the stage by unit id, in the order of the ids."""
        names = [info.uri.rsplit("/", 1)[-1] for info in storage.list_files(self.uri)]
        ids = sorted(name.removesuffix(_MARKER_SUFFIX) for name in names if name.endswith(_MARKER_SUFFIX))
        with ThreadPoolExecutor(_READERS) as pool:
            markers = list(pool.map(self.marker, ids))
        return {marker.unit_id: marker for marker in markers if marker is not None}


class PartWriter:
    """Writes batches of one schema to a local Parquet file, then uploads it whole.

    Memory holds one row group. A crash leaves nothing under the final name. Raises StorageError when the disk
    for temporary files is full.
    """

    def __init__(self, schema: pa.Schema, uri: str, name: str) -> None:
        self._schema, self._uri, self._name = schema, uri, name
        self._cleanup = ExitStack()
        self._local = self._cleanup.enter_context(scratch.folder("part")) / "part.parquet"
        self._writer = pq.ParquetWriter(self._local, schema, compression="zstd")
        self._cleanup.callback(self._abandon)
        self._rows = 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Appends a batch as a row group."""
        if batch.num_rows:
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            with self._local_errors():
                self._writer.write_table(table.cast(self._schema))
            self._rows += batch.num_rows

    def finish(self) -> DataFile:
        """Closes and uploads the file, which makes it visible."""
        with self._local_errors():
            self._writer.close()
        with self._local.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        storage.upload_file(str(self._local), self._uri)
        return DataFile(self._name, self._rows, self._local.stat().st_size, digest)

    def _abandon(self) -> None:
        # Nobody reads a file that is not finished, and the error that matters was raised by `write`.
        with suppress(OSError):
            self._writer.close()

    @contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(
                f"{self._local}: write: {reason}; free space, or set TMPDIR to another folder"
            ) from error
