"""Pure functions of measurements: how many steps fit into the time, and which learning rate is best."""

import math
import statistics
from collections.abc import Mapping, Sequence

from schemas.errors import ConfigError

RESERVE = 0.05
"""Share of the time that is kept for the start, evaluations and checkpoints."""


def step_seconds(lines: Sequence[tuple[int, float]], length: int) -> float:
    """The median seconds of a step of ``length``, of (length, seconds) of each line of a log.

    The first half of the lines is left out, in which a program compiles and reads for the first time.

    >>> step_seconds([(128, 9.0), (128, 0.3), (128, 0.2), (128, 0.2), (512, 1.0)], 128)
    0.2
    """
    own = [seconds for of, seconds in lines if of == length]
    if not own:
        raise ConfigError(f"the measuring run has no line of sequences of {length}; it needs more steps")
    return statistics.median(own[len(own) // 2 :])


def fit_steps(seconds: float, steps: Sequence[float], shares: Sequence[float]) -> list[int]:
    """Steps of each phase in ``seconds``, when a step takes ``steps`` seconds, at least 1 of each.

    ``shares`` are those of the phases in the time.

    >>> fit_steps(1000, [0.5, 1.0], [0.8, 0.2])
    [1520, 190]
    """
    usable = seconds * (1 - RESERVE) / sum(shares)
    return [max(1, math.floor(usable * share / one)) for share, one in zip(shares, steps, strict=True)]


def best_rate(losses: Mapping[float, float | None]) -> float:
    """The lr with the lowest held-out loss, and among equal losses the smallest. Failed runs are None or NaN.

    Raises ConfigError when all have failed.

    >>> best_rate({5e-4: 3.2, 8e-4: 3.1, 1.2e-3: None})
    0.0008
    """
    finished = {rate: loss for rate, loss in losses.items() if loss is not None and math.isfinite(loss)}
    if not finished:
        raise ConfigError("every run of the learning-rate search has failed; see their logs")
    return min(sorted(finished), key=finished.__getitem__)
