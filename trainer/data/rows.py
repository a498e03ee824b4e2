"""Row groups of shards, read and decoded once and kept in bounded caches, for any number of threads."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from schemas.arrays import I64
from schemas.columns.shards import SHARD
from schemas.errors import CorpusError, DamagedParquetError
from schemas.manifest import SequenceSet
from schemas.shard_tables import ShardTable, parse_shard_table, row_groups
from trainer.data.disk_cache import DiskCache
from trainer.data.group_order import PassRows
from trainer.data.row_groups import COLUMNS, RowGroup, RowLimits, decode, language_ids
from trainer.data.shared_cache import SharedCache


@dataclass(frozen=True)
class ShardPlace:
    """A shard of the manifest: its URI, size in bytes, SHA-256, and the rows of each row group."""

    uri: str
    size: int
    sha256: str
    row_groups: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PassShards:
    """The shards of one pass. Their table is read when it is first needed.

    Whatever reads it raises CorpusError when the table is missing or is not the one in the manifest.
    """

    folder: str
    """The folder that the paths of the manifest are relative to."""
    entry: SequenceSet

    @cached_property
    def table(self) -> ShardTable:
        """The set's table, checked."""
        uri = storage.join(self.folder, self.entry.shards.path)
        try:
            raw = storage.read_bytes(uri)
        except FileNotFoundError as error:
            raise CorpusError(f"{uri}: no such shard table") from error
        return parse_shard_table(raw, self.entry, uri)

    @cached_property
    def rows(self) -> PassRows:
        """The rows of each shard, for the order."""
        return PassRows(self.entry.rows, self.entry.shards.row_group_rows, self._shard_rows)

    def _shard_rows(self) -> I64:
        return self.table.rows

    def __len__(self) -> int:
        return self.entry.shards.count

    def __iter__(self) -> Iterator[ShardPlace]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> ShardPlace:
        shard = self.table[index]
        return ShardPlace(
            uri=storage.join(self.folder, shard.path),
            size=shard.bytes,
            sha256=shard.sha256,
            row_groups=row_groups(shard.rows, self.entry.shards.row_group_rows),
        )


def open_shard(place: ShardPlace) -> pq.ParquetFile:
    """Opens a shard.

    Raises CorpusError when it differs from the manifest, StorageError when it is not a Parquet file.
    """
    try:
        size = storage.size(place.uri)
        if size != place.size:
            raise CorpusError(f"{place.uri}: {size} bytes, but the manifest says {place.size}; copy it again")
        file = storage.parquet_file(place.uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{place.uri}: no such shard") from error
    except DamagedParquetError as error:
        reason = _first_line(error.__cause__ or error)
        raise CorpusError(f"{place.uri}: its footer cannot be read: {reason}") from error
    for name in COLUMNS:
        _check_column(place.uri, file.schema_arrow, name)
    metadata = file.metadata
    # A shard without rows may have a row group without rows. The manifest lists none.
    groups = metadata.num_row_groups if metadata.num_rows else 0
    rows = tuple(metadata.row_group(group).num_rows for group in range(groups))
    if rows != place.row_groups:
        raise CorpusError(f"{place.uri}: its row groups differ from the manifest; copy it again")
    return file


def _check_column(uri: str, schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise CorpusError(f"{uri}: column {name} is missing")
    expected, actual = SHARD.field(name).type, schema.field(name).type
    if pa.types.is_dictionary(expected):
        expected = expected.value_type
        actual = actual.value_type if pa.types.is_dictionary(actual) else actual
    same = actual == expected
    if pa.types.is_list(expected) and (pa.types.is_list(actual) or pa.types.is_large_list(actual)):
        same = actual.value_type == expected.value_type
    if not same:
        raise CorpusError(f"{uri}: column {name} is {actual}, expected {expected}")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class ShardRows:
    """Row groups of all passes of one length, for any number of threads.

    Holds at most about ``cache_bytes`` of decoded rows and ``open_files`` open shards.
    """

    def __init__(
        self,
        passes: Sequence[PassShards],
        limits: RowLimits,
        cache_bytes: int = 512 << 20,
        open_files: int = 64,
        disk: DiskCache | None = None,
    ) -> None:
        self._passes, self._limits, self._disk = passes, limits, disk
        self._groups: SharedCache[RowGroup] = SharedCache(cache_bytes, lambda group: group.nbytes)
        self._lengths: SharedCache[I64] = SharedCache(cache_bytes // 8, lambda lengths: lengths.nbytes)
        self._languages: SharedCache[I64] = SharedCache(cache_bytes // 8, lambda ids: ids.nbytes)
        self._files: SharedCache[_OpenShard] = SharedCache(open_files, lambda _: 1)

    def group(self, corpus_pass: int, shard: int, group: int) -> RowGroup:
        """A decoded, checked row group. Raises CorpusError."""
        key = (corpus_pass, shard, group)
        return self._groups.get(key, lambda: self._read_group(*key))

    def lengths(self, corpus_pass: int, shard: int, group: int) -> I64:
        """The length of each row of a row group, from its ``length`` column alone."""
        key = (corpus_pass, shard, group)
        return self._lengths.get(key, lambda: self._read_lengths(*key))

    def languages(self, corpus_pass: int, shard: int, group: int) -> I64:
        """The language of each row of a row group, from its ``lang`` column alone. Raises CorpusError."""
        key = (corpus_pass, shard, group)
        return self._languages.get(key, lambda: self._read_languages(*key))

    @property
    def groups_read(self) -> int:
        """Row groups decoded so far."""
        return self._groups.loads

    @property
    def lengths_read(self) -> int:
        """Row groups of which it has read the lengths alone."""
        return self._lengths.loads

    def _read_group(self, corpus_pass: int, shard: int, group: int) -> RowGroup:
        place = self._passes[corpus_pass][shard]
        disk = self._disk if storage.scheme(place.uri) != "file" else None
        key = f"{place.uri} {place.size} {place.sha256} {group}"
        table = disk.get(key) if disk else None
        if table is None:
            table = self._open(corpus_pass, shard).read(group, COLUMNS)
            if disk:
                disk.put(key, table)
        return decode(table, self._limits, f"{place.uri}: row group {group}")

    def _read_lengths(self, corpus_pass: int, shard: int, group: int) -> I64:
        table = self._open(corpus_pass, shard).read(group, ["length"])
        lengths: I64 = table["length"].to_numpy().astype(np.int64)
        return lengths

    def _read_languages(self, corpus_pass: int, shard: int, group: int) -> I64:
        place = self._passes[corpus_pass][shard]
        table = self._open(corpus_pass, shard).read(group, ["lang"])
        origin = f"{place.uri}: row group {group}"
        return language_ids(table["lang"], self._limits.languages, origin).astype(np.int64)

    def _open(self, corpus_pass: int, shard: int) -> "_OpenShard":
        place = self._passes[corpus_pass][shard]
        return self._files.get((corpus_pass, shard), lambda: _OpenShard(place))


class _OpenShard:
    """An open shard. Only one thread at a time may use its Parquet reader."""

    def __init__(self, place: ShardPlace) -> None:
        self._uri = place.uri
        self._file = open_shard(place)
        self._lock = threading.Lock()

    def read(self, group: int, columns: list[str]) -> pa.Table:
        try:
            with self._lock:
                return self._file.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            where = f"{self._uri}: row group {group}"
            raise CorpusError(f"{where}: cannot be read: {_first_line(error)}") from error
