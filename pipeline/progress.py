"""One log line every few seconds: how far a stage is, how fast, and when it will be done."""

import logging
import time
from dataclasses import dataclass, field

LOG = logging.getLogger("bertmill.build")


def clock(seconds: float) -> str:
    """``h:mm:ss``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@dataclass
class Progress:
    """Counts finished units and what they held; ``amount`` is in ``unit_name`` (bytes, words, ...)."""

    stage: str
    total: int
    skipped: int = 0
    amount_name: str = "MB"
    amount_scale: float = 1e6
    interval_seconds: float = 5.0
    done: int = 0
    amount: float = 0.0
    started: float = field(default_factory=time.monotonic)
    _last: float = 0.0

    def __post_init__(self) -> None:
        again = f", {self.skipped} done before" if self.skipped else ""
        LOG.info("%s: %d units to do%s", self.stage, self.total, again)

    def advance(self, amount: float) -> None:
        """One more unit is done."""
        self.done += 1
        self.amount += amount
        now = time.monotonic()
        if self.done < self.total and now - self._last < self.interval_seconds:
            return
        self._last = now
        seconds = max(now - self.started, 1e-9)
        left = (self.total - self.done) * seconds / self.done
        share = 100 * self.done / max(self.total, 1)
        rate = self.amount / self.amount_scale / seconds
        tail = f"eta {clock(left)}" if self.done < self.total else f"took {clock(seconds)}"
        LOG.info(
            "%s: %d of %d units (%.0f %%), %.2f %s/s, %s",
            *(self.stage, self.done, self.total, share, rate, self.amount_name, tail),
        )
