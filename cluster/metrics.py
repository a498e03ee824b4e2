"""The figures of both jobs on Ray's Prometheus endpoint, under names that dashboards and alerts rely on.

Ray puts ``ray_`` before each name. All are gauges: a value that a restarted process takes over from a
checkpoint (steps, tokens, skipped steps) goes on where it was, which a counter could not.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ray.util.metrics import Gauge

PREFIX = "bertmill_"
_REPEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Figure:
    """One metric: its name without prefix, what it says, and the labels beside the run's or build's name."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


# Field of a record of the training log -> metric.
TRAINING = {
    "step": Figure("train_step", "Optimizer steps done."),
    "tokens": Figure("train_tokens", "Real tokens trained on, over all ranks."),
    "loss": Figure("train_loss", "Token loss plus pair loss, in nats."),
    "token_loss": Figure("train_token_loss", "Masked-LM loss, in nats."),
    "pair_loss": Figure("train_pair_loss", "Sentence-pair loss, in nats."),
    "token_accuracy": Figure("train_token_accuracy", "Masked-LM accuracy, 0 to 1."),
    "pair_accuracy": Figure("train_pair_accuracy", "Sentence-pair accuracy, 0 to 1."),
    "learning_rate": Figure("train_learning_rate", "Learning rate of the last step."),
    "gradient_norm": Figure("train_gradient_norm", "Norm of the last step's gradient, before clipping."),
    "tokens_per_second": Figure("train_tokens_per_second", "Real tokens a second, over all ranks."),
    "step_seconds": Figure("train_step_seconds", "Mean seconds of a step."),
    "data_wait_share": Figure("train_data_wait_share", "Share of the time spent waiting for data, 0 to 1."),
    "packing_efficiency": Figure("train_packing_efficiency", "Share of the micro-batches' room in use."),
    "mfu": Figure("train_mfu", "Share of the devices' peak arithmetic in use, 0 to 1."),
    "skipped_steps": Figure("train_skipped_steps", "Steps skipped for a gradient out of line, since step 0."),
    "failed_saves": Figure("train_failed_saves", "Checkpoints that could not be saved, in a row."),
    "checkpoint_seconds": Figure("train_checkpoint_seconds", "Seconds that the last checkpoint took."),
}
BY_LANGUAGE = {
    "token_accuracy": Figure("train_language_token_accuracy", "Masked-LM accuracy of a language.", ("lang",)),
    "pair_accuracy": Figure("train_language_pair_accuracy", "Pair accuracy of a language.", ("lang",)),
    "token_loss": Figure("train_language_token_loss", "Masked-LM loss of a language.", ("lang",)),
}
SAVED_AT = Figure("train_checkpoint_timestamp_seconds", "When the last checkpoint was begun, Unix time.")

UNITS_PLANNED = Figure("build_units_planned", "Units of work of a stage.", ("stage",))
UNITS_DONE = Figure("build_units_done", "Units of a stage that are committed.", ("stage",))
UNITS_FAILED = Figure("build_units_failed", "Units of a stage that failed after all retries.", ("stage",))
STAGE_RATE = Figure(
    "build_stage_rate", "What a stage works through in a second, in its own unit.", ("stage",)
)

ALL = (
    *TRAINING.values(), *BY_LANGUAGE.values(), SAVED_AT, UNITS_PLANNED, UNITS_DONE, UNITS_FAILED, STAGE_RATE,
)  # fmt: skip


class Gauges:
    """Gauges with one fixed label, kept in sight until ``close``. Needs a process that is joined to Ray.

    Ray reports what was set since its last report, and forgets a gauge that was missing in two of them.
    A figure that seldom changes (when the last checkpoint was, how many units a stage has) would be gone
    when an alert asks for it. So a thread sets every figure again each second.
    """

    def __init__(self, label: str, value: str) -> None:
        self._fixed = {label: value}
        self._gauges: dict[str, Any] = {}
        self._values: dict[tuple[str, ...], tuple[Any, float, dict[str, str]]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def set(self, figure: Figure, value: float, **labels: str) -> None:
        """Sets the gauge of ``figure`` for these labels."""
        tags = {**self._fixed, **labels}
        with self._lock:
            gauge = self._gauges.get(figure.name)
            if gauge is None:
                keys = (*self._fixed, *figure.labels)
                gauge = self._gauges[figure.name] = Gauge(PREFIX + figure.name, figure.text, tag_keys=keys)
            self._values[(figure.name, *labels.values())] = (gauge, float(value), tags)
            gauge.set(float(value), tags=tags)
        if self._thread is None:
            self._thread = threading.Thread(target=self._repeat, name="metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Sets nothing again from now on."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _repeat(self) -> None:
        while not self._closed.wait(_REPEAT_SECONDS):
            with self._lock:
                for gauge, value, tags in self._values.values():
                    gauge.set(value, tags=tags)


class _Publisher:
    """A context that ends with its gauges."""

    def __init__(self, label: str, value: str) -> None:
        self._gauges = Gauges(label, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gauges.close()


class TrainingMetrics(_Publisher):
    """Publishes the records of a run's log; call it with each record of rank 0."""

    def __init__(self, run: str) -> None:
        super().__init__("run", run)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Sets the gauges of the fields that ``record`` has; an event that begins a save sets its time."""
        if "event" in record:
            if record["event"] in ("started", "saving"):
                self._gauges.set(SAVED_AT, time.time())
            return
        for field, figure in TRAINING.items():
            if record.get(field) is not None:
                self._gauges.set(figure, record[field])
        for lang, fields in record.get("languages", {}).items():
            for field, figure in BY_LANGUAGE.items():
                if fields.get(field) is not None:
                    self._gauges.set(figure, fields[field], lang=lang)


class BuildMetrics(_Publisher):
    """Publishes how far the stages of a build are; used by the driver."""

    def __init__(self, build: str) -> None:
        super().__init__("build", build)

    def planned(self, stage: str, units: int) -> None:
        """A stage begins, with ``units`` units in all."""
        self._gauges.set(UNITS_PLANNED, units, stage=stage)
        self._gauges.set(UNITS_FAILED, 0, stage=stage)

    def done(self, stage: str, units: int, rate: float) -> None:
        """``units`` units of the stage are committed; ``rate`` is its amount a second."""
        self._gauges.set(UNITS_DONE, units, stage=stage)
        self._gauges.set(STAGE_RATE, rate, stage=stage)

    def failed(self, stage: str, units: int = 1) -> None:
        """``units`` units of the stage failed for good."""
        self._gauges.set(UNITS_FAILED, units, stage=stage)
