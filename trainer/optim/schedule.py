"""Learning rate factors as pure functions of the step: nothing to save, nothing to restore.

Step 0 is the first optimizer step. During a warm-up of w steps the factor is (step + 1) / w, so the first
step already changes the weights and step w - 1 has the peak. The decay leaves the peak after step w and
reaches ``end`` one step after the last, so no step has a learning rate of 0.
"""

import math
from dataclasses import dataclass
from typing import Literal

from schemas.errors import ConfigError

Shape = Literal["linear", "polynomial", "cosine", "wsd", "wsd_sqrt", "constant"]
# Shapes with a stable part before a decay of a given length.
_STABLE = ("wsd", "wsd_sqrt")


@dataclass(frozen=True)
class LRSchedule:
    """``factor(step)`` of the peak learning rate.

    linear: linear decay (Devlin et al. 2019). polynomial: (1 - x)^power (You et al. 2020 with power 1,
    NVIDIA's LAMB recipe with 0.5). cosine: half a cosine wave (Loshchilov & Hutter 2017). wsd: warm-up,
    stable, and linear decay in the last ``decay`` steps (Zhai et al. 2022, Hu et al. 2024). wsd_sqrt: the
    same with a decay of 1 - sqrt(x), which ended at a lower loss (Hägele et al. 2024).
    Raises ConfigError when warm-up and decay do not fit into the total.

    >>> schedule = LRSchedule("linear", total=10, warmup=2)
    >>> [round(schedule.factor(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """

    shape: Shape
    total: int
    """Steps of the span: the run or a phase."""
    warmup: int = 0
    """Steps of the warm-up."""
    decay: int = 0
    """Steps of the final decay, for wsd and wsd_sqrt."""
    power: float = 1.0
    """Exponent, for polynomial."""
    end: float = 0.0
    """Factor at the end of the decay. ``constant`` does not use it."""

    def __post_init__(self) -> None:
        used = self.warmup + (self.decay if self.shape in _STABLE else 0)
        if self.total < 1 or self.warmup < 0 or used > self.total:
            raise ConfigError(
                f"schedule: warmup {self.warmup} and decay {self.decay} do not fit into {self.total} steps"
            )

    def factor(self, step: int) -> float:
        """The factor in [0, 1] at ``step``. After the last step it stays at its last value."""
        step = min(max(step, 0), self.total - 1)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        length = self.decay if self.shape in _STABLE else self.total - self.warmup
        remaining = self.total - step
        if remaining >= length:
            return 1.0
        return self.end + (1.0 - self.end) * self._decay_factor(remaining / length)

    def _decay_factor(self, remaining: float) -> float:
        """The factor between 1 and 0 when the share ``remaining`` of the decay is still to come."""
        if self.shape == "cosine":
            return 0.5 - 0.5 * math.cos(math.pi * remaining)
        if self.shape == "wsd_sqrt":
            return 1.0 - math.sqrt(1.0 - remaining)
        return math.pow(remaining, self.power) if self.shape == "polynomial" else remaining


def steps_of(amount: float, total: int) -> int:
    """A length from the config in steps: a share of ``total`` if below 1, otherwise a number of steps.

    >>> steps_of(0.1, 1000), steps_of(25, 1000)
    (100, 25)
    """
    return round(amount * total) if amount < 1 else int(amount)
