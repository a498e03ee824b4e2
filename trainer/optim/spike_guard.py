"""Skips optimizer steps with an abnormal gradient norm: decided on the device, the same on every rank.

A step is skipped when the norm of its gradient is not finite, or is more than ``sigma`` standard
deviations above the mean of the last norms (the rule of OLMo-core's skip-step optimizers). The deviation
counts as at least half of the mean, so that a rise after a calm stretch is not a spike. No finite norm is
a spike before MIN_HISTORY norms are known. A skipped norm enters the history as the limit that it exceeded,
so one spike moves the limit little.

A skip changes the batch but not the weights. If the next norms are equally high, the rise comes from the
weights, and further skips cannot end it. The limit therefore doubles with each skip in a row: a lasting rise
to R times the limit skips at most 1 + log2(R) steps in a row, for any window.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from schemas.errors import BertmillError
from trainer.checkpoint.manifest import SpikeGuardState
from trainer.distributed.ranks import Ranks

MIN_HISTORY = 16
_LEAST_DEVIATION = 0.5
"""Of the mean."""
_MAX_DOUBLINGS = 64
"""2**64 times a norm is finite in fp32."""

_EVENT: Callable[[], Any] = torch.cuda.Event


class SpikeGuard:
    """The norms of the last steps, on ``device``."""

    def __init__(
        self, window: int, sigma: float | None, device: torch.device, max_skipped: int | None = None
    ) -> None:
        """``max_skipped`` skips in a row are too many: from then on every step is skipped."""
        self._window, self._sigma, self._max_skipped = window, sigma, max_skipped
        self._norms = torch.zeros(window, device=device)
        self._recorded = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.consecutive_skips = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def too_many(self) -> Tensor:
        """Bool, 0-d: whether too many steps in a row were skipped, so that the weights stay as they are."""
        if self._max_skipped is None:
            return torch.zeros_like(self.consecutive_skips, dtype=torch.bool)
        return self.consecutive_skips >= self._max_skipped

    def limit(self) -> Tensor:
        """The largest norm that is not a spike, 0-d, infinite while the history is too short."""
        infinite = torch.full_like(self._norms[0], torch.inf)
        if self._sigma is None:
            return infinite
        known = torch.arange(self._window, device=self._norms.device) < self._recorded
        count = known.sum().clamp(min=1)
        mean = torch.where(known, self._norms, 0).sum() / count
        variance = torch.where(known, (self._norms - mean) ** 2, 0).sum() / count
        deviation = torch.maximum(variance.sqrt(), _LEAST_DEVIATION * mean)
        doubled = torch.exp2(self.consecutive_skips.clamp(max=_MAX_DOUBLINGS).float())
        return torch.where(
            self._recorded >= MIN_HISTORY, (mean + self._sigma * deviation) * doubled, infinite
        )

    def is_bad(self, norm: Tensor) -> Tensor:
        """Bool, 0-d: whether to skip a step with this gradient norm. Does not change the history."""
        return ~torch.isfinite(norm) | (norm > self.limit()) | self.too_many

    def record(self, norm: Tensor, skip: Tensor) -> None:
        """Adds a step with this norm, and whether it was skipped, to the history."""
        entry = torch.where(torch.isnan(norm), torch.inf, norm).minimum(self.limit())
        slot = torch.arange(self._window, device=norm.device) == self._recorded % self._window
        use = torch.isfinite(entry)
        self._norms = torch.where(slot & use, entry, self._norms)
        self._recorded = self._recorded + use
        self.skipped = self.skipped + skip
        self.consecutive_skips = torch.where(skip, self.consecutive_skips + 1, 0)

    def forget(self) -> None:
        """Clears the history, because norms at another length or batch size are not comparable."""
        self._recorded = torch.zeros_like(self._recorded)

    def state(self) -> SpikeGuardState:
        """What a checkpoint keeps. Floats keep every bit, so a resumed run skips the same steps."""
        return SpikeGuardState(
            norms=self._norms.tolist(),
            seen=int(self._recorded),
            skipped=int(self.skipped),
            consecutive_skips=int(self.consecutive_skips),
        )

    def load(self, state: SpikeGuardState) -> None:
        """Restores ``state``. The history stays empty if the window has another length."""
        device = self._norms.device
        if len(state.norms) == self._window:
            self._norms = torch.tensor(state.norms, device=device)
            self._recorded = torch.tensor(state.seen, dtype=torch.int64, device=device)
        self.skipped = torch.tensor(state.skipped, dtype=torch.int64, device=device)
        skips = state.consecutive_skips
        if self._max_skipped is not None and skips >= self._max_skipped:
            # The last attempt ended for too many skips. A restart gets the full number again.
            skips = 0
        self.consecutive_skips = torch.tensor(skips, dtype=torch.int64, device=device)


class DelayedFlag:
    """A bool on the device that the host reads a step or two late, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._value = torch.zeros((), dtype=torch.bool, pin_memory=self._on_gpu)
        self._copied: Any = None
        self._flag = False

    def post(self, flag: Tensor) -> None:
        """Starts to copy ``flag`` (0-d) to the host, unless the last copy is still in progress."""
        if not self._on_gpu:
            self._flag = bool(flag)
        elif self._copied is None or self._copied.query():
            self.is_set()
            self._value.copy_(flag, non_blocking=True)
            self._copied = _EVENT()
            self._copied.record()

    def is_set(self) -> bool:
        """Whether the flag was set in the newest copy that has arrived."""
        if self._copied is not None and self._copied.query():
            self._flag = self._flag or bool(self._value)
        return self._flag


def check_ranks_agree(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, step: int) -> None:
    """Compares the bits of all parameters between the ranks.

    Raises BertmillError on every rank, naming the first parameter that differs.
    """
    names, digests = [], []
    for name, parameter in parameters:
        names.append(name)
        # The bits as integers: their sum is exact, so it does not depend on the order of addition.
        digests.append(parameter.detach().contiguous().view(torch.int32).sum(dtype=torch.int64))
    largest = ranks.max_on_device(torch.stack(digests))
    smallest = -ranks.max_on_device(-torch.stack(digests))
    differing = (largest != smallest).nonzero().flatten().tolist()
    if differing:
        raise BertmillError(
            f"after step {step} the ranks have different weights: {names[differing[0]]}"
            f" and {len(differing) - 1} other parameters; resume from the last checkpoint"
        )
