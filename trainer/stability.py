"""Which optimizer steps are skipped: decided on the device, the same on every rank.

A step is skipped when the norm of its gradient is not finite, or lies more than ``sigma`` standard
deviations above the mean of the last norms (the rule of OLMo-core's skip-step optimizers). The deviation
counts as at least half of the mean, so that a calm stretch does not make every rise a spike, and nothing
is judged before MIN_HISTORY norms are known. A skipped norm enters the history as the limit that it broke:
one spike moves the limit little, and a lasting rise is accepted after a few steps.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from schemas.errors import BertmillError
from trainer.ranks import Ranks

MIN_HISTORY = 16
_LEAST_DEVIATION = 0.5


class SpikeGuard:
    """The norms of the last steps, on ``device``."""

    def __init__(self, window: int, sigma: float | None, device: torch.device) -> None:
        self._window, self._sigma = window, sigma
        self._norms = torch.zeros(window, device=device)
        self._seen = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=device)

    def limit(self) -> Tensor:
        """The largest norm that is not a spike, 0-d; infinite while there is none."""
        infinite = torch.full_like(self._norms[0], torch.inf)
        if self._sigma is None:
            return infinite
        known = torch.arange(self._window, device=self._norms.device) < self._seen
        count = known.sum().clamp(min=1)
        mean = torch.where(known, self._norms, 0).sum() / count
        variance = torch.where(known, (self._norms - mean) ** 2, 0).sum() / count
        deviation = torch.maximum(variance.sqrt(), _LEAST_DEVIATION * mean)
        return torch.where(self._seen >= MIN_HISTORY, mean + self._sigma * deviation, infinite)

    def is_bad(self, norm: Tensor) -> Tensor:
        """Bool, 0-d: whether a step with this gradient norm is to be skipped. Changes nothing."""
        return ~torch.isfinite(norm) | (norm > self.limit())

    def record(self, norm: Tensor, skip: Tensor) -> None:
        """Takes account of a step that had ``norm`` and was skipped where ``skip`` is true."""
        entry = torch.where(torch.isnan(norm), torch.inf, norm).minimum(self.limit())
        slot = torch.arange(self._window, device=norm.device) == self._seen % self._window
        use = torch.isfinite(entry)
        self._norms = torch.where(slot & use, entry, self._norms)
        self._seen = self._seen + use
        self.skipped = self.skipped + skip
        self.skipped_in_a_row = torch.where(skip, self.skipped_in_a_row + 1, 0)

    def forget(self) -> None:
        """Begins the history anew: norms at another length or batch size say nothing of those to come."""
        self._seen = torch.zeros_like(self._seen)

    def state(self) -> dict[str, Any]:
        """JSON. Floats keep every bit, so a resumed run judges as an undisturbed one."""
        return {
            "norms": self._norms.tolist(),
            "seen": int(self._seen),
            "skipped": int(self.skipped),
            "skipped_in_a_row": int(self.skipped_in_a_row),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes over ``state``; a history of another window length is begun anew."""
        device = self._norms.device
        if len(state["norms"]) == self._window:
            self._norms = torch.tensor(state["norms"], device=device)
            self._seen = torch.tensor(state["seen"], dtype=torch.int64, device=device)
        self.skipped = torch.tensor(state["skipped"], dtype=torch.int64, device=device)
        self.skipped_in_a_row = torch.tensor(state["skipped_in_a_row"], dtype=torch.int64, device=device)


def check_ranks_agree(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, step: int) -> None:
    """Compares the bits of all parameters between the ranks.

    Raises BertmillError on every rank, naming the first parameter that differs.
    """
    names, digests = [], []
    for name, parameter in parameters:
        names.append(name)
        # The bits as integers: their sum is exact, so it does not depend on the order of adding.
        digests.append(parameter.detach().contiguous().view(torch.int32).sum(dtype=torch.int64))
    largest = ranks.max_on_device(torch.stack(digests))
    smallest = -ranks.max_on_device(-torch.stack(digests))
    differing = (largest != smallest).nonzero().flatten().tolist()
    if differing:
        raise BertmillError(
            f"after step {step} the ranks hold different weights: {names[differing[0]]}"
            f" and {len(differing) - 1} other parameters"
        )
