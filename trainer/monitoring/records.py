"""The records of a run's log as typed classes: metrics of steps, and events.

A line of ``RUN/metrics/attempt-000003/rank-00000.jsonl`` is one record as JSON. A record with the key
``event`` is an event. Any other record is a StepRecord. This module does not import torch, so that
commands that only read logs start quickly.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

LOG_VERSION = 2
"""Version of the records. ``started`` carries it. Readers refuse other versions."""


def _now() -> float:
    return round(time.time(), 3)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name. The names of groups come first, as those of folders.

    >>> numbers({"step": 2, "languages": {"de": {"loss": 0.5}}, "event": "x"})
    {'step': 2.0, 'languages/de/loss': 0.5}
    """
    by_name: dict[str, float] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            by_name |= {f"{name}/{inner}": number for inner, number in numbers(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            by_name[name] = float(value)
    return by_name


class PretrainingMetrics(_Record):
    """Losses, accuracies and counts of some sequences. A metric without any target is null."""

    sequences: int
    """Sequences of these metrics."""
    masked_tokens: int
    """Targets of the masked language model (MLM)."""
    pairs: int
    """Labeled sentence pairs: next sentence, or sentence order where the run trains that."""
    loss: float
    """MLM loss plus NSP loss, each the mean over its own targets, in nats."""
    mlm_loss: float | None = None
    """MLM loss: mean over the masked tokens, in nats."""
    mlm_accuracy: float | None = None
    """MLM accuracy, 0 to 1."""
    perplexity: float | None = None
    """exp(mlm_loss)."""
    nsp_loss: float | None = None
    """NSP or SOP loss: mean over the pairs, in nats."""
    nsp_accuracy: float | None = None
    """NSP or SOP accuracy, 0 to 1."""
    nsp_accuracy_label_0: float | None = None
    """Accuracy on the pairs labeled 0. A head that always answers 0 has 1 here and 0 for label 1."""
    nsp_accuracy_label_1: float | None = None
    """Accuracy on the pairs labeled 1 (random or swapped)."""
    nsp_label_1_share: float | None = None
    """Share of the pairs labeled 1."""
    objective_loss: float | None = None
    """Mean loss of the objective that the config adds."""


class LogRecord(_Record):
    """One line of the log."""

    time: float = Field(default_factory=_now)
    """Seconds since 1970."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON, without the fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


class StepRecord(LogRecord, PretrainingMetrics):
    """The metrics of the steps since the previous line of metrics, over all ranks."""

    step: int
    """Optimizer steps done."""
    languages: dict[str, PretrainingMetrics] = {}
    """By language, in the log of rank 0 only."""
    lr: float
    """Learning rate of the last step."""
    grad_norm: float
    """Norm of the last step's gradient, before clipping."""
    phase: int
    """Index of the phase."""
    max_seq_length: int
    """Sequence length of the phase."""
    global_batch: int
    """Sequences in the last global batch."""
    epoch: int
    """Epoch over the sequences of this length, from 0."""
    tokens: int
    """Real tokens trained on since step 0."""
    skipped_steps: int
    """Steps skipped since step 0."""
    consecutive_failed_saves: int
    """Failed saves since the last committed checkpoint."""
    failed_log_writes: int
    """Log lines lost because the disk was full."""
    failed_log_uploads: int
    """Log uploads that failed and were retried."""
    failed_tracker_writes: int = 0
    """Records that wandb or MLflow did not accept."""
    tokens_per_second: float
    """Real tokens per second, over all ranks."""
    step_seconds: float
    """Mean seconds per step."""
    data_wait_share: float
    """Share of the time spent waiting for data."""
    packing_efficiency: float
    """Share of the token slots of the micro-batches that hold real tokens."""
    mfu: float | None = None
    """Model FLOP/s utilization, 0 to 1, only on devices whose peak FLOP/s are known."""
    checkpoint_seconds: float | None = None
    """Seconds that the last committed checkpoint took in the background."""
    checkpoint_stall_seconds: float | None = None
    """Seconds that training waited for the last committed checkpoint."""


class Event(LogRecord):
    """A single occurrence, unlike the metrics of steps."""

    event: str
    attempt: int | None = None
    """Readers fill it in."""

    def details(self) -> dict[str, Any]:
        """The fields that only this kind of event has."""
        return {name: value for name, value in self.to_json().items() if name not in Event.model_fields}


class Kernel(_Record):
    """The attention kernel of a run, and why it was chosen."""

    name: str
    reason: str


class Started(Event):
    """An attempt starts or resumes the run."""

    event: Literal["started"] = "started"
    log_version: int = LOG_VERSION
    code_version: str | None = None
    """Of the bertmill that runs the attempt, or None in logs of older versions."""
    checkpoint_format: int | None = None
    """Version of the schema of the checkpoints that it writes."""
    attempt: int
    rank: int
    host: str
    process: int
    world_size: int
    data_parallel: Literal["ddp", "fsdp"] | None = None
    """ddp: each rank holds all weights. fsdp: the ranks share them. None for a single rank."""
    device: str
    step: int
    total_steps: int
    checkpoint: str | None = None
    """The checkpoint that the attempt resumes from."""
    changes: list[str] = []
    """Changes of the config since that checkpoint, each as "field: was X, is Y"."""
    kernel: Kernel
    parameters: int
    config: dict[str, JsonValue]
    model: dict[str, JsonValue]


class Ready(Event):
    """The first step is done. Seconds that each part of the start took."""

    event: Literal["ready"] = "ready"
    step: int
    process_seconds: float
    """Imports, and waiting for the other ranks."""
    load_seconds: float
    """Data, network and checkpoint."""
    seek_seconds: float
    """Until the first batch was read."""
    compile_seconds: float
    """How long the first step waited for compilers."""
    first_step_seconds: float
    """The rest of the first step."""
    total_seconds: float
    graphs_compiled: int
    graphs_from_cache: int
    graph_breaks: int = 0
    """Graph breaks of torch.compile. Each costs speed."""


class Saving(Event):
    """A checkpoint was started."""

    event: Literal["saving"] = "saving"
    step: int


class Skipped(Event):
    """A step was skipped because of its gradient norm."""

    event: Literal["skipped"] = "skipped"
    step: int
    grad_norm: float
    row_ids: list[int]
    """The sequences of this rank's part of the batch."""


class Warned(Event):
    """A sign of a problem in the training."""

    event: Literal["warning"] = "warning"
    step: int
    text: str


class Evaluated(Event):
    """Held-out metrics, for "all" and by language."""

    event: Literal["evaluated"] = "evaluated"
    step: int
    held_out: dict[str, PretrainingMetrics]
    held_out_ema: dict[str, PretrainingMetrics] | None = None
    """Of the moving average of the weights. See ``evaluation.ema``."""

    def groups(self) -> dict[str, Any]:
        """The metrics alone, by name of the group."""
        return {name: value for name, value in self.to_json().items() if name.startswith("held_out")}


class Samples(Event):
    """The sequences that this rank trained in a step. See ``logging.samples``."""

    event: Literal["samples"] = "samples"
    step: int
    epoch: int
    row_ids: list[int]


class Profiled(Event):
    """A profiler trace was stored. See ``profile``."""

    event: Literal["profiled"] = "profiled"
    step: int
    """The last step in the trace."""
    trace: str
    """Its file: Chrome's trace format, gzipped."""


class Ended(Event):
    """The attempt ended: finished, or stopped by a signal."""

    event: Literal["finished", "stopped"]
    step: int
    checkpoint: str | None = None


AnyEvent = Annotated[
    Started | Ready | Saving | Skipped | Warned | Evaluated | Samples | Profiled | Ended,
    Field(discriminator="event"),
]
EVENTS: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Parses an event."""
