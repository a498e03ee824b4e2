"""The files of a scorecard as typed classes: identity.json, job.json and scorecard.json."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from bertmill.scorecard.published import Published
from trainer.finetuning.records import Record, Spread


@dataclass(frozen=True)
class Settings:
    """The settings of a scorecard."""

    model: str
    tokenizer: str | None
    nli_model: str | None
    """Model that RTE, MRPC and STS-B start from, or None for ``model``."""
    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    epochs: int | None
    """Epochs of every task, or None for each task's own number."""
    batch_size: int
    max_length: int
    max_examples: int | None
    """Use only the first examples of every set."""
    use_gpu: bool


class Identity(Record):
    """What the jobs of a folder depend on, the content of identity.json."""

    suite: str
    model: str
    """Digest of the weights."""
    nli_model: str | None
    """Digest of its weights."""
    epochs: int | None
    batch_size: int
    max_length: int
    max_examples: int | None
    files: dict[str, str]
    """Digest of its files by task."""

    def difference(self, before: "Identity", finished: Collection[str]) -> str | None:
        """What differs from ``before``, or None. Only the files of the ``finished`` tasks must be equal."""
        for name in Identity.model_fields:
            if name != "files" and getattr(self, name) != getattr(before, name):
                return name
        for task, digest in self.files.items():
            if task in finished and before.files.get(task, digest) != digest:
                return f"set of files for {task}"
        return None


class JobRecord(Record):
    """The last attempt at a job, the content of job.json."""

    seconds: float
    """Of this attempt and of earlier, stopped ones."""
    finished: bool
    failed: str | None = None
    """Why the attempt failed."""
    validation: dict[str, float] = Field(default_factory=dict)
    test: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Figures by test set or language."""
    examples: dict[str, int] = Field(default_factory=dict)
    """Examples by set. A retrieval does not state them."""

    @model_validator(mode="after")
    def _has_figures(self) -> Self:
        if self.finished and not {"validation", "test"} <= self.model_fields_set:
            raise ValueError("a finished job needs validation and test")
        return self


class JobCounts(Record):
    """Numbers of jobs."""

    finished: int
    failed: int
    all: int


class _Rate(Record):
    learning_rate: float


class GridRow(Spread, _Rate):
    """The metric on the validation set with one learning rate. The rate comes first in the file."""


class TaskSummary(Record):
    """The figures of a task with the learning rate that is best on the validation set.

    The file has only the fields that were set: those up to ``seconds`` if no job is finished, and no learning
    rate for retrieval.
    """

    model_config = ConfigDict(frozen=False)

    title: str
    metric: str
    note: str
    jobs: JobCounts
    failed: dict[str, str]
    """Name -> reason, of the jobs that failed."""
    seconds: int | float
    """0 without a finished job."""
    learning_rate: float | None = None
    grid: tuple[GridRow, ...] = ()
    validation: dict[str, Spread] = Field(default_factory=dict)
    """By metric."""
    languages: dict[str, Spread] = Field(default_factory=dict)
    """The metric by language."""
    mean: Spread | None = None
    """The metric, averaged over the languages if the task has some."""
    mean_without_english: float | None = None


class Scorecard(Record):
    """The content of scorecard.json. Figures are shares of 1. Those of ``published`` are in percent."""

    suite: str
    model: str
    settings: Settings
    """The file has them without the model."""
    complete: bool
    jobs: JobCounts
    failed: dict[str, str]
    """Name -> reason, of the jobs that failed."""
    device: str
    device_hours: float
    missing: dict[str, str]
    """Title -> reason, of the tasks that were not measured."""
    tasks: dict[str, TaskSummary]
    published: tuple[Published, ...]

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"settings": {"model"}})
