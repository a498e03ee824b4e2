"""Compares learning rates over the steps with values computed manually."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from trainer.optim.schedule import LRSchedule, Shape, steps_of

SHAPES = list(get_args(Shape))


def test_linear_equals_values_computed_manually() -> None:
    schedule = LRSchedule("linear", total=10, warmup=2)
    factors = [schedule.factor(step) for step in range(10)]
    assert factors == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_polynomial_is_the_power_of_the_linear_one() -> None:
    linear = LRSchedule("linear", total=50, warmup=5)
    root = LRSchedule("polynomial", total=50, warmup=5, power=0.5)
    for step in range(5, 50):
        assert root.factor(step) == pytest.approx(math.sqrt(linear.factor(step)))


def test_cosine_is_halfway_down_in_the_middle() -> None:
    schedule = LRSchedule("cosine", total=100, warmup=20, end=0.1)
    assert schedule.factor(20) == 1
    assert schedule.factor(60) == pytest.approx(0.55)
    assert schedule.factor(99) == pytest.approx(0.1, abs=0.001)


def test_wsd_sqrt_falls_fast_at_first() -> None:  # Hägele et al. 2024
    schedule = LRSchedule("wsd_sqrt", total=100, warmup=10, decay=20)
    assert {schedule.factor(step) for step in range(9, 81)} == {1.0}
    assert schedule.factor(85) == pytest.approx(1 - math.sqrt(5 / 20))
    assert schedule.factor(99) == pytest.approx(1 - math.sqrt(19 / 20))


def test_wsd_is_flat_before_its_decay() -> None:
    schedule = LRSchedule("wsd", total=100, warmup=10, decay=20)
    assert {schedule.factor(step) for step in range(9, 81)} == {1.0}
    assert schedule.factor(90) == pytest.approx(0.5)
    assert schedule.factor(99) == pytest.approx(0.05)


@given(st.sampled_from(SHAPES), st.integers(1, 500), st.data())
def test_rises_then_falls_and_stays_in_range(shape: Shape, total: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, total))
    decay = data.draw(st.integers(0, total - warmup))
    end = data.draw(st.floats(0, 1))
    schedule = LRSchedule(shape, total, warmup, decay, power=2.0, end=end)
    factors = [schedule.factor(step) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert max(factors) == 1
    assert min(factors[warmup:], default=end) >= min(end, 1) - 1e-12
    assert schedule.factor(total + 7) == factors[-1]


@pytest.mark.parametrize(("warmup", "decay"), [(11, 0), (6, 5), (-1, 0)])
def test_spans_that_do_not_fit_are_refused(warmup: int, decay: int) -> None:
    with pytest.raises(ConfigError, match="do not fit into 10 steps"):
        LRSchedule("wsd", total=10, warmup=warmup, decay=decay)


def test_lengths_are_shares_below_one_and_steps_from_one_on() -> None:
    assert [steps_of(amount, 1000) for amount in (0.0, 0.01, 0.5, 1, 300)] == [0, 10, 500, 1, 300]
