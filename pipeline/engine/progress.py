"""Logs the progress, speed and ETA of a stage every few seconds."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Receives a build's progress, besides the log."""

    def planned(self, stage: str, units: int) -> None:
        """A stage with ``units`` units starts."""

    def done(self, stage: str, units: int, rate: float) -> None:
        """``units`` units are committed. ``rate`` is the stage's amount per second."""

    def failed(self, stage: str) -> None:
        """The stage has failed and will not be retried."""


_watchers: list[Watcher] = []
_recordings: list[list["Progress"]] = []


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Reports every stage that runs inside the block to ``watcher``."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def recorded() -> Iterator[list["Progress"]]:
    """Yields a list that collects the Progress of every stage that runs inside the block."""
    recording: list[Progress] = []
    _recordings.append(recording)
    try:
        yield recording
    finally:
        _recordings.pop()


def report_failure(stage: str) -> None:
    """Reports to all watchers that ``stage`` has failed and will not be retried."""
    for watcher in _watchers:
        watcher.failed(stage)


def clock(seconds: float) -> str:
    """``h:mm:ss``.

    >>> clock(3725)
    '1:02:05'
    """
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@dataclass
class Progress:
    """Counts the finished units of a stage and their amount, shown in ``amount_name`` per second."""

    stage: str
    total: int
    """Units to do in this run."""
    skipped: int = 0
    """Units that an earlier run finished."""
    amount_name: str = "MB"
    amount_scale: float = 1e6
    """Amount in one ``amount_name``."""
    interval_seconds: float = 5.0
    """Minimum time between two log lines."""
    done: int = 0
    amount: float = 0.0
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """From the start of the stage to its last finished unit."""
    _last_line: float = 0.0

    def __post_init__(self) -> None:
        for recording in _recordings:
            recording.append(self)
        resumed = f", {self.skipped} finished earlier" if self.skipped else ""
        logger.info("%s: %d units to do%s", self.stage, self.total, resumed)
        for watcher in _watchers:
            watcher.planned(self.stage, self.total + self.skipped)
            watcher.done(self.stage, self.skipped, 0.0)

    def advance(self, amount: float) -> None:
        """Counts one more finished unit."""
        self.done += 1
        self.amount += amount
        now = time.monotonic()
        self.seconds = now - self.started
        if self.done < self.total and now - self._last_line < self.interval_seconds:
            return
        self._last_line = now
        seconds = max(self.seconds, 1e-9)
        eta = (self.total - self.done) * seconds / self.done
        share = 100 * self.done / max(self.total, 1)
        rate = self.amount / self.amount_scale / seconds
        for watcher in _watchers:
            watcher.done(self.stage, self.done + self.skipped, rate)
        tail = f"ETA {clock(eta)}" if self.done < self.total else f"took {clock(seconds)}"
        logger.info(
            "%s: %d of %d units (%.0f%%), %.2f %s/s, %s",
            *(self.stage, self.done, self.total, share, rate, self.amount_name, tail),
        )
