"""Training order: exactly once per epoch, by arithmetic, for any world size."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import CorpusError
from trainer.data.order import SampleOrder

SHARDS = st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5)
PASSES = st.lists(SHARDS, min_size=1, max_size=3).filter(
    lambda passes: all(sum(map(sum, shards)) > 0 for shards in passes)
)


def epoch_ids(order: SampleOrder, epoch: int) -> np.ndarray:
    samples = np.arange(order.epoch_start(epoch), order.epoch_start(epoch + 1))
    return order.locate(samples).row_id


@given(PASSES, st.integers(0, 2**63 - 1), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_epoch_has_every_row_of_its_pass_exactly_once(passes: Any, seed: int, window: int) -> None:
    order = SampleOrder(passes, seed, window)
    sizes = [sum(map(sum, shards)) for shards in passes]
    firsts = np.cumsum([0, *sizes])
    for epoch in range(2 * len(passes) + 1):
        p = epoch % len(passes)
        expected = np.arange(firsts[p], firsts[p] + sizes[p])
        assert np.array_equal(np.sort(epoch_ids(order, epoch)), expected)


@given(PASSES, st.integers(0, 2**63 - 1), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_places_exist_and_agree_with_the_row_id(passes: Any, seed: int, window: int) -> None:
    order = SampleOrder(passes, seed, window)
    places = order.locate(np.arange(2 * order.cycle_rows))
    numbered = [
        (p, s, g, r)
        for p, shards in enumerate(passes)
        for s, groups in enumerate(shards)
        for g, rows in enumerate(groups)
        for r in range(rows)
    ]
    found = zip(places.corpus_pass, places.shard, places.row_group, places.row, strict=True)
    assert [numbered[i] for i in places.row_id] == [tuple(map(int, place)) for place in found]


@given(PASSES, st.integers(0, 1000), st.integers(1, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_seek_gives_what_a_read_from_the_start_gives(
    passes: Any, seed: int, window: int, data: st.DataObject
) -> None:
    order = SampleOrder(passes, seed, window)
    everything = order.locate(np.arange(3 * order.cycle_rows))
    start = data.draw(st.integers(0, 3 * order.cycle_rows - 1))
    fresh = SampleOrder(passes, seed, window).locate(np.arange(start, 3 * order.cycle_rows))
    assert np.array_equal(fresh.row_id, everything.row_id[start:])
    assert np.array_equal(fresh.epoch, everything.epoch[start:])


@given(PASSES, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_epoch_of_is_the_inverse_of_epoch_start(passes: Any, seed: int) -> None:
    order = SampleOrder(passes, seed)
    for epoch in range(7):
        assert order.epoch_of(order.epoch_start(epoch)) == epoch
        assert order.epoch_of(order.epoch_start(epoch + 1) - 1) == epoch


def test_epochs_and_seeds_differ_and_rows_are_mixed() -> None:
    shards = [[64] * 8, [64] * 8]
    orders = [epoch_ids(SampleOrder([shards], seed), epoch) for seed in (1, 2) for epoch in (0, 1)]
    for one, other in itertools.combinations(orders, 2):
        assert not np.array_equal(one, other)
    groups = SampleOrder([shards], 1).locate(np.arange(64))
    assert len(set(zip(groups.shard, groups.row_group, strict=True))) == 1
    assert not np.array_equal(groups.row, np.arange(64))


def test_a_window_mixes_the_rows_of_its_row_groups_only() -> None:
    order = SampleOrder([[[10] * 12]], 5, window=4)
    windows = [set(order.locate(np.arange(40 * i, 40 * i + 40)).row_group) for i in range(3)]
    assert all(len(window) == 4 for window in windows)
    assert set.union(*windows) == set(range(12))
    assert len(set(order.locate(np.arange(10)).row_group)) > 1


def test_shuffling_is_uniform_enough() -> None:
    first = [int(SampleOrder([[[4], [4], [4]]], seed).locate(np.arange(1)).row_id[0]) for seed in range(2400)]
    counts = np.bincount(first, minlength=12)
    assert counts.min() > 140
    assert counts.max() < 265


def test_unequal_tiny_and_empty_shards() -> None:
    order = SampleOrder([[[65], [64], [], [63], [1]]], 3)
    assert order.cycle_rows == 193
    assert np.array_equal(np.sort(epoch_ids(order, 1)), np.arange(193))


def test_no_rows_is_refused() -> None:
    with pytest.raises(CorpusError, match="pass 1 has no rows"):
        SampleOrder([[[3]], [[]]], 0)
    with pytest.raises(CorpusError):
        SampleOrder([], 0)


def test_a_billion_rows_seek_anywhere() -> None:
    """A million row groups. The request touches one window, so it needs no pass over the rows."""
    order = SampleOrder([[[1000] * 1000 for _ in range(1000)]], 7)
    assert order.cycle_rows == 10**9
    for start in (0, 123_456_789, 999_999_900, 5_900_000_000):
        places = order.locate(np.arange(start, start + 256))
        assert len(set(places.row_id.tolist())) == 256
        assert set(places.epoch) <= {start // 10**9, start // 10**9 + 1}
