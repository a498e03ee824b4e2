"""The records of fine-tuning runs: the metrics of a seed, and their spread over seeds.

This module does not import torch, so that programs that only read results start quickly.
"""

import statistics
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cluster import storage
from schemas.errors import CheckpointError, reason_of

_Kind = TypeVar("_Kind")


class Record(BaseModel):
    """A part of a file of results. A missing, unknown or mistyped field is an error. A number may be NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def to_json(self) -> dict[str, Any]:
        """The content of the file, without the fields that were not given."""
        return self.model_dump(mode="json", exclude_unset=True)


def read_record(kind: type[_Kind], uri: str, remedy: str) -> _Kind:
    """The JSON file ``uri`` as a ``kind``. Raises CheckpointError with the first bad field and ``remedy``."""
    try:
        return TypeAdapter(kind).validate_json(storage.read_bytes(uri))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {reason_of(first)}" if place else reason_of(first)
        raise CheckpointError(f"{uri}: damaged, or of another version: {problem}; {remedy}") from error


class SeedResult(Record):
    """One training run, the content of seed-N.json."""

    seed: int
    best_epoch: int
    """From 1."""
    validation: dict[str, float]
    test: dict[str, dict[str, float]]
    """Metrics by test set."""
    epochs: tuple[dict[str, float], ...]
    """Validation metrics after each epoch."""
    losses: tuple[float, ...]
    """Mean training loss of each epoch."""


class Spread(Record):
    """A metric over the seeds."""

    count: int
    """Seeds."""
    median: float
    mean: float
    deviation: float
    """Sample deviation, 0 for one seed."""
    best: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of one or more ``values``. The largest is the best."""
        return cls(
            count=len(values),
            median=statistics.median(values),
            mean=statistics.fmean(values),
            deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
            best=max(values),
        )


def spreads(metrics: Sequence[dict[str, float]]) -> dict[str, Spread]:
    """The spread of each of the ``metrics``, given for each seed."""
    return {name: Spread.of([one[name] for one in metrics]) for name in metrics[0]}
