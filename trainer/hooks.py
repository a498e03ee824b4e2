"""The callbacks of a launcher, and the announcement of committed checkpoints to it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from cluster import storage
from trainer.checkpoint.folders import checkpoints_uri, folder_name
from trainer.checkpoint.store import CheckpointStore
from trainer.monitoring.records import LogRecord

_SECONDS_BETWEEN = 10.0
"""A launcher may take seconds per checkpoint, because Ray Train polls its workers every two seconds."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Hooks:
    """The callbacks of a launcher."""

    stop_requested: Callable[[], bool] = _never
    """Called before every step. True when this process should stop after the step."""
    node_leaving: Callable[[], bool] = _never
    """Called by all ranks together, every ``logging.every_steps`` steps. True when a node will leave."""
    on_record: Callable[[LogRecord], None] | None = None
    """Gets every record of the log of rank 0."""
    on_commit: Callable[[str, int], None] | None = None
    """Called by all ranks together, between two steps, with the folder and step of a committed checkpoint.

    First comes the checkpoint that the run resumes from, then new ones. If they follow each other within
    seconds, some are left out. The last one always comes.
    """
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    """Encloses work that a stop request may interrupt, because there is nothing to save yet."""
    job: str | None = None
    """Identifies the job whose restarts replace its own earlier attempts at the run."""
    free_attempt: int | None = None
    """The newest attempt at the run, if the launcher has found that it has ended."""


class CommitAnnouncer:
    """Calls ``Hooks.on_commit`` for committed checkpoints, at the same step on every rank.

    Checkpoints are committed in a thread of rank 0. ``pending_step`` travels with the agreement of the
    next step, so no rank waits for another one because of it.
    """

    def __init__(self, run_uri: str, folder_suffix: str, store: CheckpointStore | None, hooks: Hooks) -> None:
        """``store`` is that of rank 0, None on other ranks."""
        self._root, self._suffix = checkpoints_uri(run_uri), folder_suffix
        self._store, self._on_commit = store, hooks.on_commit
        self._announced, self._announced_at = 0, float("-inf")

    def pending_step(self) -> int:
        """On rank 0 the step of a commit that should be announced now, or 0 if there is none."""
        if self._store is None or self._on_commit is None:
            return 0
        newest = self._store.newest_committed
        too_soon = time.monotonic() - self._announced_at < _SECONDS_BETWEEN
        if newest is None or newest.step == self._announced or too_soon:
            return 0
        return newest.step

    def announce_step(self, step: int) -> None:
        """Announces the ``pending_step`` that rank 0 shared (0: nothing). All ranks must call it together."""
        if step:
            self.announce(storage.join(self._root, folder_name(step, self._suffix)), step)

    def announce(self, uri: str | None, step: int) -> None:
        """Announces a checkpoint, unless it was the last one announced. All ranks must call it together."""
        if self._on_commit is not None and uri is not None and step != self._announced:
            self._announced, self._announced_at = step, time.monotonic()
            self._on_commit(uri, step)
