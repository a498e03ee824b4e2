"""Computes round ticks and short labels for the axes of all charts."""

import math


def ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of a round step (1, 2 or 5 times a power of ten) from ``low`` to ``high``.

    The step is the smallest with at most about ``count`` ticks.

    >>> ticks(0, 90, 5)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    # Tolerate the rounding of the logarithm.
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def short(value: float) -> str:
    """``12``, ``3.4k``, ``5.6M``, ``7.8G``."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"
