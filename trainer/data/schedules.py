"""Schedules of the training data by step: masking rate, shares of languages, and the longest sequence."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.arrays import I64
from schemas.masking.targets import MaskUnit
from schemas.randomness import key_from_text, uniform
from trainer.recipe_config import LengthWarmup, MaskRule

_SEATS_TAG = key_from_text("trainer.step_rules", "languages")
Shares = npt.NDArray[np.float64]


def ramp(first: float, last: float | None, step: int, steps: int) -> float:
    """From ``first`` in step 0 linearly to ``last`` in the last of ``steps``. ``first`` if ``last`` is None.

    >>> [round(ramp(0.3, 0.15, step, 4), 3) for step in range(4)]
    [0.3, 0.25, 0.2, 0.15]
    """
    if last is None or steps < 2:
        return first
    return first + (last - first) * min(max(step, 0), steps - 1) / (steps - 1)


@dataclass(frozen=True)
class StepMasks:
    """The masking of one step. None stands for the rule of the corpus."""

    rate: float | None = None
    unit: MaskUnit | None = None
    mask_share: float | None = None
    random_share: float | None = None


def masks_at(rule: MaskRule | None, step: int, steps: int) -> StepMasks:
    """The masking in ``step`` of the ``steps`` that ``rule`` covers (Ankner et al. 2024)."""
    if rule is None:
        return StepMasks()
    rate = None if rule.rate is None else ramp(rule.rate, rule.end_rate, step, steps)
    return StepMasks(rate, rule.unit, rule.mask_share, rule.random_share)


def longest_at(warmup: LengthWarmup | None, full: int, step: int) -> int:
    """The longest sequence in ``step`` of a phase whose sequences have ``full`` tokens (Li et al. 2022).

    >>> warmup = LengthWarmup(start=32, steps=6, stairs=3)
    >>> [longest_at(warmup, 128, step) for step in (0, 1, 2, 4, 6)]
    [32, 32, 64, 96, 128]
    """
    if warmup is None or step >= warmup.steps:
        return full
    stair = step * warmup.stairs // warmup.steps
    return warmup.start + (full - warmup.start) * stair // warmup.stairs


def language_shares(rows: I64, exponent: float) -> Shares:
    """Shares [languages] in proportion to ``rows`` ** ``exponent`` (Conneau et al. 2020). 0 without rows."""
    weights = np.zeros(rows.size)
    there = rows > 0
    # Of shares, so that no power overflows.
    weights[there] = (rows[there] / rows.sum()) ** exponent
    return weights / weights.sum() if there.any() else weights


def choose_by_language(languages: I64, shares: Shares, count: int, seed: int, step: int) -> I64:
    """Indices, ascending, of ``count`` candidates, whose languages have ``shares`` if there are enough.

    ``languages`` [candidates] are indices into ``shares``. A language gets count x share places, rounded up
    or down by a draw for the step, so that the mean over steps is exact, but never more than it has
    candidates. Others fill what is left. Within a language the first candidates are chosen.
    """
    available = np.bincount(languages, minlength=shares.size)
    places = np.zeros(shares.size, dtype=np.int64)
    for draw in range(int(languages.size) + 1):
        left, spare = min(count, languages.size) - int(places.sum()), available - places
        if left == 0:
            break
        open_shares = np.where(spare > 0, shares, 0.0)
        if not open_shares.any():
            open_shares = spare.astype(np.float64)
        ends = np.cumsum(open_shares / open_shares.sum()) * left
        # The rounding of a sum must not lose a place.
        ends[np.flatnonzero(open_shares)[-1] :] = left
        ends = np.floor(ends + float(uniform(seed, _SEATS_TAG, step, draw)))
        places += np.minimum(np.diff(ends, prepend=0.0).astype(np.int64), spare)
    by_language = np.argsort(languages, kind="stable")
    starts = np.cumsum(available) - available
    turn = np.empty(languages.size, dtype=np.int64)
    turn[by_language] = np.arange(languages.size) - np.repeat(starts, available)
    return np.flatnonzero(turn < places[languages])
