"""The distance by which the trial of fused layers judges them."""

import math

import pytest
import torch

from trainer.model.kernel_check import largest_distance


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_nan_in_any_pair_is_not_lost(wrong: int) -> None:
    pairs = [(torch.ones(4), torch.ones(4)) for _ in range(2)]
    pairs[wrong][0][1] = math.nan
    assert math.isnan(largest_distance(pairs))


def test_the_largest_distance_counts() -> None:
    pairs = [(torch.full((4,), value), torch.ones(4)) for value in (1.25, 1.5, 1.0)]
    assert largest_distance(pairs) == 0.5
