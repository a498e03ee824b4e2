"""One log line every few seconds: how far a stage is, how fast, and when it will be done."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

LOG = logging.getLogger("bertmill.build")


class Watcher(Protocol):
    """Who is told of a build's progress beside the log."""

    def planned(self, stage: str, units: int) -> None:
        """A stage begins, with ``units`` units in all."""

    def done(self, stage: str, units: int, rate: float) -> None:
        """``units`` units are committed; ``rate`` is the stage's amount a second."""

    def failed(self, stage: str) -> None:
        """The stage has failed for good."""


_watchers: list[Watcher] = []
_recordings: list[list["Progress"]] = []


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tells ``watcher`` of all stages that run inside."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def recorded() -> Iterator[list["Progress"]]:
    """Gives a list that the progress of every stage which runs inside is put on."""
    found: list[Progress] = []
    _recordings.append(found)
    try:
        yield found
    finally:
        _recordings.pop()


def tell_failed(stage: str) -> None:
    """Tells the watchers that ``stage`` has failed for good."""
    for watcher in _watchers:
        watcher.failed(stage)


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
    seconds: float = 0.0
    """From the stage's begin to its last finished unit."""
    _last: float = 0.0

    def __post_init__(self) -> None:
        for found in _recordings:
            found.append(self)
        again = f", {self.skipped} done before" if self.skipped else ""
        LOG.info("%s: %d units to do%s", self.stage, self.total, again)
        for watcher in _watchers:
            watcher.planned(self.stage, self.total + self.skipped)
            watcher.done(self.stage, self.skipped, 0.0)

    def advance(self, amount: float) -> None:
        """One more unit is done."""
        self.done += 1
        self.amount += amount
        now = time.monotonic()
        self.seconds = now - self.started
        if self.done < self.total and now - self._last < self.interval_seconds:
            return
        self._last = now
        seconds = max(self.seconds, 1e-9)
        left = (self.total - self.done) * seconds / self.done
        share = 100 * self.done / max(self.total, 1)
        rate = self.amount / self.amount_scale / seconds
        for watcher in _watchers:
            watcher.done(self.stage, self.done + self.skipped, rate)
        tail = f"eta {clock(left)}" if self.done < self.total else f"took {clock(seconds)}"
        LOG.info(
            "%s: %d of %d units (%.0f %%), %.2f %s/s, %s",
            *(self.stage, self.done, self.total, share, rate, self.amount_name, tail),
        )
