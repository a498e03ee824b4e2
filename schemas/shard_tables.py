"""The shards of a set as a table in a separate Parquet file, which the manifest names with its SHA-256.

So the manifest stays small for any number of shards. A reader loads the tables of the sets that it uses,
about 45 bytes for each shard.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.arrays import I64
from schemas.columns.shard_table import SHARD_TABLE
from schemas.errors import CorpusError
from schemas.instance_counts import Count
from schemas.manifest import Record, RelativePath, SequenceSet, Sha256

_SUFFIX = ".parquet"


class Shard(Record):
    """One Parquet file of sequences (columns: schemas.columns.shards.SHARD)."""

    path: RelativePath
    rows: Count
    tokens: Count
    bytes: Count
    sha256: Sha256


def shard_path(prefix: str, number: int) -> str:
    """The path of a shard below the corpus.

    >>> shard_path("data/len128/train-p00-", 7)
    'data/len128/train-p00-00007.parquet'
    """
    return f"{prefix}{number:05d}{_SUFFIX}"


def row_groups(rows: int, group_rows: int) -> tuple[int, ...]:
    """Rows of each row group of a shard.

    >>> row_groups(2500, 1024)
    (1024, 1024, 452)
    """
    full, rest = divmod(rows, group_rows)
    return (group_rows,) * full + ((rest,) if rest else ())


@dataclass(frozen=True, eq=False)
class ShardTable:
    """The shards of one set in the order of their numbers."""

    prefix: str
    columns: pa.Table
    """Columns: SHARD_TABLE, in one chunk each."""

    @classmethod
    def of(cls, prefix: str, numbered: Iterable[tuple[int, Shard]]) -> "ShardTable":
        """From shards with ascending numbers, which determine their paths."""
        rows = [
            (number, shard.rows, shard.tokens, shard.bytes, bytes.fromhex(shard.sha256))
            for number, shard in numbered
        ]
        columns = zip(*rows, strict=True) if rows else [()] * len(SHARD_TABLE)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SHARD_TABLE, strict=True)]
        return cls(prefix, pa.table(arrays, schema=SHARD_TABLE))

    def encode(self) -> bytes:
        """The bytes of the table's file. They depend only on the shards and the version of pyarrow."""
        sink = pa.BufferOutputStream()
        # Hashes have no repeats for a dictionary, and statistics on them are useless.
        pq.write_table(
            self.columns,
            sink,
            compression="zstd",
            use_dictionary=False,
            column_encoding={"number": "DELTA_BINARY_PACKED"},
            write_statistics=False,
        )
        return bytes(sink.getvalue())

    @cached_property
    def rows(self) -> I64:
        """[shards] rows of each shard."""
        return self.column("rows")

    def column(self, name: str) -> I64:
        """[shards] the values of a column of numbers."""
        return np.asarray(self.columns[name].combine_chunks(), dtype=np.int64)

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def __getitem__(self, index: int) -> Shard:
        (row,) = self.columns.slice(range(len(self))[index], 1).to_pylist()
        return self._shard(**row)

    def __iter__(self) -> Iterator[Shard]:
        for batch in self.columns.to_batches(max_chunksize=4096):
            yield from (self._shard(**row) for row in batch.to_pylist())

    def _shard(self, number: int, sha256: bytes, **sizes: int) -> Shard:
        return Shard(path=shard_path(self.prefix, number), sha256=sha256.hex(), **sizes)

    def find(self, path: str) -> int | None:
        """The index of the shard at ``path``, or None if this table has no such shard."""
        number = path.removeprefix(self.prefix).removesuffix(_SUFFIX)
        if not (number.isascii() and number.isdecimal() and shard_path(self.prefix, int(number)) == path):
            return None
        numbers = self.column("number")
        index = bisect_left(numbers, int(number))
        return index if index < len(self) and numbers[index] == int(number) else None


def parse_shard_table(raw: bytes, entry: SequenceSet, origin: str) -> ShardTable:
    """The table of the set ``entry``.

    Raises CorpusError that names ``origin`` if it is not the table in the manifest, has other columns, or
    contradicts the set.
    """
    if hashlib.sha256(raw).hexdigest() != entry.shards.sha256:
        raise CorpusError(f"{origin}: is not the shard table in the manifest (sha256 differs)")
    try:
        columns = pq.read_table(pa.BufferReader(raw), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{origin}: cannot be read as Parquet: {error}") from error
    if not columns.schema.equals(SHARD_TABLE):
        raise CorpusError(f"{origin}: does not have the columns of a shard table")
    if any(column.null_count for column in columns.columns):
        raise CorpusError(f"{origin}: contains null values")
    table = ShardTable(entry.shards.prefix, columns)
    problem = next(_contradictions(table, entry), None)
    if problem is not None:
        raise CorpusError(f"{origin}: {problem}")
    return table


def _contradictions(table: ShardTable, entry: SequenceSet) -> Iterator[str]:
    if len(table) != entry.shards.count:
        yield f"has {len(table)} shards, but the manifest says {entry.shards.count}"
    numbers = table.column("number")
    if len(numbers) and (numbers[0] < 0 or (np.diff(numbers) <= 0).any()):
        yield "the numbers of its shards do not ascend"
    for name, total in (("rows", entry.rows), ("tokens", entry.tokens), ("bytes", entry.bytes)):
        values = table.column(name)
        if (values < 0).any():
            yield f"{name} is negative"
        # Use Python's integers, because forged values could overflow 64 bits.
        if sum(values.tolist()) != total:
            yield f"set {entry.label}: {name} is not the sum over its shards"
