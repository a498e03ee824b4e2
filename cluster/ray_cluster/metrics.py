"""Publishes the metrics of both jobs on Ray's Prometheus endpoint. Dashboards and alerts use their names.

Ray adds ``ray_`` to each name. All metrics are gauges, because a restarted process continues with the values
of its checkpoint (steps, tokens, skipped steps), whereas a counter would restart at 0.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.util.metrics import Gauge

PREFIX = "bertmill_"
_REPEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Metric:
    """A metric: its name without prefix, its meaning, and its labels besides the run or the build."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


# Field of a record of the training log -> metric.
TRAINING = {
    "step": Metric("train_step", "Completed optimizer steps."),
    "tokens": Metric("train_tokens", "Real (non-padding) tokens trained on, over all ranks."),
    "loss": Metric("train_loss", "MLM loss plus NSP loss, in nats."),
    "mlm_loss": Metric("train_mlm_loss", "MLM loss, in nats."),
    "nsp_loss": Metric("train_nsp_loss", "NSP (or sentence-order) loss, in nats."),
    "mlm_accuracy": Metric("train_mlm_accuracy", "MLM accuracy, 0 to 1."),
    "nsp_accuracy": Metric("train_nsp_accuracy", "NSP (or sentence-order) accuracy, 0 to 1."),
    "lr": Metric("train_lr", "Learning rate of the last step."),
    "grad_norm": Metric("train_grad_norm", "Norm of the last step's gradient, before clipping."),
    "tokens_per_second": Metric(
        "train_tokens_per_second", "Real (non-padding) tokens per second, over all ranks."
    ),
    "step_seconds": Metric("train_step_seconds", "Mean seconds per step."),
    "data_wait_share": Metric("train_data_wait_share", "Share of time spent waiting for data, 0 to 1."),
    "packing_efficiency": Metric(
        "train_packing_efficiency", "Share of the micro-batches' token capacity used, 0 to 1."
    ),
    "mfu": Metric("train_mfu", "Model FLOP/s utilization: share of the devices' peak FLOP/s, 0 to 1."),
    "skipped_steps": Metric("train_skipped_steps", "Steps skipped for an abnormal gradient, since step 0."),
    "consecutive_failed_saves": Metric(
        "train_consecutive_failed_saves", "Consecutive failed saves; 0 after a committed checkpoint."
    ),
    "checkpoint_seconds": Metric("train_checkpoint_seconds", "Duration of the last checkpoint, in seconds."),
}
BY_LANGUAGE = {
    "mlm_accuracy": Metric("train_language_mlm_accuracy", "MLM accuracy of a language.", ("lang",)),
    "nsp_accuracy": Metric("train_language_nsp_accuracy", "NSP accuracy of a language.", ("lang",)),
    "mlm_loss": Metric("train_language_mlm_loss", "MLM loss of a language.", ("lang",)),
}
SAVED_AT = Metric("train_checkpoint_timestamp_seconds", "Start of the last checkpoint, Unix time.")

UNITS_PLANNED = Metric("build_units_planned", "Units of work in a stage.", ("stage",))
UNITS_DONE = Metric("build_units_done", "Committed units of a stage.", ("stage",))
UNITS_FAILED = Metric("build_units_failed", "Units of a stage that failed after all retries.", ("stage",))
STAGE_RATE = Metric(
    "build_stage_rate", "Throughput of a stage per second, in the stage's own unit.", ("stage",)
)

ALL = (
    *TRAINING.values(), *BY_LANGUAGE.values(), SAVED_AT, UNITS_PLANNED, UNITS_DONE, UNITS_FAILED, STAGE_RATE,
)  # fmt: skip


class Gauges:
    """Gauges with one fixed label, reported until ``close``. The process must have joined Ray.

    Ray reports only gauges that were set since its last report, and drops a gauge after two reports without
    it. A metric that rarely changes (the time of the last checkpoint, the units of a stage) would be missing
    when an alert reads it. Therefore a thread sets every gauge again each second.
    """

    def __init__(self, label: str, value: str) -> None:
        self._fixed = {label: value}
        self._gauges: dict[str, Any] = {}
        self._values: dict[tuple[str, ...], tuple[Any, float, dict[str, str]]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Sets the gauge of ``metric`` for these labels."""
        tags = {**self._fixed, **labels}
        with self._lock:
            gauge = self._gauges.get(metric.name)
            if gauge is None:
                keys = (*self._fixed, *metric.labels)
                gauge = self._gauges[metric.name] = Gauge(PREFIX + metric.name, metric.text, tag_keys=keys)
            self._values[(metric.name, *labels.values())] = (gauge, float(value), tags)
            gauge.set(float(value), tags=tags)
        if self._thread is None:
            self._thread = threading.Thread(target=self._repeat, name="metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stops setting the gauges."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _repeat(self) -> None:
        while not self._closed.wait(_REPEAT_SECONDS):
            with self._lock:
                for gauge, value, tags in self._values.values():
                    gauge.set(value, tags=tags)


class _Publisher:
    """A context manager that closes its gauges."""

    def __init__(self, label: str, value: str) -> None:
        self._gauges = Gauges(label, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gauges.close()


class TrainingMetrics(_Publisher):
    """Publishes the records of a run's log. Call it with each record of rank 0."""

    def __init__(self, run: str) -> None:
        super().__init__("run", run)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Sets the gauges of the fields in ``record``. The start of a save sets its time."""
        if "event" in record:
            if record["event"] in ("started", "saving"):
                self._gauges.set(SAVED_AT, time.time())
            return
        for field, metric in TRAINING.items():
            if record.get(field) is not None:
                self._gauges.set(metric, record[field])
        for lang, fields in record.get("languages", {}).items():
            for field, metric in BY_LANGUAGE.items():
                if fields.get(field) is not None:
                    self._gauges.set(metric, fields[field], lang=lang)


class BuildMetrics(_Publisher):
    """Publishes the progress of a build's stages, from the driver.

    With ``wait_for_report``, the end of the block waits after the last stage or a failed unit until Ray has
    reported it, by default 11 seconds. Otherwise a dashboard would show the build as unfinished forever, and
    the alert for failed units would miss the failure, because both may be lost with the process.
    """

    def __init__(self, build: str, wait_for_report: bool = False) -> None:
        super().__init__("build", build)
        self._wait_for_report = wait_for_report
        self._has_failed = False

    def __exit__(self, *exception: object) -> None:
        has_ended = self._has_failed or exception == (None, None, None)
        if has_ended and self._wait_for_report:
            time.sleep(ray._config.metrics_report_interval_ms() / 1000 + _REPEAT_SECONDS)
        super().__exit__(*exception)

    def planned(self, stage: str, units: int) -> None:
        """Announces a stage with ``units`` units in total."""
        self._gauges.set(UNITS_PLANNED, units, stage=stage)
        self._gauges.set(UNITS_FAILED, 0, stage=stage)

    def done(self, stage: str, units: int, rate: float) -> None:
        """Reports ``units`` committed units of the stage and its throughput per second."""
        self._gauges.set(UNITS_DONE, units, stage=stage)
        self._gauges.set(STAGE_RATE, rate, stage=stage)

    def failed(self, stage: str, units: int = 1) -> None:
        """Reports ``units`` units of the stage that failed after all retries."""
        self._gauges.set(UNITS_FAILED, units, stage=stage)
        self._has_failed = True
