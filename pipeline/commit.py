"""Commit last: a unit's data files first, then one small marker; a rerun skips what has a marker.

A stage folder is named by the stage's hash, so results of another config or another code version
are never found, and a marker that carries another hash is refused rather than reused.
"""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cluster import scratch, storage
from schemas.errors import CorpusError
from schemas.json_text import parse_json
from schemas.versions import CODE_VERSION

_MARKER_SUFFIX = ".done.json"
_READERS = 16


def stable_hash(*parts: Any) -> str:
    """SHA-256 of the JSON form of ``parts``: equal for equal values, whatever the order of keys."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class DataFile:
    """A file that a unit wrote: its path below the stage folder, or a full URI outside it."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Marker:
    """What a finished unit left behind: its files and its counts."""

    unit_id: str
    stage_hash: str
    files: list[DataFile] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False).encode()

    @staticmethod
    def from_bytes(raw: bytes, origin: str) -> "Marker":
        """Raises CorpusError that names ``origin`` when it is not a marker."""
        try:
            data = parse_json(raw)
            files = [DataFile(**file) for file in data["files"]]
            return Marker(data["unit_id"], data["stage_hash"], files, data["counts"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorpusError(f"{origin}: not a marker of a finished unit: {error}") from error


@dataclass(frozen=True)
class StageFolder:
    """Where one stage of one build keeps its parts and markers."""

    uri: str
    stage_hash: str

    @staticmethod
    def create(work_uri: str, stage: str, *inputs: Any) -> "StageFolder":
        """The folder of ``stage``; ``inputs`` is all that its output depends on, beside the code itself."""
        stage_hash = stable_hash(stage, CODE_VERSION, *inputs)
        return StageFolder(storage.join(work_uri, f"{stage}-{stage_hash[:12]}"), stage_hash)

    def path(self, name: str) -> str:
        """The URI of a file in this folder."""
        return storage.join(self.uri, name)

    def commit(self, unit_id: str, files: Iterable[DataFile], counts: dict[str, Any]) -> Marker:
        """Declares a unit done. Its files must be in storage already."""
        marker = Marker(unit_id, self.stage_hash, list(files), counts)
        storage.put_bytes(self.path(unit_id + _MARKER_SUFFIX), marker.to_bytes())
        return marker

    def marker(self, unit_id: str) -> Marker | None:
        """The marker of a unit, or None while it is not done. Raises CorpusError on a foreign one."""
        uri = self.path(unit_id + _MARKER_SUFFIX)
        try:
            raw = storage.read_bytes(uri)
        except FileNotFoundError:
            return None
        marker = Marker.from_bytes(raw, uri)
        if marker.stage_hash != self.stage_hash or marker.unit_id != unit_id:
            raise CorpusError(f"{uri}: marker of another unit or config; remove the folder to rebuild it")
        return marker

    def finished(self) -> dict[str, Marker]:
        """All markers of the stage by unit id, in the order of the ids."""
        names = [info.uri.rsplit("/", 1)[-1] for info in storage.list_files(self.uri)]
        ids = sorted(name.removesuffix(_MARKER_SUFFIX) for name in names if name.endswith(_MARKER_SUFFIX))
        with ThreadPoolExecutor(_READERS) as pool:
            markers = list(pool.map(self.marker, ids))
        return {marker.unit_id: marker for marker in markers if marker is not None}


class PartWriter:
    """Writes batches of one schema to a local Parquet file, then uploads it whole.

    Memory holds one row group; a crash leaves nothing under the final name.
    """

    def __init__(self, schema: pa.Schema, uri: str, name: str) -> None:
        self._schema, self._uri, self._name = schema, uri, name
        self._cleanup = ExitStack()
        self._local = self._cleanup.enter_context(scratch.folder("part")) / "part.parquet"
        self._writer = pq.ParquetWriter(self._local, schema, compression="zstd")
        self._cleanup.callback(self._writer.close)
        self._rows = 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Appends a batch as a row group of its own."""
        if batch.num_rows:
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            self._writer.write_table(table.cast(self._schema))
            self._rows += batch.num_rows

    def finish(self) -> DataFile:
        """Closes and uploads the file; only now is it visible."""
        self._writer.close()
        with self._local.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        storage.upload_file(str(self._local), self._uri)
        return DataFile(self._name, self._rows, self._local.stat().st_size, digest)
