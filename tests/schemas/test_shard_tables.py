"""Tests that shard tables are read as written, and that errors name a wrong table."""

import hashlib
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.columns.shard_table import SHARD_TABLE
from schemas.errors import CorpusError
from schemas.manifest import SequenceSet, ShardTableFile
from schemas.shard_tables import (
    Shard,
    ShardTable,
    parse_shard_table,
    row_groups,
    shard_path,
)

PREFIX = "data/len128/train-p00-"


def shard(number: int) -> Shard:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    path = shard_path(PREFIX, number)
    return Shard(path=path, rows=number + 1, tokens=100 * number, bytes=10**9 + number, sha256=digest)


def table_of(numbers: list[int]) -> ShardTable:
    return ShardTable.of(PREFIX, [(number, shard(number)) for number in numbers])


def entry_of(table: ShardTable, raw: bytes, **fields: Any) -> SequenceSet:
    """The manifest's entry for a set with this table."""
    sums = {name: int(table.column(name).sum()) for name in ("rows", "tokens", "bytes")}
    file = ShardTableFile(
        path="manifest/t.parquet",
        sha256=hashlib.sha256(raw).hexdigest(),
        count=len(table),
        prefix=PREFIX,
        row_group_rows=1024,
    )
    known = {"name": "len128", "split": "train", "max_seq_length": 128, "max_predictions": 20}
    return SequenceSet(**{**known, "pass_number": 0, "languages": {}, "shards": file, **sums, **fields})


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=20))
@settings(max_examples=25, deadline=None)
def test_a_table_is_read_as_it_was_written(numbers: list[int]) -> None:
    numbers.sort()
    raw = table_of(numbers).encode()
    assert raw == table_of(numbers).encode()
    table = parse_shard_table(raw, entry_of(table_of(numbers), raw), "t")
    assert list(table) == [table[index] for index in range(len(table))] == [shard(one) for one in numbers]
    assert table.rows.tolist() == [one + 1 for one in numbers]
    assert [table.find(shard(one).path) for one in numbers] == list(range(len(numbers)))


@pytest.mark.parametrize(
    "path",
    ["", "x", f"{PREFIX}00002.parquet", f"{PREFIX}3.parquet", f"{PREFIX}00003", f"{PREFIX}000003.parquet"],
)
def test_a_path_of_no_shard_is_not_found(path: str) -> None:
    assert table_of([1, 3]).find(path) is None


def test_row_groups_follow_from_the_rows() -> None:
    assert row_groups(0, 4) == ()
    assert row_groups(4, 4) == (4,)
    assert row_groups(9, 4) == (4, 4, 1)


def rewritten(change: Callable[[pa.Table], pa.Table]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(change(table_of([1, 2, 3]).columns), sink)
    return sink.getvalue()


def with_column(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = SHARD_TABLE.get_field_index(name)
        nullable = SHARD_TABLE.field(name).with_nullable(None in values)
        return table.set_column(place, nullable, pa.array(values, nullable.type))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["bytes"]), "does not have the columns of a shard table"),
        (with_column("rows", [2, None, 4]), "does not have the columns of a shard table"),
        (lambda table: table.slice(1), "has 2 shards, but the manifest says 3"),
        (with_column("number", [1, 1, 3]), "the numbers of its shards do not ascend"),
        (with_column("number", [-1, 2, 3]), "the numbers of its shards do not ascend"),
        (with_column("rows", [2, 3, 5]), "set len128/train/0: rows is not the sum over its shards"),
        (with_column("rows", [-2, 3, 8]), "rows is negative"),
        (with_column("tokens", [2**62, 2**62, 2**62]), "tokens is not the sum over its shards"),
        (with_column("bytes", [1, 2, 3]), "bytes is not the sum over its shards"),
    ],
)
def test_a_table_that_contradicts_the_manifest_is_named(
    change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    raw = rewritten(change)
    with pytest.raises(CorpusError, match=rf"^t: [^\n]*{message}$"):
        parse_shard_table(raw, entry_of(table_of([1, 2, 3]), raw), "t")


def test_another_file_and_a_damaged_one_are_named() -> None:
    table = table_of([1, 2, 3])
    raw = table.encode()
    with pytest.raises(CorpusError, match=r"^t: is not the shard table in the manifest \(sha256 differs\)$"):
        parse_shard_table(raw[:-1], entry_of(table, raw), "t")
    with pytest.raises(CorpusError, match=r"^t: cannot be read as Parquet: [^\n]*$"):
        parse_shard_table(raw[:-8], entry_of(table, raw[:-8]), "t")
