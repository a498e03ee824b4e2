"""The order of row groups equals a full sort of their hashes, however few of them are sorted at a time."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.randomness import permutation
from tests.trainer.orders import pass_rows
from trainer.data.group_order import GroupOrder

SHARDS = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(sum)
KEY = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 5))


@given(SHARDS, st.integers(1, 9), KEY, st.sampled_from([1, 2, 5, 1 << 17]))
@settings(max_examples=80, deadline=None)
def test_places_and_positions_are_those_of_a_full_sort(
    shards: Any, group_rows: int, key: Any, groups_per_bucket: int
) -> None:
    rows = pass_rows(shards, group_rows)
    sizes = [min(group_rows, total - first) for total in shards for first in range(0, total, group_rows)]
    expected = permutation(len(sizes), *key)
    starts = np.concatenate([[0], np.cumsum(np.array(sizes)[expected])])
    order = GroupOrder(rows, *key, groups_per_bucket=groups_per_bucket)
    assert order.groups == len(sizes)
    assert np.array_equal(order.starts(np.arange(len(sizes) + 1)), starts)
    place, group, start = order.find(np.arange(sum(shards)))
    assert np.array_equal(place, np.repeat(np.arange(len(sizes)), np.diff(starts)))
    assert np.array_equal(group, expected[place])
    assert np.array_equal(start, starts[place])


@given(st.integers(0, 2**63 - 1), st.data())
@settings(max_examples=5, deadline=None)
def test_a_part_of_many_groups_is_that_of_a_full_sort(seed: int, data: st.DataObject) -> None:
    groups = 300_000
    first = data.draw(st.integers(0, groups - 2000))
    order = GroupOrder(pass_rows([1] * groups, 4), seed, 1)
    _, found, _ = order.find(np.arange(first, first + 2000))
    assert np.array_equal(found, permutation(groups, seed, 1)[first : first + 2000])
