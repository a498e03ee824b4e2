"""What a launcher lends the loop, and how all ranks come to know what is committed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster import storage
from trainer.checkpoint import CheckpointStore
from trainer.checkpoint_format import folder_name
from trainer.metrics import Record

_SECONDS_BETWEEN = 10.0
"""A launcher may take seconds for each: Ray Train asks its workers every two. Runs save every few minutes."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Hooks:
    """What a launcher lends the loop."""

    stop_wanted: Callable[[], bool] = _never
    """Asked at every step; true when this process has been told to end."""
    drained: Callable[[], bool] = _never
    """Asked by all ranks together, every ``logging.every_steps`` steps; true when a node will go away."""
    echo: Callable[[Record], None] | None = None
    """Gets every record of the log of rank 0."""
    committed: Callable[[str, int], None] | None = None
    """Told by all ranks together, between two steps, the folder and step of a committed checkpoint: the one
    that the run goes on from, then new ones, not every one if they follow fast, and always the last."""


class CommitNews:
    """Passes committed checkpoints on to ``Hooks.committed``, at the same step on every rank.

    Commits happen in a thread of rank 0. Its ``word`` travels with what the ranks tell each other in every
    step anyway, so that no rank waits for another one because of it.
    """

    def __init__(self, run_uri: str, folder_suffix: str, store: CheckpointStore | None, hooks: Hooks) -> None:
        """``store`` is that of rank 0, None on other ranks."""
        self._root, self._suffix = storage.join(run_uri, "checkpoints"), folder_suffix
        self._store, self._tell = store, hooks.committed
        self._told, self._told_at = 0, float("-inf")

    def word(self) -> int:
        """On rank 0 the step of the newest commit, if it is time to tell of it; 0 otherwise."""
        saved = self._store.newest_committed if self._store is not None and self._tell is not None else None
        if saved is None or saved.step == self._told or time.monotonic() - self._told_at < _SECONDS_BETWEEN:
            return 0
        return saved.step

    def heard(self, step: int) -> None:
        """The sum of the ``word`` of all ranks, heard by all of them."""
        if step:
            self.tell(storage.join(self._root, folder_name(step, self._suffix)), step)

    def tell(self, uri: str | None, step: int) -> None:
        """Passes a checkpoint on that is not known yet; all ranks together."""
        if self._tell is not None and uri is not None and step != self._told:
            self._told, self._told_at = step, time.monotonic()
            self._tell(uri, step)
