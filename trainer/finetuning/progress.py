"""What a fine-tuning run reports while it runs, and how it is printed."""

import time
from dataclasses import dataclass

from trainer.finetuning.tasks.kinds import Metrics


@dataclass(frozen=True)
class StepDone:
    """Progress within a seed."""

    seed: int
    epoch: int
    """From 1."""
    step: int
    """Steps of this seed so far."""
    steps: int
    """Steps of this seed in all."""
    loss: float
    """Mean over the steps since the last report."""
    lr: float
    examples_per_second: float
    """Since the last report, over all processes."""
    eta_seconds: float
    """Until all seeds are trained, if none stops early."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch of a seed is trained and validated."""

    seed: int
    epoch: int
    epochs: int
    loss: float
    metrics: Metrics


@dataclass(frozen=True)
class SeedDone:
    """A seed is finished and its results are written."""

    seed: int
    best_epoch: int
    metric: str
    value: float
    """The validation metric of the best epoch."""
    resumed: bool
    """Whether an earlier process had finished it."""


Event = StepDone | EpochDone | SeedDone


def line_of(event: Event) -> str:
    """The line that is printed for an event.

    >>> line_of(SeedDone(1, 2, "accuracy", 0.5, resumed=False))
    'seed 1  done: best epoch 2, validation accuracy 0.5000'
    """
    if isinstance(event, StepDone):
        minutes, seconds = divmod(round(event.eta_seconds), 60)
        return (
            f"seed {event.seed}  epoch {event.epoch}  step {event.step}/{event.steps}  loss {event.loss:.4f}"
            f"  lr {event.lr:.2e}  {event.examples_per_second:,.1f} examples/s  ETA {minutes}:{seconds:02d}"
        )
    if isinstance(event, EpochDone):
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
        return f"seed {event.seed}  epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}  {metrics}"
    verb = "done before" if event.resumed else "done"
    return (
        f"seed {event.seed}  {verb}: best epoch {event.best_epoch},"
        f" validation {event.metric} {event.value:.4f}"
    )


class Clock:
    """Rate and remaining time of a run of ``steps_left`` steps, from the steps that this process has done."""

    def __init__(self, steps_left: int) -> None:
        self._left, self._done, self._examples = steps_left, 0, 0
        self._start = self._last = time.monotonic()

    def count(self, examples: int) -> None:
        """Counts a step of ``examples`` examples."""
        self._done += 1
        self._examples += examples

    def skip(self, steps: int) -> None:
        """Subtracts the steps that early stopping saves."""
        self._left -= steps

    def lap(self) -> tuple[float, float]:
        """Examples per second since the last lap, and seconds until the end."""
        now = time.monotonic()
        rate = self._examples / max(now - self._last, 1e-9)
        self._last, self._examples = now, 0
        return rate, (now - self._start) / max(self._done, 1) * max(self._left - self._done, 0)
