"""Decides whether to restart a failed training: if it made progress and did not fail twice the same way."""

import re
from collections.abc import Hashable
from dataclasses import dataclass

from schemas.errors import StorageError

_FIRST_DELAY, _LONGEST_DELAY = 5.0, 300.0
"""Seconds before the second restart without progress, and the most before any."""
_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{16,}|\d+")
"""Addresses, ids and numbers, in which two reports of the same failure differ."""


@dataclass(frozen=True)
class Failure:
    """Why a group of workers ended."""

    text: str
    """The cause, as one line."""
    rank: int | None = None
    step: int | None = None
    """The optimizer step that failed, or None if it is unknown."""
    died: bool = False
    """Whether the process died. ``step`` is then that of the last line of the log before."""
    preempted: bool = False
    """Whether a node was removed. Such failures do not count."""

    @property
    def kind(self) -> Hashable | None:
        """Equal for failures of the same step in the same way, or None if that is unknown."""
        if self.step is None:
            return None
        return (self.step, self.rank if self.died else None, _VARIABLE.sub("#", self.text))


class RestartBudget:
    """Counts failures. Each new checkpoint renews the budget."""

    def __init__(self, run_uri: str, max_failures: int) -> None:
        """Tolerates ``max_failures`` failures without a new checkpoint between them (-1: any number)."""
        self._run_uri, self._max_failures = run_uri, max_failures
        self._failures = 0
        self._committed: int | None = None
        self._last: Failure | None = None

    def delay_after(self, failure: Failure, committed_step: int) -> float:
        """Seconds to wait before the workers are started again. Raises StorageError when they should not be.

        ``committed_step`` is the step of the newest checkpoint, 0 if there is none.
        """
        if failure.preempted:
            return 0.0
        if committed_step != self._committed:
            self._failures = 0
            if self._last is not None and self._last.died:
                self._last = None
        self._committed = committed_step
        self._failures += 1
        last, self._last = self._last, failure
        # Without a limit, two deaths of a process at the same place may be a coincidence.
        certain = not failure.died or self._max_failures >= 0
        if last is not None and certain and failure.kind is not None and failure.kind == last.kind:
            place = f"after step {failure.step}" if failure.died else f"in step {failure.step}"
            raise StorageError(
                f"{self._run_uri}: training failed twice {place} in the same way, so it is not restarted:"
                f" {failure.text}"
            )
        if 0 <= self._max_failures < self._failures:
            times = "once" if self._failures == 1 else f"{self._failures} times"
            where = f"the checkpoint of step {committed_step}" if committed_step else "the start"
            raise StorageError(
                f"{self._run_uri}: training failed {times} since {where}"
                f" (workers.max_failures {self._max_failures}): {failure.text}"
            )
        return min(_FIRST_DELAY * 2.0 ** (self._failures - 2), _LONGEST_DELAY) if self._failures > 1 else 0.0
