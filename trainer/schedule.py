"""Learning-rate factors as pure functions of the step: nothing to save, nothing to restore.

Step 0 is the first optimizer step. During a warm-up of w steps the factor is (step + 1) / w: the first
step already moves, and step w - 1 has the peak. The decay leaves the peak after step w and comes to
``end`` one step after the last, so that no step has a rate of 0.
"""

import math
from dataclasses import dataclass
from typing import Literal

from schemas.errors import ConfigError

Shape = Literal["linear", "polynomial", "cosine", "wsd", "constant"]


@dataclass(frozen=True)
class Schedule:
    """``factor(step)`` of the peak learning rate.

    linear: straight to the end (Devlin et al. 2019). polynomial: (1 - x)^power (You et al. 2020 with
    1, NVIDIA's LAMB recipe with 0.5). cosine: half a wave (Loshchilov & Hutter 2017). wsd: warm-up,
    stable, and in the last ``decay`` steps straight to the end (Zhai et al. 2022, Hu et al. 2024).
    Raises ConfigError when warm-up and decay do not fit into the total.
    """

    shape: Shape
    total: int
    """Steps of the span."""
    warmup: int = 0
    """Steps of the warm-up."""
    decay: int = 0
    """Steps of the final decay, for wsd."""
    power: float = 1.0
    """Exponent, for polynomial."""
    end: float = 0.0
    """Factor where the decay ends; constant never comes to it."""

    def __post_init__(self) -> None:
        used = self.warmup + (self.decay if self.shape == "wsd" else 0)
        if self.total < 1 or self.warmup < 0 or used > self.total:
            raise ConfigError(
                f"schedule: warmup {self.warmup} and decay {self.decay} do not fit into {self.total} steps"
            )

    def factor(self, step: int) -> float:
        """The factor in [0, 1] at ``step``; after the last step it stays what it was there."""
        step = min(max(step, 0), self.total - 1)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        length = self.decay if self.shape == "wsd" else self.total - self.warmup
        left = self.total - step
        if left >= length:
            return 1.0
        return self.end + (1.0 - self.end) * self._remaining(left / length)

    def _remaining(self, left: float) -> float:
        """What remains of the way down when the share ``left`` of its steps is still to come."""
        if self.shape == "cosine":
            return 0.5 - 0.5 * math.cos(math.pi * left)
        return math.pow(left, self.power) if self.shape == "polynomial" else left


def steps_of(amount: float, total: int) -> int:
    """A length of the config in steps: a share of ``total`` below 1, a number of steps from 1 on."""
    return round(amount * total) if amount < 1 else int(amount)
