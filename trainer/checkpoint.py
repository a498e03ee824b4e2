"""Checkpoints that survive crashes, broken uploads and a second trainer under the same run name.

The protocol: files go into a folder that only this attempt uses, are read back and compared, and only
then MANIFEST.json is created with a conditional put, unless a newer attempt has claimed the run. There
is no "latest" pointer: the newest folder that verifies is the latest. Older checkpoints are deleted
only after a newer one is committed, which includes that it was read back.

Rank 0 claims and writes; every rank may read. The state is
``{"model": {name: tensor}, "optimizer": plain data and tensors, "trainer": JSON}``.
"""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster import local_files, scratch, storage
from schemas.errors import CheckpointError, StorageError
from trainer import attempts
from trainer import checkpoint_format as layout
from trainer import checkpoint_parts as parts
from trainer.checkpoint_format import Folder, Manifest

log = logging.getLogger(__name__)

LOOKS = 5
"""How often a run that is being trained is listed again, when all that was listed has been deleted."""


@dataclass(frozen=True)
class SaveResult:
    """How one save went; times in seconds."""

    step: int
    uri: str
    size: int
    """Bytes of all files."""
    stall: float
    """How long training stood still: waiting for the save before, and copying."""
    seconds: float
    """From the copy to the commit, in the background."""
    error: str | None = None
    """Why it failed, or None if it is committed."""


class LoadedCheckpoint:
    """A committed checkpoint. Its files are compared with the manifest before they are loaded.

    A checkpoint on remote storage is kept in a temporary folder between ``verify`` and ``load``; use
    it in a ``with`` block or call ``close``.
    """

    def __init__(self, uri: str, manifest: Manifest) -> None:
        self.uri = uri
        self.manifest = manifest
        self._cleanup = ExitStack()
        self._local: Path | None = None

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.manifest.step

    @property
    def trainer(self) -> Mapping[str, Any]:
        """The loop's own state."""
        return self.manifest.trainer

    def verify(self) -> None:
        """Compares every file with the manifest. Raises CheckpointError that names the first bad one."""
        self._local = self._checked_files()

    def load(self) -> dict[str, Any]:
        """The state, on the CPU. Raises CheckpointError that names the file."""
        folder = self._local or self._checked_files()
        sharded = parts.parts_of(self.manifest.files)
        if sharded:
            state = parts.read_parts(folder, sharded, self.uri)
        else:
            state = layout.read_state(folder, self.uri)
        self.close()
        return {**state, "trainer": dict(self.manifest.trainer)}

    def _checked_files(self) -> Path:
        try:
            sharded = parts.parts_of(self.manifest.files)
        except CheckpointError as error:
            raise CheckpointError(f"{self.uri}/{layout.MANIFEST}: {error}") from error
        for name in (layout.OPTIMIZER, *([] if sharded else [layout.MODEL])):
            if name not in self.manifest.files:
                raise CheckpointError(f"{self.uri}/{layout.MANIFEST}: lists no {name}")
        if storage.scheme(self.uri) == "file":
            folder, remote = local_files.path_of(self.uri), False
        else:
            folder, remote = self._cleanup.enter_context(scratch.folder("load")), True
        for name, entry in self.manifest.files.items():
            layout.check_file(self.uri, name, entry, copy=folder / name if remote else None)
        return folder

    def close(self) -> None:
        """Removes the temporary copy."""
        self._local = None
        self._cleanup.close()

    def __enter__(self) -> "LoadedCheckpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_checkpoint(uri: str) -> LoadedCheckpoint:
    """The checkpoint in the folder ``uri``, for instance the one that rank 0 chose.

    Raises CheckpointError if it has no whole manifest; the files are checked when they are loaded.
    """
    folder = uri.rstrip("/")
    return LoadedCheckpoint(folder, Folder(0, 0, folder, {}).manifest())


def latest_verified(run_uri: str) -> LoadedCheckpoint | None:
    """The newest checkpoint of the run whose every byte is right, or None if the run has none.

    Each newer one that is passed over is logged with its reason. Raises CheckpointError when there are
    committed checkpoints and none can be used: starting over is a person's decision. Raises
    StorageError when the storage does not answer, which says nothing about the checkpoints.
    """
    folders = layout.scan(run_uri)
    reasons: list[str] = []
    for _ in range(LOOKS):
        found, reasons = _first_verified(folders)
        if found is not None or not reasons:
            return found
        # A training that goes on may have written newer ones and deleted these while they were read.
        before, folders = folders, layout.scan(run_uri)
        if {folder.uri for folder in folders if folder.committed} <= {folder.uri for folder in before}:
            break
    raise CheckpointError(
        f"{run_uri}: none of its {len(reasons)} checkpoints can be used; the newest: {reasons[0]}"
    )


def _first_verified(folders: list[Folder]) -> tuple[LoadedCheckpoint | None, list[str]]:
    """The first of ``folders`` that can be used, and what is wrong with those before it."""
    reasons = []
    for folder in folders:
        if not folder.committed:
            log.warning("%s: passed over, it was never finished", folder.uri)
            continue
        try:
            found = verified(folder)
        except CheckpointError as error:
            reasons.append(str(error))
            log.error("passed over a damaged checkpoint: %s", error)  # noqa: TRY400 - expected, no trace
            continue
        log.info("%s: verified, step %d", found.uri, found.step)
        return found, reasons
    return None, reasons


def verified(folder: Folder) -> LoadedCheckpoint:
    """The checkpoint in ``folder`` after a comparison of every byte. Raises CheckpointError."""
    manifest = folder.manifest()
    if manifest.step != folder.step:
        raise CheckpointError(f"{folder.uri}: its manifest is that of step {manifest.step}")
    found = LoadedCheckpoint(folder.uri, manifest)
    try:
        found.verify()
    except BaseException:
        found.close()
        raise
    return found


class CheckpointStore:
    """The checkpoints of one run, as one attempt writes them.

    ``save_async`` copies the state and returns; one background thread writes it. At most one save is
    in flight: the next one waits, so memory holds one copy of the state and the disk one checkpoint.
    A failed save is logged and counted; ``max_failed`` of them in a row, or being replaced by a newer
    attempt, raises CheckpointError from the next call.
    """

    def __init__(
        self,
        run_uri: str,
        attempt_name: str | None = None,
        keep: int = 3,
        max_failed: int = 3,
        *,
        sharded_by: int | None = None,
        part_timeout: float = 600.0,
    ) -> None:
        """``sharded_by`` ranks each save a part, this one the first (see trainer/checkpoint_parts.py).

        ``part_timeout`` is how many seconds a save waits for the parts of the others.
        """
        if keep < 1:
            raise CheckpointError(f"{run_uri}: at least one checkpoint must be kept, not {keep}")
        self.run_uri = run_uri.rstrip("/")
        self.last_result: SaveResult | None = None
        """The newest finished save, good or bad."""
        self.last_committed: SaveResult | None = None
        """The newest save that is committed, for registering it with Ray Train."""
        self.newest_committed: SaveResult | None = None
        """The same, known as soon as it is committed; set by the background thread."""
        self.failed_saves = 0
        """Failed saves so far."""
        self._name, self._keep, self._max_failed = attempt_name, keep, max_failed
        self._sharded_by, self._part_timeout = sharded_by, part_timeout
        self._hurry = threading.Event()
        self._failed_in_a_row = 0
        self._claim: attempts.Claim | None = None
        self._snapshot = layout.Snapshot()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[SaveResult] | None = None
        self._fenced: CheckpointError | None = None

    def claim(self) -> int:
        """Takes the run over from every earlier attempt; returns this attempt's number."""
        self._claim = attempts.claim(self.run_uri, self._name)
        # In the whole run: claims and logs are left half written as well.
        storage.end_stale_uploads(self.run_uri)
        return self._claim.number

    @property
    def folder_suffix(self) -> str:
        """What the names of this attempt's folders end with; "" before the claim."""
        return self._claim.suffix if self._claim else ""

    def latest_verified(self) -> LoadedCheckpoint | None:
        """See the function of the same name."""
        return latest_verified(self.run_uri)

    def save_async(self, step: int, state: Mapping[str, Any]) -> None:
        """Copies ``state`` and begins to save it as the state after ``step`` optimizer steps.

        Waits for a save that is still in flight. A step that this attempt has committed is not saved
        again. Raises CheckpointError as the class says.
        """
        if self._claim is None:
            raise CheckpointError(f"{self.run_uri}: claim the run before saving")
        started = time.monotonic()
        self._collect()
        if self.last_committed is not None and self.last_committed.step == step:
            return
        mine = parts.share_of(state, 0, self._sharded_by) if self._sharded_by else state
        copied = self._snapshot.take(mine)
        stall = time.monotonic() - started
        self._in_flight = self._executor.submit(self._save, self._claim, step, copied, stall)

    def wait(self) -> None:
        """Returns when the last save is committed. Raises CheckpointError if it failed."""
        self._collect()
        if self.last_result is not None and self.last_result.error is not None:
            raise CheckpointError(f"{self.last_result.uri}: not saved: {self.last_result.error}")

    def close(self, *, failed: bool = False) -> None:
        """Waits for the save in flight and ends the background thread.

        After the run has ``failed`` the parts of ranks that may be dead are not waited for long.
        """
        if failed:
            self._hurry.set()
        try:
            self.wait()
        finally:
            self._executor.shutdown()

    @property
    def _root(self) -> str:
        return storage.join(self.run_uri, "checkpoints")

    def _collect(self) -> None:
        """Waits for the save in flight and takes its result into account."""
        if self._fenced is not None:
            raise self._fenced
        if self._in_flight is None:
            return
        future, self._in_flight = self._in_flight, None
        try:
            result = future.result()
        except attempts.FencedError as error:
            self._fenced = error
            raise
        self.last_result = result
        if result.error is None:
            self.last_committed, self._failed_in_a_row = result, 0
            return
        self.failed_saves += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._max_failed:
            raise CheckpointError(
                f"{result.uri}: {self._failed_in_a_row} saves in a row failed, the last one: {result.error}"
            )

    def _save(self, claim: attempts.Claim, step: int, state: dict[str, Any], stall: float) -> SaveResult:
        """Runs in the background thread."""
        started = time.monotonic()
        uri = storage.join(self._root, layout.folder_name(step, claim.suffix))
        size, problem = 0, None
        try:
            manifest = self._upload(claim, uri, step, state)
            size = sum(entry.size for entry in manifest.files.values())
            self._commit(claim, uri, manifest)
        except attempts.FencedError:
            raise
        except Exception as error:  # whatever a disk, a library or a store may raise
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            log.error("%s: save failed: %s", uri, problem)  # noqa: TRY400 - counted, no trace
            self._clear_partial(uri)
        else:
            log.info("%s: committed, %d bytes in %.1f s", uri, size, time.monotonic() - started)
            self._delete_old(claim, step, uri)
        result = SaveResult(step, uri, size, stall, time.monotonic() - started, problem)
        if problem is None:
            self.newest_committed = result
        return result

    def _upload(self, claim: attempts.Claim, uri: str, step: int, state: dict[str, Any]) -> Manifest:
        claim.check()
        layout.check_finite(state)
        ranks = self._sharded_by
        if ranks:
            files = parts.put_share(uri, state, 0, ranks) | parts.await_parts(
                uri, ranks, self._part_timeout, self._hurry
            )
        else:
            files = layout.put_files(uri, lambda folder: layout.write_state(folder, state))
        return Manifest(step, claim.number, int(time.time()), files, state["trainer"])

    def _commit(self, claim: attempts.Claim, uri: str, manifest: Manifest) -> None:
        name = storage.join(uri, layout.MANIFEST)
        claim.check()
        if not storage.put_if_absent(name, manifest.to_bytes()):
            raise CheckpointError(f"{name}: was committed by somebody else")
        try:
            claim.check()
        except attempts.FencedError:
            # The claim came between the check and the put: take back what the newer attempt
            # has not seen. Had it been seen, it is whole and its files stay.
            storage.delete(name)
            raise

    def _clear_partial(self, uri: str) -> None:
        """Frees the disk after a failed save; a store that failed is left alone until the next one."""
        if storage.scheme(uri) == "file":
            try:
                storage.delete_prefix(uri)
            except StorageError as error:
                log.warning("%s: the partial checkpoint stays for now: %s", uri, error)

    def _delete_old(self, claim: attempts.Claim, step: int, newest_uri: str) -> None:
        """Deletes checkpoints beyond ``keep`` and the unfinished folders of this and earlier attempts.

        The newest one has just been read back, so a verified one always stays. Other ranks may have
        begun with their parts of a later step already.
        """
        try:
            folders = [f for f in layout.scan(self.run_uri) if f.attempt <= claim.number]
            committed = [f for f in folders if f.committed and f.uri != newest_uri]
            begun = [f for f in folders if f.attempt == claim.number and f.step > step]
            unfinished = [f for f in folders if not f.committed and f not in begun]
            for folder in committed[self._keep - 1 :] + unfinished:
                # Manifest first: a folder that is half deleted must not look committed.
                storage.delete(storage.join(folder.uri, layout.MANIFEST))
                storage.delete_prefix(folder.uri)
                log.info("%s: deleted", folder.uri)
        except StorageError as error:
            log.warning("%s: old checkpoints stay for now: %s", self.run_uri, error)
