"""Steps, phases and global batches as arithmetic."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError
from tests.trainer.orders import order_of
from trainer.data.order import SampleOrder
from trainer.data.step_plan import TrainingPlan, batch_ramp
from trainer.recipe_config import BatchWarmup, Phase


def phase(length: int = 128, batch: int = 8, **fields: Any) -> Phase:
    return Phase(
        max_seq_length=length, global_batch=batch, micro_batch_tokens=4096, learning_rate=1e-3, **fields
    )


def order(rows: int = 40) -> SampleOrder:
    return order_of([([rows], rows)], seed=0)


WARMUPS = st.none() | st.builds(
    BatchWarmup, start=st.integers(1, 3), steps=st.integers(1, 9), stairs=st.integers(1, 5)
)
PHASES = st.lists(
    st.builds(
        phase,
        length=st.sampled_from([32, 64]),
        batch=st.integers(3, 11),
        steps=st.integers(1, 12),
        batch_warmup=WARMUPS,
    ),
    min_size=1,
    max_size=4,
)


@given(PHASES)
@settings(max_examples=60, deadline=None)
def test_the_samples_of_a_length_follow_one_another_without_gap(phases: Any) -> None:
    plan = TrainingPlan(phases, {32: order(), 64: order(7)})
    position = {32: 0, 64: 0}
    for step in range(plan.total_steps):
        here = plan.at(step)
        assert here.first_sample == position[here.max_seq_length]
        assert 0 < here.rows <= phases[here.phase].global_batch
        position[here.max_seq_length] += here.rows
    assert plan.total_steps == sum(one.steps for one in phases)


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 3), WARMUPS)
@settings(max_examples=80, deadline=None)
def test_a_phase_in_epochs_ends_with_its_last_row(rows: Any, batch: int, epochs: int, warmup: Any) -> None:
    if warmup is not None and warmup.start > batch:
        warmup = None
    plan = TrainingPlan([phase(128, batch, epochs=epochs, batch_warmup=warmup)], {128: order(rows)})
    steps = [plan.at(step) for step in range(plan.total_steps)]
    assert steps[-1].first_sample + steps[-1].rows == rows * epochs
    assert all(step.rows > 0 for step in steps)


@given(st.integers(0, 100), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_epochs_after_a_cut_epoch_are_whole(steps: int, epochs: int, passes: int) -> None:
    sizes = [40, 41, 38][:passes]
    phases = [phase(steps=steps)] if steps else []
    orders = {128: order_of([([size], size) for size in sizes], seed=1)}
    plan = TrainingPlan([*phases, phase(epochs=epochs)], orders)
    last = plan.phases[-1]
    assert last.first_sample == 8 * steps
    first = orders[128].epoch_of(last.first_sample)
    assert last.samples == sum(sizes[epoch % passes] for epoch in range(first, first + epochs))
    assert sum(plan.at(last.first_step + step).rows for step in range(last.steps)) == last.samples


def test_the_ramp_has_equal_stairs() -> None:
    ramp = batch_ramp(BatchWarmup(start=8, steps=8, stairs=4), 40)
    assert ramp.tolist() == [8, 8, 16, 16, 24, 24, 32, 32]
    assert np.array_equal(batch_ramp(None, 40), [])


def test_an_unknown_length_names_the_phase() -> None:
    with pytest.raises(ConfigError, match=r"phases.1.max_seq_length.*256; its lengths are 128"):
        TrainingPlan([phase(steps=1), phase(256, steps=1)], {128: order()})


def test_a_step_outside_the_run_is_an_error() -> None:
    plan = TrainingPlan([phase(steps=2)], {128: order()})
    with pytest.raises(IndexError):
        plan.at(2)
