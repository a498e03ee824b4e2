"""Mask rates, shares of languages and lengths as functions of the step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.orders import order_of
from trainer.data.packing import RowTable
from trainer.data.schedules import choose_by_language, language_shares, longest_at, masks_at, ramp
from trainer.data.step_plan import TrainingPlan
from trainer.data.truncation import truncate_rows
from trainer.recipe_config import LanguageSampling, LengthWarmup, MaskRule, Phase

RATES = st.floats(0.05, 0.9)
COUNTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=8).filter(any)


@given(RATES, RATES, st.integers(2, 10**6), st.data())
def test_a_ramp_starts_and_ends_exactly_and_is_monotonic(
    first: float, last: float, steps: int, data: Any
) -> None:
    assert ramp(first, last, 0, steps) == first
    assert ramp(first, last, steps - 1, steps) == pytest.approx(last, rel=1e-12)
    one, other = sorted(data.draw(st.tuples(*[st.integers(0, steps - 1)] * 2)))
    change = ramp(first, last, other, steps) - ramp(first, last, one, steps)
    assert change * (last - first) >= 0
    assert ramp(first, None, other, steps) == first


@given(st.integers(16, 512), st.integers(1, 500), st.integers(1, 40), st.integers(0, 600))
def test_the_longest_row_grows_to_the_full_length(start: int, steps: int, stairs: int, step: int) -> None:
    warmup = LengthWarmup(start=start, steps=steps, stairs=stairs)
    now, later = (longest_at(warmup, 512, at) for at in (step, step + 1))
    assert start <= now <= later <= 512
    assert longest_at(warmup, 512, 0) == start
    assert longest_at(warmup, 512, steps) == 512


@given(COUNTS, st.floats(0, 2))
def test_shares_of_languages_follow_their_rows_to_a_power(counts: list[int], exponent: float) -> None:
    rows = np.array(counts)
    shares = language_shares(rows, exponent)
    assert shares.sum() == pytest.approx(1)
    assert (shares[rows == 0] == 0).all()
    there = np.flatnonzero(rows)
    first, last = there[0], there[-1]
    if shares[first] > 1e-200 and shares[last] > 1e-200:
        ratio = float(rows[first] / rows[last]) ** exponent
        assert shares[first] / shares[last] == pytest.approx(ratio, rel=1e-6)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.data(),
)
@settings(max_examples=200)
def test_the_choice_takes_as_many_rows_as_asked_for_and_no_row_twice(
    languages: list[int], weights: list[float], data: Any
) -> None:
    wanted, step = data.draw(st.integers(1, len(languages))), data.draw(st.integers(0, 99))
    total = sum(weights)
    shares = np.array(weights) / total if total > 1e-3 else np.full(5, 0.2)
    ids = np.array(languages)
    chosen = choose_by_language(ids, shares, wanted, 7, step)
    assert len(chosen) == wanted
    assert (np.diff(chosen) > 0).all()
    assert (chosen == choose_by_language(ids, shares, wanted, 7, step)).all()
    for language in range(5):
        own = np.flatnonzero(ids == language)
        assert (np.intersect1d(own, chosen) == own[: np.isin(own, chosen).sum()]).all()


def test_rare_languages_get_their_share_in_the_mean_over_steps() -> None:
    """0.3 rows per step must not be rounded down in every step."""
    random = np.random.default_rng(1)
    shares = np.array([0.6, 0.37, 0.03])
    counts = np.zeros(3)
    for step in range(2000):
        pool = random.choice(3, 40, p=[0.8, 0.1, 0.1])
        counts += np.bincount(pool[choose_by_language(pool, shares, 10, 1, step)], minlength=3)
    # 0.37 of ten is more than the pool of 40 has of language 1 in some steps, and of language 2 rarely.
    assert counts[2] / counts.sum() == pytest.approx(0.03, abs=0.006)
    assert 0.30 < counts[1] / counts.sum() < 0.38


def test_a_phase_may_have_its_own_masks() -> None:
    rule = MaskRule(rate=0.3, end_rate=0.15)
    own = Phase(
        max_seq_length=64, global_batch=4, micro_batch_tokens=64, learning_rate=1, steps=2,
        mask_rule=MaskRule(rate=0.2, unit="span"),
    )  # fmt: skip
    plain = own.model_copy(update={"mask_rule": None, "steps": 4})
    plan = TrainingPlan([plain, own], {64: order_of([([90], 90)], 0)}, mask_rule=rule)
    rates = [plan.at(step).masks.rate for step in range(6)]
    assert rates == pytest.approx([0.3, 0.27, 0.24, 0.21, 0.2, 0.2])
    assert plan.at(5).masks.unit == "span"
    assert masks_at(None, 0, 5).rate is None


@given(st.integers(1, 300), st.integers(1, 50), st.integers(2, 5), st.integers(1, 3))
@settings(max_examples=60)
def test_a_pool_goes_through_each_epoch_as_well(rows: int, batch: int, pool: int, epochs: int) -> None:
    phase = Phase(
        max_seq_length=64, global_batch=batch, micro_batch_tokens=64, learning_rate=1, epochs=epochs
    )
    languages = LanguageSampling(exponent=0.5, pool=pool)
    plan = TrainingPlan([phase], {64: order_of([([rows], rows)], 0)}, languages=languages)
    steps = [plan.at(step) for step in range(plan.total_steps)]
    position = 0
    for step in steps:
        assert step.first_sample == position
        assert 1 <= step.rows <= min(batch, step.samples)
        position += step.samples
    assert position == rows * epochs


@pytest.mark.parametrize("pair", [True, False])
@given(st.lists(st.integers(5, 60), min_size=1, max_size=6), st.integers(5, 40), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_cut_rows_keep_their_segments_and_their_masks(
    pair: bool, lengths: list[int], longest: int, seed: int
) -> None:
    """Tokens count upwards, so each token of the result shows its original place."""
    random = np.random.default_rng(seed)
    table = _table(lengths, random, pair=pair)
    cut = truncate_rows(table, longest)
    for row, length in enumerate(lengths):
        start, size = int(cut.starts[row]), int(cut.lengths[row])
        assert size == min(length, longest)
        ids = cut.input_ids[start : start + size] - 1000 * row
        a = int(table.segment_a[row]) if pair else length
        expected_last = [0, length - 1]
        assert [ids[0], ids[-1]] == expected_last
        kept = int(cut.segment_a[row])
        assert ids[:kept].tolist() == [*range(kept - 1), a - 1]
        if pair:
            assert ids[kept:-1].tolist() == list(range(a, a + size - kept - 1))
            assert size - kept >= 2
            longer = max(kept - 2, size - kept - 1)
            if size < length:
                assert abs((kept - 2) - (size - kept - 1)) <= 1 or longer > min(a - 2, length - a - 1)
        masks = slice(int(cut.masked_starts[row]), int(cut.masked_starts[row] + cut.masked_sizes[row]))
        old = slice(int(table.masked_starts[row]), int(table.masked_starts[row] + table.masked_sizes[row]))
        assert (ids[cut.masked_positions[masks]] == cut.masked_ids[masks] - 1000 * row).all()
        survivors = set(ids[1:-1].tolist()) - {a - 1}
        expected = [i for i in (table.masked_ids[old] - 1000 * row).tolist() if i in survivors]
        assert (cut.masked_ids[masks] - 1000 * row).tolist() == expected


def _table(lengths: list[int], random: np.random.Generator, *, pair: bool) -> RowTable:
    sizes = np.array(lengths)
    starts = np.cumsum(sizes) - sizes
    a = np.array([int(random.integers(3, n - 1)) if pair else n for n in lengths])
    masked = []
    for n, first in zip(lengths, a, strict=True):
        free = [i for i in range(1, n - 1) if i != first - 1]
        masked.append(sorted(random.choice(free, min(len(free), 4), replace=False).tolist()))
    counts = np.array([len(one) for one in masked])
    positions = np.array([i for one in masked for i in one], dtype=np.int32)
    ids = np.concatenate([np.arange(n) + 1000 * row for row, n in enumerate(lengths)]).astype(np.int32)
    nothing = np.zeros(len(lengths), dtype=np.int64)
    return RowTable(
        input_ids=ids,
        starts=starts,
        lengths=sizes,
        segment_a=a,
        masked_positions=positions,
        masked_ids=ids[positions + np.repeat(starts, counts)],
        masked_starts=np.cumsum(counts) - counts,
        masked_sizes=counts,
        labels=nothing,
        lang_ids=nothing,
        row_ids=nothing,
        epochs=nothing,
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"end_rate": 0.2}, "end_rate needs rate"),
        ({"mask_share": 0.8, "random_share": 0.3}, "add up to more than 1"),
        ({"rate": 0}, "greater than 0"),
    ],
)
def test_an_impossible_mask_rule_is_refused(fields: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MaskRule(**fields)
