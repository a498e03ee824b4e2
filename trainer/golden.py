"""The losses of a run as a small file that later runs are compared with.

Equal seeds give equal bits on one machine; another processor or another torch sums in another order, so
a comparison allows a relative difference.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster import storage
from schemas.errors import ConfigError
from schemas.json_text import parse_json
from trainer.history import read_history

DEFAULT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Difference:
    """A step whose loss is another one; None where a run did not log the step."""

    step: int
    expected: float | None
    found: float | None

    def __str__(self) -> str:
        return f"step {self.step}: expected {self.expected}, found {self.found}"


def losses_of(run_uri: str) -> dict[int, float]:
    """Step -> loss, of every logged step of a run. Raises CheckpointError when it has no log."""
    return {record["step"]: record["loss"] for record in read_history(run_uri).figures}


def write_golden(run_uri: str, golden_uri: str) -> int:
    """Writes the losses of a run to a file; their number."""
    losses = losses_of(run_uri)
    lines = ",\n".join(f'  "{step}": {loss!r}' for step, loss in sorted(losses.items()))
    storage.put_bytes(golden_uri, f'{{"losses": {{\n{lines}\n}}}}\n'.encode())
    return len(losses)


def compare_golden(run_uri: str, golden_uri: str, tolerance: float = DEFAULT_TOLERANCE) -> list[Difference]:
    """The steps whose losses differ by more than the relative ``tolerance``, or are in one run only.

    Raises ConfigError when the file is missing or is none of ``write_golden``.
    """
    golden, losses = _read_golden(golden_uri), losses_of(run_uri)
    return [
        Difference(step, golden.get(step), losses.get(step))
        for step in sorted(golden.keys() | losses.keys())
        if not _close(golden, losses, step, tolerance)
    ]


def _close(golden: Mapping[int, float], losses: Mapping[int, float], step: int, tolerance: float) -> bool:
    both = step in golden and step in losses
    return both and math.isclose(golden[step], losses[step], rel_tol=tolerance, abs_tol=0.0)


def _read_golden(uri: str) -> dict[int, float]:
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such file of losses") from error
    try:
        return {int(step): float(loss) for step, loss in parse_json(raw)["losses"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{uri}: not a file of losses") from error
