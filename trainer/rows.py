"""Rows of shards: read by row group, checked once, decoded to flat arrays, kept in a bounded cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cluster import storage
from schemas.errors import CorpusError
from schemas.shards import NO_LABEL, SHARD
from trainer.disk_cache import DiskCache

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

# document_key is for people; training never reads it.
COLUMNS = [name for name in SHARD.names if name != "document_key"]


@dataclass(frozen=True)
class ShardPlace:
    """A shard of the manifest: where it lies, its bytes, and the rows of each row group."""

    uri: str
    size: int
    sha256: str
    row_groups: tuple[int, ...]


@dataclass(frozen=True)
class RowLimits:
    """What rows have to keep to. ``never_masked`` are ids that may not be targets."""

    vocab_size: int
    max_seq_length: int
    pairs: bool
    languages: tuple[str, ...]
    never_masked: tuple[int, ...]


@dataclass(frozen=True)
class RowGroup:
    """The rows of a row group; row ``i`` has input_ids[token_starts[i] : token_starts[i + 1]]."""

    input_ids: I32
    token_starts: I64
    segment_a_length: I32
    masked_positions: I32
    masked_ids: I32
    masked_starts: I64
    labels: npt.NDArray[np.int8]
    lang_ids: I32

    @property
    def lengths(self) -> I64:
        """Tokens of each row."""
        return np.diff(self.token_starts)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in vars(self).values())


def open_shard(place: ShardPlace) -> pq.ParquetFile:
    """The open shard.

    Raises CorpusError when it is not the one that the manifest describes, StorageError when it is not
    a Parquet file.
    """
    try:
        found = storage.size(place.uri)
        if found != place.size:
            raise CorpusError(f"{place.uri}: {found} bytes, the manifest says {place.size}")
        file = storage.parquet_file(place.uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{place.uri}: the shard is missing") from error
    except OSError as error:
        raise CorpusError(f"{place.uri}: its footer cannot be read: {_first_line(error)}") from error
    for name in COLUMNS:
        _check_column(place.uri, file.schema_arrow, name)
    metadata = file.metadata
    # A shard without rows may have a row group without rows; the manifest lists none.
    groups = metadata.num_row_groups if metadata.num_rows else 0
    rows = tuple(metadata.row_group(group).num_rows for group in range(groups))
    if rows != place.row_groups:
        raise CorpusError(f"{place.uri}: its row groups are not those of the manifest")
    return file


def _check_column(uri: str, schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise CorpusError(f"{uri}: column {name} is missing")
    wanted, found = SHARD.field(name).type, schema.field(name).type
    if pa.types.is_dictionary(wanted):
        wanted = wanted.value_type
        found = found.value_type if pa.types.is_dictionary(found) else found
    same = found == wanted
    if pa.types.is_list(wanted) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        same = found.value_type == wanted.value_type
    if not same:
        raise CorpusError(f"{uri}: column {name} is {found}, expected {wanted}")


def decode(table: pa.Table, limits: RowLimits, origin: str) -> RowGroup:
    """The rows of ``table`` as arrays. Raises CorpusError: ``origin``, the row, and what is wrong."""
    for name in COLUMNS:
        if table[name].null_count:
            row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
            raise CorpusError(f"{origin} row {row}: {name} is null")
    input_ids, token_starts = _flat(table["input_ids"])
    masked_positions, masked_starts = _flat(table["masked_positions"])
    masked_ids, id_starts = _flat(table["masked_ids"])
    lengths, counts = np.diff(token_starts), np.diff(masked_starts)
    group = RowGroup(
        input_ids=input_ids,
        token_starts=token_starts,
        segment_a_length=table["segment_a_length"].to_numpy(),
        masked_positions=masked_positions,
        masked_ids=masked_ids,
        masked_starts=masked_starts,
        labels=table["next_sentence_label"].to_numpy(),
        lang_ids=_languages(table["lang"], limits.languages, origin),
    )
    _refuse(origin, "length", table["length"].to_numpy() != lengths, "is not the number of input_ids")
    _refuse(origin, "length", lengths < 1, "is 0")
    too_long = lengths > limits.max_seq_length
    _refuse(origin, "length", too_long, f"is above max_seq_length {limits.max_seq_length}", values=lengths)
    _refuse(origin, "masked_ids", np.diff(id_starts) != counts, "are not as many as masked_positions")
    _check_tokens(group, limits, origin)
    _check_segments(group, limits, origin)
    return group


def _check_tokens(group: RowGroup, limits: RowLimits, origin: str) -> None:
    lengths, counts = group.lengths, np.diff(group.masked_starts)
    rows = np.arange(lengths.size)
    beyond = f"is outside the vocabulary of {limits.vocab_size}"
    for name, ids, sizes in (
        ("input_ids", group.input_ids, lengths),
        ("masked_ids", group.masked_ids, counts),
    ):
        bad = (ids < 0) | (ids >= limits.vocab_size)
        if bad.any():
            _refuse(origin, name, bad, beyond, values=ids, rows=np.repeat(rows, sizes))
    row_of_mask = np.repeat(rows, counts)
    positions = group.masked_positions
    outside = (positions < 0) | (positions >= lengths[row_of_mask])
    _refuse(origin, "masked_positions", outside, "is outside the row", values=positions, rows=row_of_mask)
    steps = (np.diff(positions) <= 0) & (np.diff(row_of_mask) == 0)
    _refuse(
        origin,
        "masked_positions",
        steps,
        "is followed by one that is not larger",
        values=positions[:-1],
        rows=row_of_mask[:-1],
    )
    special = np.isin(group.masked_ids, np.array(limits.never_masked, dtype=np.int32))
    _refuse(origin, "masked_ids", special, "is a special token", values=group.masked_ids, rows=row_of_mask)


def _check_segments(group: RowGroup, limits: RowLimits, origin: str) -> None:
    first, lengths, labels = group.segment_a_length, group.lengths, group.labels
    _refuse(origin, "segment_a_length", (first < 1) | (first > lengths), "is outside the row", values=first)
    if limits.pairs:
        problem = "leaves no second segment, which the objective needs"
        _refuse(origin, "segment_a_length", first == lengths, problem, values=first)
        bad, problem = (labels != 0) & (labels != 1), "is neither 0 nor 1"
    else:
        bad, problem = labels != NO_LABEL, "must be -1 without sentence objective"
    _refuse(origin, "next_sentence_label", bad, problem, values=labels)


def _refuse(
    origin: str,
    column: str,
    bad: npt.NDArray[np.bool_],
    problem: str,
    *,
    values: npt.NDArray[Any] | None = None,
    rows: I64 | None = None,
) -> None:
    """Raises CorpusError for the first true element of ``bad``; ``rows`` gives the row of each."""
    places = np.flatnonzero(bad)
    if places.size:
        place = int(places[0])
        row = place if rows is None else int(rows[place])
        value = "" if values is None else f" {int(values[place])}"
        raise CorpusError(f"{origin} row {row}: {column}{value} {problem}")


def _flat(column: pa.ChunkedArray) -> tuple[I32, I64]:
    """Values and starts of a list column. Lists of the shards are far below 2^31 values a row group."""
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    sizes = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    flat = np.concatenate(values) if values else np.zeros(0, dtype=np.int32)
    starts = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *sizes]))
    return flat.astype(np.int32, copy=False), starts.astype(np.int64, copy=False)


def _languages(column: pa.ChunkedArray, languages: tuple[str, ...], origin: str) -> I32:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    parts = []
    for chunk in column.chunks:
        known = pc.index_in(chunk.dictionary, value_set=pa.array(languages, pa.string()))
        codes = known.fill_null(-1).to_numpy(zero_copy_only=False)
        parts.append(codes[chunk.indices.to_numpy(zero_copy_only=False)])
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    unknown = np.flatnonzero(ids < 0)
    if unknown.size:
        row = int(unknown[0])
        raise CorpusError(f"{origin} row {row}: lang {column[row].as_py()!r} is not in the manifest")
    return ids.astype(np.int32, copy=False)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


Value = TypeVar("Value")


class SharedCache(Generic[Value]):
    """A cache for threads: each value is loaded once at a time, the oldest are dropped over ``limit``.

    ``cost`` gives the size of a value in the unit of ``limit``. A failed load is raised to everybody
    who waits for it and is tried again by the next caller.
    """

    def __init__(self, limit: int, cost: Callable[[Value], int]) -> None:
        self._limit, self._cost = limit, cost
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._used = 0
        self.loads = 0
        self.hits = 0

    def get(self, key: Hashable, load: Callable[[], Value]) -> Value:
        """The value of ``key``, loaded by ``load`` unless it is there or being loaded."""
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
                self.loads += 1
            else:
                self._values.move_to_end(key)
                self.hits += 1
        if mine:
            self._fill(key, future, load)
        return future.result()

    def _fill(self, key: Hashable, future: "Future[Value]", load: Callable[[], Value]) -> None:
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                del self._values[key]
            future.set_exception(error)
            return
        future.set_result(value)
        with self._lock:
            self._used += self._cost(value)
            while self._used > self._limit and self._drop_oldest(keep=key):
                pass

    def _drop_oldest(self, keep: Hashable) -> bool:
        for key, future in self._values.items():
            if future.done() and key != keep:
                self._used -= self._cost(future.result())
                del self._values[key]
                return True
        return False


class ShardRows:
    """Row groups of all passes of one length, for any number of threads.

    Holds at most about ``cache_bytes`` of decoded rows and ``open_files`` open shards.
    """

    def __init__(
        self,
        passes: list[list[ShardPlace]],
        limits: RowLimits,
        cache_bytes: int = 512 << 20,
        open_files: int = 64,
        disk: DiskCache | None = None,
    ) -> None:
        self._passes, self._limits, self._disk = passes, limits, disk
        self._groups: SharedCache[RowGroup] = SharedCache(cache_bytes, lambda group: group.nbytes)
        self._lengths: SharedCache[I64] = SharedCache(cache_bytes // 8, lambda lengths: lengths.nbytes)
        self._files: SharedCache[_OpenShard] = SharedCache(open_files, lambda _: 1)

    def group(self, corpus_pass: int, shard: int, group: int) -> RowGroup:
        """A decoded, checked row group. Raises CorpusError."""
        key = (corpus_pass, shard, group)
        return self._groups.get(key, lambda: self._read_group(*key))

    def lengths(self, corpus_pass: int, shard: int, group: int) -> I64:
        """The length of each row of a row group, from its ``length`` column alone."""
        key = (corpus_pass, shard, group)
        return self._lengths.get(key, lambda: self._read_lengths(*key))

    @property
    def groups_read(self) -> int:
        """Row groups decoded so far."""
        return self._groups.loads

    @property
    def lengths_read(self) -> int:
        """Row groups of which the ``length`` column alone was read so far."""
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

    def _open(self, corpus_pass: int, shard: int) -> "_OpenShard":
        place = self._passes[corpus_pass][shard]
        return self._files.get((corpus_pass, shard), lambda: _OpenShard(place))


class _OpenShard:
    """An open shard; a Parquet reader serves one thread at a time."""

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
