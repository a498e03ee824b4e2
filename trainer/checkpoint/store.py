"""Checkpoints that survive crashes, broken uploads and a second trainer under the same run name.

The protocol: an attempt writes the files into its own folder, reads them back and compares them.
Only then it creates MANIFEST.json with a conditional put, unless a newer attempt holds the lease of the
run. There is no "latest" pointer: the newest folder that verifies is the latest. Older checkpoints are
deleted only after a newer one is verified and committed.

Rank 0 holds the lease and writes. Every rank may read.
"""

import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from cluster import storage
from cluster.jobs.lease import Claimant, FencedError, RunLease, acquire_lease, await_free
from schemas.errors import CheckpointError, StorageError, StorageFullError
from schemas.versions import CODE_VERSION
from trainer.checkpoint import files, parts, snapshot
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.folders import checkpoints_uri, delete_folder, folder_name, list_folders
from trainer.checkpoint.free_space import free_oldest
from trainer.checkpoint.manifest import MANIFEST, FileEntry, Manifest, RunState
from trainer.checkpoint.parts import RankShare
from trainer.checkpoint.reading import LoadedCheckpoint, latest_verified

logger = logging.getLogger(__name__)

DISPLACED = "displaced"
"""Folder of a run for the states of attempts that were replaced while they trained."""


@dataclass(frozen=True)
class SaveResult:
    """The result of one save. Times are in seconds."""

    step: int
    uri: str
    size: int
    """Bytes of all files."""
    stall: float
    """How long training waited: for the previous save, and for the copy."""
    seconds: float
    """From the end of the copy to the commit, in the background."""
    error: str | None = None
    """Why it failed, or None for a committed save."""


def _manifest(step: int, lease: RunLease, entries: dict[str, FileEntry], run: RunState) -> Manifest:
    return Manifest(
        step=step,
        attempt=lease.number,
        created=int(time.time()),
        code_version=CODE_VERSION,
        files=entries,
        run=run,
    )


def _needed_steps(run: RunState) -> set[int | None]:
    """Steps whose checkpoints the run may go back to."""
    return {run.position.trend.good_step, run.position.trend.best_step}


class CheckpointStore:
    """Writes the checkpoints of one attempt at a run.

    ``save_async`` copies the state and returns. A background thread writes the copy. At most one save is
    in flight and the next one waits for it, so memory holds one copy of the state. A save that finds no
    room deletes the oldest checkpoints, but keeps two verified ones. A failed save is logged and counted.
    The next call raises CheckpointError after ``max_failed`` failures in a row, or when a newer attempt has
    taken over the run.
    """

    def __init__(
        self,
        run_uri: str,
        claimant: Claimant | None = None,
        keep: int = 3,
        max_failed: int = 3,
        *,
        keep_every: int | None = None,
        sharded_by: int | None = None,
        part_timeout: float = 600.0,
    ) -> None:
        """``claimant`` decides how the lease is acquired. With ``sharded_by`` N, N ranks each save a part,
        this one part 0 (see trainer/checkpoint/parts.py).

        ``part_timeout`` is how many seconds a save waits for the parts of the other ranks.
        """
        if keep < 1:
            raise CheckpointError(f"{run_uri}: at least one checkpoint must be kept, not {keep}")
        self.run_uri = run_uri.rstrip("/")
        self.last_result: SaveResult | None = None
        """The newest finished save, whether it was committed or failed."""
        self.last_committed: SaveResult | None = None
        """The newest committed save that this thread has collected."""
        self.newest_committed: SaveResult | None = None
        """The newest committed save. The background thread sets it at the commit."""
        self._keep, self._keep_every, self._max_failed = keep, keep_every, max_failed
        self._claimant = claimant or Claimant()
        self._sharded_by, self._part_timeout = sharded_by, part_timeout
        self._run_failed = threading.Event()
        self.consecutive_failures = 0
        """Failed saves since the last committed one."""
        self._lease: RunLease | None = None
        self._snapshot = snapshot.Snapshot()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[SaveResult] | None = None
        self._fenced: FencedError | None = None

    def shard_among(self, ranks: int) -> None:
        """Later saves consist of a part of each of ``ranks`` ranks, this one part 0."""
        self._sharded_by = ranks

    def await_free(self) -> None:
        """Waits until no other process owns the run, and changes nothing.

        Raises LeaseHeldError, FencedError. See cluster/jobs/lease.py.
        """
        free = await_free(self.run_uri, self._claimant)
        self._claimant = replace(self._claimant, free_attempt=free)

    def acquire_lease(self) -> int:
        """Makes this process the owner of the run and returns this attempt's number.

        Raises LeaseHeldError, FencedError. See cluster/jobs/lease.py.
        """
        self._lease = acquire_lease(self.run_uri, self._claimant)
        # In the whole run, because killed attempts also leave unfinished leases and logs.
        storage.end_stale_uploads(self.run_uri)
        return self._lease.number

    @property
    def folder_suffix(self) -> str:
        """How the names of this attempt's folders end, or "" before ``acquire_lease``."""
        return self._lease.suffix if self._lease else ""

    @property
    def displaced(self) -> FencedError | None:
        """Set when a newer attempt owns the run."""
        return self._fenced or (self._lease.displaced if self._lease else None)

    def latest_verified(self) -> LoadedCheckpoint | None:
        """See the function of the same name."""
        return latest_verified(self.run_uri)

    def set_aside(self, step: int, state: TrainingState) -> str:
        """Writes the state of a run that has a new owner into RUN/displaced and returns the folder's URI.

        No run resumes from there automatically. Raises CheckpointError, StorageError, OSError.
        """
        if self._lease is None:
            raise CheckpointError(f"{self.run_uri}: acquire the lease of the run before saving")
        uri = storage.join(self.run_uri, DISPLACED, folder_name(step, self._lease.suffix))
        copied = snapshot.Snapshot().take(state)
        entries = files.put_files(uri, lambda folder: files.write_state(folder, copied))
        manifest = _manifest(step, self._lease, entries, state.run)
        storage.put_bytes(storage.join(uri, MANIFEST), manifest.to_bytes())
        return uri

    def save_async(self, step: int, state: TrainingState) -> None:
        """Copies ``state`` and starts to save it as the state after ``step`` optimizer steps.

        Waits for a save that is still in flight. Does not save a step that this attempt has already
        committed. Raises CheckpointError, see the class.
        """
        if self._lease is None:
            raise CheckpointError(f"{self.run_uri}: acquire the lease of the run before saving")
        started = time.monotonic()
        self._collect()
        if self.last_committed is not None and self.last_committed.step == step:
            return
        content: TrainingState | RankShare = state
        if self._sharded_by:
            content = parts.share_of(state, 0, self._sharded_by)
        copied = self._snapshot.take(content)
        stall = time.monotonic() - started
        self._in_flight = self._executor.submit(self._save, self._lease, step, state.run, copied, stall)

    def wait(self) -> None:
        """Waits until the last save is committed. Raises CheckpointError if it failed."""
        self._collect()
        if self.last_result is not None and self.last_result.error is not None:
            raise CheckpointError(f"{self.last_result.uri}: not saved: {self.last_result.error}")

    def close(self, *, failed: bool = False) -> None:
        """Waits for the save in flight, ends the background thread and releases the run.

        When the run has ``failed``, ranks may be dead: the wait for their parts is cut short.
        """
        if failed:
            self._run_failed.set()
        try:
            self.wait()
        finally:
            self._executor.shutdown()
            if self._lease is not None:
                self._lease.release()

    def _collect(self) -> None:
        """Waits for the save in flight and records its result."""
        if self._fenced is not None:
            raise self._fenced
        if self._in_flight is None:
            return
        future, self._in_flight = self._in_flight, None
        try:
            result = future.result()
        except FencedError as error:
            self._fenced = error
            raise
        self.last_result = result
        if result.error is None:
            self.last_committed, self.consecutive_failures = result, 0
            return
        self.consecutive_failures += 1
        if self.consecutive_failures >= self._max_failed:
            failures = self.consecutive_failures
            raise CheckpointError(
                f"{result.uri}: {failures} saves in a row failed, the last one: {result.error}"
            )

    def _save(
        self, lease: RunLease, step: int, run: RunState, content: TrainingState | RankShare, stall: float
    ) -> SaveResult:
        """Runs in the background thread."""
        started = time.monotonic()
        uri = storage.join(checkpoints_uri(self.run_uri), folder_name(step, lease.suffix))
        size, problem = 0, None
        try:
            manifest = self._upload_with_room(lease, uri, step, run, content)
            size = sum(entry.size for entry in manifest.files.values())
            self._commit(lease, uri, manifest)
        except FencedError:
            raise
        except Exception as error:  # any error of a disk, a library or a store
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            logger.error("%s: save failed: %s", uri, problem)  # noqa: TRY400 - counted, no trace
            self._clear_partial(uri)
        else:
            logger.info("%s: committed, %d bytes in %.1f s", uri, size, time.monotonic() - started)
            self._delete_old(lease, step, uri, _needed_steps(run))
        result = SaveResult(step, uri, size, stall, time.monotonic() - started, problem)
        if problem is None:
            self.newest_committed = result
        return result

    def _upload_with_room(
        self, lease: RunLease, uri: str, step: int, run: RunState, content: TrainingState | RankShare
    ) -> Manifest:
        """Uploads, and frees the oldest checkpoints where there is no room. Raises the errors of _upload.

        The parts of other ranks are not written again: with ``format: sharded`` the next save has the room.
        """
        kept = _needed_steps(run)
        while True:
            try:
                return self._upload(lease, uri, step, run, content)
            except StorageFullError:
                storage.delete_prefix(uri)
                freed = free_oldest(self.run_uri, lease.number, lambda step: self._is_kept(step, kept))
                if not freed or self._sharded_by:
                    raise

    def _upload(
        self, lease: RunLease, uri: str, step: int, run: RunState, content: TrainingState | RankShare
    ) -> Manifest:
        lease.check()
        snapshot.check_finite(content)
        ranks = self._sharded_by
        if isinstance(content, TrainingState):
            entries = files.put_files(uri, lambda folder: files.write_state(folder, content))
        else:
            entries = parts.put_share(uri, content, 0, ranks or 1)
            entries |= parts.await_parts(uri, ranks or 1, self._part_timeout, self._run_failed)
        return _manifest(step, lease, entries, run)

    def _commit(self, lease: RunLease, uri: str, manifest: Manifest) -> None:
        name = storage.join(uri, MANIFEST)
        lease.check()
        if not storage.put_if_absent(name, manifest.to_bytes()):
            raise CheckpointError(f"{name}: another process has committed it")
        try:
            lease.check()
        except FencedError:
            # The newer attempt took the lease between the check and the put. Undo a commit that it has not
            # seen. If it has seen the commit, the checkpoint is complete and its files stay.
            storage.delete(name)
            raise

    def _clear_partial(self, uri: str) -> None:
        """Frees the local disk after a failed save. The next commit cleans up an object store."""
        if storage.scheme(uri) == "file":
            try:
                storage.delete_prefix(uri)
            except StorageError as error:
                logger.warning(
                    "%s: could not delete the partial checkpoint, the next save will retry: %s", uri, error
                )

    def _is_kept(self, step: int, kept: Collection[int | None]) -> bool:
        every = self._keep_every
        return step in kept or (every is not None and step % every == 0)

    def _delete_old(self, lease: RunLease, step: int, newest_uri: str, kept: Collection[int | None]) -> None:
        """Deletes checkpoints beyond ``keep`` that are not ``kept``, and unfinished folders.

        The unfinished ones are those of this and earlier attempts. The newest checkpoint was just read back,
        so a verified one always stays. Other ranks may already be writing their parts of a later step.
        """
        try:
            folders = [f for f in list_folders(self.run_uri) if f.attempt <= lease.number]
            committed = [f for f in folders if f.committed and f.uri != newest_uri]
            in_progress = [f for f in folders if f.attempt == lease.number and f.step > step]
            unfinished = [f for f in folders if not f.committed and f not in in_progress]
            old = [f for f in committed[self._keep - 1 :] if not self._is_kept(f.step, kept)]
            for folder in old + unfinished:
                delete_folder(folder.uri)
                logger.info("%s: deleted", folder.uri)
        except StorageError as error:
            logger.warning(
                "%s: could not delete old checkpoints, the next save will retry: %s", self.run_uri, error
            )
