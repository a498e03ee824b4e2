"""Tests that rows reach their buckets exactly once, even after a restart, and that partitions are even."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import storage
from pipeline.engine import shuffle_files
from pipeline.engine.partitions import partition_count, plan_partitions
from pipeline.engine.shuffle import Shuffle
from pipeline.engine.shuffle_files import BUCKET, MapOutput, data_uri, index_uri, read_index, read_pieces
from schemas.arrays import I64
from schemas.errors import CorpusError, ShuffleLostError, StorageError
from tests.support.ray_cluster import RayCluster

NUMBERS = pa.schema([pa.field("number", pa.int64()), pa.field("words", pa.list_(pa.string()))])


def rows(buckets: list[int], first: int = 0) -> pa.Table:
    numbers = list(range(first, first + len(buckets)))
    words = [[f"ð{number}"] * (number % 3) for number in numbers]
    return pa.table({BUCKET: buckets, "number": numbers, "words": words})


def contents(uri: str, buckets: int) -> dict[int, list[int]]:
    """Bucket -> numbers, read with the ranges of the index."""
    sizes = read_index(storage.read_bytes(index_uri(uri)), buckets)
    ends = np.cumsum(sizes)
    found: dict[int, list[int]] = {}
    for bucket in np.flatnonzero(sizes).tolist():
        data = storage.read_range(data_uri(uri), int(ends[bucket] - sizes[bucket]), int(sizes[bucket]))
        for of_piece, piece in read_pieces(data, NUMBERS, uri):
            assert of_piece == bucket
            batch = piece.batch()
            assert batch["words"].to_pylist() == [
                [f"ð{number}"] * (number % 3) for number in batch["number"].to_pylist()
            ]
            found.setdefault(bucket, []).extend(batch["number"].to_pylist())
    return found


@given(
    tables=st.lists(st.lists(st.integers(0, 6), max_size=20), max_size=6),
    run_bytes=st.sampled_from([1, 400, 1 << 30]),
)
def test_rows_are_sorted_by_bucket_for_any_content_of_a_run(
    tmp_path_factory: pytest.TempPathFactory, tables: list[list[int]], run_bytes: int
) -> None:
    uri = str(tmp_path_factory.mktemp("shuffle") / "map-00000")
    expected: dict[int, list[int]] = {}
    first = 0
    with pytest.MonkeyPatch.context() as patch, MapOutput(NUMBERS, 7) as output:
        patch.setattr(shuffle_files, "_RUN_BYTES", run_bytes)
        for buckets in tables:
            output.write(rows(buckets, first))
            for number, bucket in enumerate(buckets, first):
                expected.setdefault(bucket, []).append(number)
            first += len(buckets)
        output.finish(uri)
    assert contents(uri, 7) == expected


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damaged_pieces_are_named(tmp_path: Path, damage: str) -> None:
    uri = str(tmp_path / "map-00000")
    with MapOutput(NUMBERS, 1) as output:
        output.write(rows([0] * 50))
        output.finish(uri)
    data = bytearray(storage.read_bytes(data_uri(uri)))
    if damage == "flipped":
        data[-1] ^= 1
    else:
        del data[-1]
    with pytest.raises(CorpusError, match=r"^map-00000\.data: a piece of a shuffle is damaged"):
        list(read_pieces(bytes(data), NUMBERS, "map-00000.data"))
    with pytest.raises(CorpusError, match="ends too early"):
        list(read_pieces(bytes(data[:5]), NUMBERS, "map-00000.data"))


@given(
    sizes=st.lists(st.integers(0, 1 << 31), min_size=1, max_size=300),
    chosen=st.randoms(use_true_random=False),
)
def test_partitions_hold_every_pending_bucket_once(sizes: list[int], chosen: Random) -> None:
    pending = np.array([bucket for bucket in range(len(sizes)) if chosen.random() < 0.7], np.int64)
    if not len(pending):
        return
    partitions = plan_partitions(np.array(sizes), pending)
    held = [bucket for one in partitions for bucket in range(one.first, one.last + 1)]
    assert held == pending.tolist()
    assert [one.bytes for one in partitions] == [sum(sizes[one.first : one.last + 1]) for one in partitions]
    assert [one.number for one in partitions] == list(range(len(partitions)))


@given(sizes=st.lists(st.integers(0, 1 << 31), min_size=1, max_size=300))
def test_no_partition_exceeds_its_share_by_more_than_a_bucket(sizes: list[int]) -> None:
    held = [one.bytes for one in plan_partitions(np.array(sizes), np.arange(len(sizes)))]
    count = partition_count(sum(sizes), len(sizes))
    assert len(held) <= count
    assert max(held) <= -(-sum(sizes) // count) + max(sizes)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1, 64])
def test_partitions_are_even_by_bytes(seed: int, scale: int) -> None:
    """104 languages and ten passes give 23,550 buckets of uneven sizes, with six to dozens per partition."""
    sizes = np.random.default_rng(seed).lognormal(17, 0.5, 23_550).astype(np.int64) // scale
    held = np.array([one.bytes for one in plan_partitions(sizes, np.arange(len(sizes)))])
    assert held.max() / held.mean() <= 1.2


@dataclass(frozen=True)
class Numbered:
    number: int
    name: str = "\ud800 page"


def add_up(bucket: int, table: pa.Table) -> tuple[int, int]:
    return bucket, sum(table["number"].to_pylist())


def every(buckets: int) -> I64:
    return np.arange(buckets)


@pytest.mark.ray
def test_every_row_reaches_its_bucket(ray_session: RayCluster, tmp_path: Path) -> None:
    items = [Numbered(number) for number in range(50)]

    def emit(item: Numbered) -> Iterator[pa.Table]:
        yield rows([item.number % 3], item.number)

    shuffle = Shuffle(str(tmp_path / "shuffle"), NUMBERS, 4)
    sums = dict(shuffle.run(items, emit, add_up, every(4), lambda _: 10))
    assert sums == {**{bucket: sum(range(bucket, 50, 3)) for bucket in range(3)}, 3: 0}
    assert not (tmp_path / "shuffle").exists()


@pytest.mark.ray
def test_a_resumed_shuffle_moves_nothing_again(ray_session: RayCluster, tmp_path: Path) -> None:
    emitted = tmp_path / "emitted"
    emitted.mkdir()

    def emit(item: int) -> Iterator[pa.Table]:
        (emitted / f"{item}-{len(list(emitted.iterdir()))}").touch()
        yield rows([0, 1, 2], 10 * item)

    def fail(bucket: int, table: pa.Table) -> tuple[int, int]:
        if bucket == 1:
            raise StorageError("bucket 1: no space")
        return add_up(bucket, table)

    shuffle = Shuffle(str(tmp_path / "shuffle"), NUMBERS, 3)
    with pytest.raises(StorageError, match=r"^bucket 1: no space$"):
        list(shuffle.run(range(3), emit, fail, every(3), lambda _: 10))
    assert len(list(emitted.iterdir())) == 3
    # One map task had not finished when the process was killed.
    (index,) = list((tmp_path / "shuffle").glob("map-00000.index"))
    index.unlink()
    sums = dict(shuffle.run(range(3), emit, add_up, np.array([1]), lambda _: 10))
    assert sums == {1: 1 + 11 + 21}
    assert len(list(emitted.iterdir())) > 3


@pytest.mark.ray
def test_rows_that_another_process_removed_are_moved_again(ray_session: RayCluster, tmp_path: Path) -> None:
    folder = tmp_path / "shuffle"

    def emit(item: int) -> Iterator[pa.Table]:
        yield rows([0, 1], 10 * item)

    def fail(bucket: int, table: pa.Table) -> tuple[int, int]:
        raise StorageError("no space")

    shuffle = Shuffle(str(folder), NUMBERS, 2)
    with pytest.raises(StorageError):
        list(shuffle.run(range(2), emit, fail, every(2)))
    for path in folder.glob("*.data"):
        path.unlink()
    with pytest.raises(ShuffleLostError, match="moved rows were removed"):
        list(shuffle.run(range(2), emit, add_up, every(2)))
    assert sorted(shuffle.run(range(2), emit, add_up, every(2))) == [(0, 10), (1, 12)]
