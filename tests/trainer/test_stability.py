"""Which steps are skipped."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.stability import MIN_HISTORY, SpikeGuard

CPU = torch.device("cpu")


def feed(guard, norms):
    decisions = []
    for norm in norms:
        tensor = torch.tensor(norm)
        bad = guard.is_bad(tensor)
        guard.record(tensor, bad)
        decisions.append(bool(bad))
    return decisions


def test_a_spike_is_skipped_and_the_next_step_is_not():
    guard = SpikeGuard(128, 6.0, CPU)
    assert not any(feed(guard, [1.0 + 0.1 * (i % 3) for i in range(20)]))
    assert feed(guard, [1e8, 1.1, 1.0]) == [True, False, False]
    assert int(guard.skipped) == 1
    assert int(guard.skipped_in_a_row) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_skipped_from_the_first_step(bad):
    guard = SpikeGuard(16, None, CPU)
    assert feed(guard, [bad, 1.0, bad, bad]) == [True, False, True, True]
    assert int(guard.skipped_in_a_row) == 2
    assert feed(SpikeGuard(16, 6.0, CPU), [bad] * 40) == [True] * 40


def test_nothing_finite_is_skipped_without_history_or_without_sigma():
    assert not any(feed(SpikeGuard(128, 6.0, CPU), [1.0] * (MIN_HISTORY - 1) + [1e9]))
    assert not any(feed(SpikeGuard(128, None, CPU), [1.0] * 50 + [1e9]))


def test_a_lasting_rise_is_accepted_after_a_few_steps():
    decisions = feed(SpikeGuard(128, 6.0, CPU), [1.0] * 60 + [30.0] * 40)
    assert decisions[60]
    assert sum(decisions) <= 15
    assert not any(decisions[80:])


@given(st.lists(st.floats(0.125, 50.0, width=32), min_size=1, max_size=60), st.integers(0, 59))
@settings(max_examples=40, deadline=None)
def test_a_resumed_guard_judges_like_an_undisturbed_one(norms, cut):
    whole = SpikeGuard(16, 2.0, CPU)
    expected = feed(whole, norms)
    first = SpikeGuard(16, 2.0, CPU)
    begun = feed(first, norms[:cut])
    second = SpikeGuard(16, 2.0, CPU)
    second.load(json.loads(json.dumps(first.state())))
    assert begun + feed(second, norms[cut:]) == expected
    assert second.state() == whole.state()


def test_a_guard_that_forgot_judges_nothing_until_it_knows_enough_again():
    guard = SpikeGuard(128, 6.0, CPU)
    feed(guard, [1.0] * 60)
    guard.forget()
    assert not any(feed(guard, [30.0] * 20))
    assert feed(guard, [1e8, 30.0]) == [True, False]
    assert int(guard.skipped) == 1


def test_another_window_begins_a_new_history():
    guard = SpikeGuard(16, 6.0, CPU)
    feed(guard, [1.0] * 20)
    other = SpikeGuard(32, 6.0, CPU)
    other.load(guard.state())
    assert feed(other, [100.0]) == [False]
