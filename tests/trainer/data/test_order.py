"""Training order: exactly once per epoch, by arithmetic, for any world size."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CorpusError
from tests.trainer.orders import order_of, pass_rows
from trainer.data.group_order import PassRows
from trainer.data.order import SampleOrder

SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(sum)
PASSES = st.lists(st.tuples(SHARDS, st.integers(1, 9)), min_size=1, max_size=3)


# Found with the code that read the rows of each row group from the manifest (its version 2).
GOLDEN_ROWS = [
    20, 19, 18, 17, 21, 11, 7, 9, 5, 10, 6, 8, 2, 16, 4, 3, 1, 14, 12, 0, 13, 15,
    27, 33, 28, 34, 32, 26, 29, 31, 23, 22, 25, 30, 24, 12, 16, 13, 15, 14,
]  # fmt: skip


def epoch_ids(order: SampleOrder, epoch: int) -> np.ndarray:
    samples = np.arange(order.epoch_start(epoch), order.epoch_start(epoch + 1))
    return order.locate(samples).row_id


@given(PASSES, st.integers(0, 2**63 - 1), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_epoch_has_every_row_of_its_pass_exactly_once(passes: Any, seed: int, window: int) -> None:
    order = order_of(passes, seed, window)
    sizes = [sum(shards) for shards, _ in passes]
    firsts = np.cumsum([0, *sizes])
    for epoch in range(2 * len(passes) + 1):
        p = epoch % len(passes)
        expected = np.arange(firsts[p], firsts[p] + sizes[p])
        assert np.array_equal(np.sort(epoch_ids(order, epoch)), expected)


@given(PASSES, st.integers(0, 2**63 - 1), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_places_exist_and_agree_with_the_row_id(passes: Any, seed: int, window: int) -> None:
    order = order_of(passes, seed, window)
    places = order.locate(np.arange(2 * order.cycle_rows))
    numbered = [
        (p, s, g, r)
        for p, (shards, group_rows) in enumerate(passes)
        for s, total in enumerate(shards)
        for g, first in enumerate(range(0, total, group_rows))
        for r in range(min(group_rows, total - first))
    ]
    found = zip(places.corpus_pass, places.shard, places.row_group, places.row, strict=True)
    assert [numbered[i] for i in places.row_id] == [tuple(map(int, place)) for place in found]


@given(PASSES, st.integers(0, 1000), st.integers(1, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_seek_gives_what_a_read_from_the_start_gives(
    passes: Any, seed: int, window: int, data: st.DataObject
) -> None:
    order = order_of(passes, seed, window)
    everything = order.locate(np.arange(3 * order.cycle_rows))
    start = data.draw(st.integers(0, 3 * order.cycle_rows - 1))
    fresh = order_of(passes, seed, window).locate(np.arange(start, 3 * order.cycle_rows))
    assert np.array_equal(fresh.row_id, everything.row_id[start:])
    assert np.array_equal(fresh.epoch, everything.epoch[start:])


@given(PASSES, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_epoch_of_is_the_inverse_of_epoch_start(passes: Any, seed: int) -> None:
    order = order_of(passes, seed)
    for epoch in range(7):
        assert order.epoch_of(order.epoch_start(epoch)) == epoch
        assert order.epoch_of(order.epoch_start(epoch + 1) - 1) == epoch


def test_epochs_and_seeds_differ_and_rows_are_mixed() -> None:
    one_pass = pass_rows([512, 512], 64)
    orders = [epoch_ids(SampleOrder([one_pass], seed), epoch) for seed in (1, 2) for epoch in (0, 1)]
    for one, other in itertools.combinations(orders, 2):
        assert not np.array_equal(one, other)
    groups = SampleOrder([one_pass], 1).locate(np.arange(64))
    assert len(set(zip(groups.shard, groups.row_group, strict=True))) == 1
    assert not np.array_equal(groups.row, np.arange(64))


def test_a_window_mixes_the_rows_of_its_row_groups_only() -> None:
    order = SampleOrder([pass_rows([120], 10)], 5, window=4)
    windows = [set(order.locate(np.arange(40 * i, 40 * i + 40)).row_group) for i in range(3)]
    assert all(len(window) == 4 for window in windows)
    assert set.union(*windows) == set(range(12))
    assert len(set(order.locate(np.arange(10)).row_group)) > 1


def test_shuffling_is_uniform_enough() -> None:
    first = [int(order_of([([4, 4, 4], 4)], seed).locate(np.arange(1)).row_id[0]) for seed in range(2400)]
    counts = np.bincount(first, minlength=12)
    assert counts.min() > 140
    assert counts.max() < 265


def test_unequal_tiny_and_empty_shards() -> None:
    order = order_of([([65, 64, 0, 63, 1], 65)], 3)
    assert order.cycle_rows == 193
    assert np.array_equal(np.sort(epoch_ids(order, 1)), np.arange(193))


def test_no_rows_is_refused() -> None:
    with pytest.raises(CorpusError, match="pass 1 has no rows"):
        order_of([([3], 3), ([0], 3)], 0)
    with pytest.raises(CorpusError):
        SampleOrder([], 0)


def test_the_order_is_that_of_earlier_versions() -> None:
    """A run resumes with another version only if the order stays: these numbers may not change."""
    order = order_of([([7, 0, 12, 3], 5), ([9, 4], 4)], 12345, window=2)
    assert order.locate(np.arange(40)).row_id.tolist() == GOLDEN_ROWS


def test_a_pass_is_read_when_it_is_reached() -> None:
    read = []

    def shard_rows(number: int) -> np.ndarray:
        read.append(number)
        return np.array([4, 4], dtype=np.int64)

    order = SampleOrder([PassRows(8, 4, partial(shard_rows, number)) for number in range(3)], 1)
    assert (order.cycle_rows, order.epoch_of(17), read) == (24, 2, [])
    order.locate(np.arange(8, 16))
    assert read == [1]
    order.locate(np.arange(48))
    assert sorted(read) == [0, 1, 2]


def test_a_billion_rows_seek_anywhere() -> None:
    """A million row groups. The request touches one window, so it needs no pass over the rows."""
    order = order_of([([10**6] * 1000, 1000)], 7)
    assert order.cycle_rows == 10**9
    for start in (0, 123_456_789, 999_999_900, 5_900_000_000):
        places = order.locate(np.arange(start, start + 256))
        assert len(set(places.row_id.tolist())) == 256
        assert set(places.epoch) <= {start // 10**9, start // 10**9 + 1}
