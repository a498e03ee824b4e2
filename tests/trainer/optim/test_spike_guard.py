"""Which steps are skipped."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint.manifest import SpikeGuardState
from trainer.config import Stability
from trainer.optim.spike_guard import MIN_HISTORY, SpikeGuard

CPU = torch.device("cpu")


def feed(guard: SpikeGuard, norms: Any) -> Any:
    decisions = []
    for norm in norms:
        tensor = torch.tensor(norm)
        bad = guard.is_bad(tensor)
        guard.record(tensor, bad)
        decisions.append(bool(bad))
    return decisions


def test_a_spike_is_skipped_and_the_next_step_is_not() -> None:
    guard = SpikeGuard(128, 6.0, CPU)
    assert not any(feed(guard, [1.0 + 0.1 * (i % 3) for i in range(20)]))
    assert feed(guard, [1e8, 1.1, 1.0]) == [True, False, False]
    assert int(guard.skipped) == 1
    assert int(guard.consecutive_skips) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_skipped_from_the_first_step(bad: float) -> None:
    guard = SpikeGuard(16, None, CPU)
    assert feed(guard, [bad, 1.0, bad, bad]) == [True, False, True, True]
    assert int(guard.consecutive_skips) == 2
    assert feed(SpikeGuard(16, 6.0, CPU), [bad] * 40) == [True] * 40


def test_nothing_finite_is_skipped_without_history_or_without_sigma() -> None:
    assert not any(feed(SpikeGuard(128, 6.0, CPU), [1.0] * (MIN_HISTORY - 1) + [1e9]))
    assert not any(feed(SpikeGuard(128, None, CPU), [1.0] * 50 + [1e9]))


@pytest.mark.parametrize("rise", [8.0, 30.0, 1000.0, 1e8])
@pytest.mark.parametrize("known", [MIN_HISTORY, 60, 128, 500])
def test_a_lasting_rise_is_accepted_after_a_few_steps(known: int, rise: float) -> None:
    """The limit over equal norms of 1 is 1 + 6 x 0.5 = 4, and doubles with each skip in a row."""
    decisions = feed(SpikeGuard(128, 6.0, CPU), [1.0] * known + [rise] * 60)
    assert not any(decisions[:known])
    skips = decisions[known:]
    assert 1 <= skips.index(False) <= 1 + math.log2(rise / 4.0)
    # The history still has few of the new norms, so a single later one may exceed the limit again.
    assert not any(one and other for one, other in pairwise(skips[skips.index(False) :]))
    assert sum(skips) <= 4 + math.log2(rise / 4.0)
    assert not any(skips[20:])


def test_the_limit_returns_after_a_spike() -> None:
    guard = SpikeGuard(128, 6.0, CPU)
    feed(guard, [1.0] * 128)
    before = guard.limit()
    assert feed(guard, [100.0, 100.0, 1.0]) == [True, True, False]
    assert before < guard.limit() < 1.5 * before


def test_the_same_batch_again_is_accepted_before_the_run_stops() -> None:
    """A repeated batch has the same gradient, so only a higher limit ends the skips."""
    limit, in_a_row = 4.0, 0
    guard = SpikeGuard(128, 6.0, CPU)
    feed(guard, [1.0] * 128)
    while feed(guard, [1e4 * limit]) == [True]:
        in_a_row += 1
    assert in_a_row < Stability().max_skipped


@given(st.lists(st.floats(0.125, 50.0, width=32), min_size=1, max_size=60), st.integers(0, 59))
@settings(max_examples=40, deadline=None)
def test_a_resumed_guard_decides_like_an_undisturbed_one(norms: Any, cut: int) -> None:
    whole = SpikeGuard(16, 2.0, CPU)
    expected = feed(whole, norms)
    first = SpikeGuard(16, 2.0, CPU)
    begun = feed(first, norms[:cut])
    second = SpikeGuard(16, 2.0, CPU)
    second.load(SpikeGuardState.model_validate_json(first.state().model_dump_json()))
    assert begun + feed(second, norms[cut:]) == expected
    assert second.state() == whole.state()


def test_a_guard_that_forgot_judges_nothing_until_it_knows_enough_again() -> None:
    guard = SpikeGuard(128, 6.0, CPU)
    feed(guard, [1.0] * 60)
    guard.forget()
    assert not any(feed(guard, [30.0] * 20))
    assert feed(guard, [1e8, 30.0]) == [True, False]
    assert int(guard.skipped) == 1


def test_another_window_begins_a_new_history() -> None:
    guard = SpikeGuard(16, 6.0, CPU)
    feed(guard, [1.0] * 20)
    other = SpikeGuard(32, 6.0, CPU)
    other.load(guard.state())
    assert feed(other, [100.0]) == [False]
