"""When a run saves checkpoints, and the save of this rank's part of them."""

import time
from collections.abc import Callable
from contextlib import ExitStack

from schemas.errors import BertmillError, CheckpointError
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.parts import PartWriter
from trainer.checkpoint.store import CheckpointStore, SaveResult
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.startup.resume import Attempt


class Saver:
    """The checkpoints of one rank: rank 0 writes and commits them, other ranks write parts if sharded."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, attempt: Attempt, cleanup: ExitStack, *, sharded: bool
    ) -> None:
        self.store: CheckpointStore | None = attempt.store
        self.error: BertmillError | None = None
        """The error of a failed save that must end the run. All ranks receive it in the next step."""
        self._config = config.checkpoints
        self._ranks, self._attempt = ranks, attempt
        self._writer: CheckpointStore | PartWriter | None = attempt.store
        if sharded and attempt.store is not None:
            attempt.store.shard_among(ranks.world_size)
        elif sharded:
            writer = PartWriter(config.run.uri, attempt.folder_suffix, ranks.rank, ranks.world_size)
            cleanup.callback(writer.close)
            self._writer = writer
        self._saved_at = time.monotonic()

    @property
    def writes(self) -> bool:
        """Whether this rank writes anything."""
        return self._writer is not None

    @property
    def newest(self) -> SaveResult | None:
        """The newest committed checkpoint of this attempt, on rank 0."""
        return self.store.newest_committed if self.store else None

    @property
    def consecutive_failures(self) -> int:
        """Failed saves since the last committed one, on rank 0."""
        return self.store.consecutive_failures if self.store else 0

    def due_by_step(self, step: int) -> bool:
        """Whether ``checkpoints.every_steps`` requires a checkpoint after ``step`` steps."""
        every = self._config.every_steps
        return every is not None and step % every == 0

    def due_by_time(self) -> bool:
        """Whether ``checkpoints.every_seconds`` requires a checkpoint. Always false on ranks other than 0."""
        every = self._config.every_seconds
        return self.store is not None and every is not None and time.monotonic() - self._saved_at >= every

    def restart_clock(self) -> None:
        """Counts the seconds to the next checkpoint from now."""
        self._saved_at = time.monotonic()

    def save(self, step: int, state: TrainingState) -> bool:
        """Starts a save of ``state``, or of this rank's part. Sets ``error`` and returns false on failure."""
        if self._writer is None:
            return False
        try:
            self._writer.save_async(step, state)
        except CheckpointError as error:
            self.error = error
            return False
        return True

    @property
    def displaced(self) -> BertmillError | None:
        """Set on rank 0 when a newer attempt owns the run."""
        return self.store.displaced if self.store else None

    def finish(
        self, resumed_step: int, explain: Callable[[BertmillError | None], BertmillError | None]
    ) -> tuple[str | None, int]:
        """Waits on all ranks for the last save. Returns URI and step of the newest committed checkpoint.

        When the last save of a rank failed, raises the error that ``explain`` returns for it on all ranks.
        """
        newest, step = self._attempt.checkpoint_uri, resumed_step
        if self.store is not None:
            try:
                self.store.close()
            except CheckpointError as error:
                self.error = self.error or error
            if self.store.last_committed is not None:
                newest, step = self.store.last_committed.uri, self.store.last_committed.step
        self._ranks.fail_together(explain(self.error))
        uri_and_step: tuple[str | None, int] = self._ranks.broadcast_from_rank0((newest, step))
        return uri_and_step
