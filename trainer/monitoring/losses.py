"""The losses of a run as a small file with which later runs are compared.

Runs with equal seeds have equal bits on one machine. Another processor or another version of torch sums
in another order, so a comparison allows a relative difference.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster import storage
from schemas.errors import ConfigError
from schemas.json_text import parse_json
from trainer.monitoring.history import read_history

DEFAULT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """A step whose losses differ. The loss of a run that did not log the step is None."""

    step: int
    expected: float | None
    actual: float | None

    def __str__(self) -> str:
        return f"step {self.step}: expected {self.expected}, got {self.actual}"


def read_losses(run_uri: str) -> dict[int, float]:
    """Step -> loss, for every logged step of a run. Raises CheckpointError when it has no log."""
    return {record.step: record.loss for record in read_history(run_uri).steps}


def write_losses(run_uri: str, file_uri: str) -> int:
    """Writes the losses of a run to a file and returns how many it wrote."""
    losses = read_losses(run_uri)
    lines = ",\n".join(f'  "{step}": {loss!r}' for step, loss in sorted(losses.items()))
    storage.put_bytes(file_uri, f'{{"losses": {{\n{lines}\n}}}}\n'.encode())
    return len(losses)


def compare_losses(run_uri: str, file_uri: str, tolerance: float = DEFAULT_TOLERANCE) -> list[Difference]:
    """The steps whose losses differ by more than the relative ``tolerance``, or that only one side has.

    Raises ConfigError when the file is missing or was not written by ``write_losses``.
    """
    expected, actual = _read_file(file_uri), read_losses(run_uri)
    return [
        Difference(step, expected.get(step), actual.get(step))
        for step in sorted(expected.keys() | actual.keys())
        if not _close(expected, actual, step, tolerance)
    ]


def _close(expected: Mapping[int, float], actual: Mapping[int, float], step: int, tolerance: float) -> bool:
    both = step in expected and step in actual
    return both and math.isclose(expected[step], actual[step], rel_tol=tolerance, abs_tol=0.0)


def _read_file(uri: str) -> dict[int, float]:
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such file; write it with bertmill losses RUN --write FILE") from error
    try:
        return {int(step): float(loss) for step, loss in parse_json(raw)["losses"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{uri}: not a file that bertmill losses --write has written") from error
