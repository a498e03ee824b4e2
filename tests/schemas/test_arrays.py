"""Compares sets of numbers with NumPy's own functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import are_among, distinct_values

# Few values, so that they repeat, and both ends of the range.
NUMBERS = st.lists(st.integers(0, 5) | st.sampled_from([2**63, 2**64 - 1]), max_size=40)


@given(NUMBERS)
def test_distinct_is_numpys_unique(numbers: list[int]) -> None:
    values = np.array(numbers, np.uint64)
    assert np.array_equal(distinct_values(values), np.unique(values))


@given(NUMBERS, NUMBERS)
def test_membership_is_numpys(numbers: list[int], known: list[int]) -> None:
    values, ascending = np.array(numbers, np.uint64), np.unique(np.array(known, np.uint64))
    assert np.array_equal(are_among(values, ascending), np.isin(values, ascending))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_the_kind_of_number_stays(kind: type) -> None:
    assert distinct_values(np.array([3, 1, 3], kind)).dtype == kind
