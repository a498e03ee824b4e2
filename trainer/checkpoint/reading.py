"""Finds, verifies and loads the checkpoints of a run."""

import logging
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from cluster import scratch, storage
from cluster.storage import local_files
from schemas.errors import CheckpointError
from trainer.checkpoint import files, parts
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.folders import Folder, list_folders, read_manifest
from trainer.checkpoint.manifest import EMA, MANIFEST, MODEL, OPTIMIZER, Manifest, RunState

logger = logging.getLogger(__name__)

MAX_LISTINGS = 5
"""How often a run in training is listed again after everything in the first listing was deleted."""


class LoadedCheckpoint:
    """A committed checkpoint. Its files are compared with the manifest before they are loaded.

    Between ``verify`` and ``load`` a temporary folder holds a copy of a remote checkpoint. Use it in a
    ``with`` block or call ``close``.
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
    def run(self) -> RunState:
        """The state of the run except its tensors."""
        return self.manifest.run

    def verify(self) -> None:
        """Compares every file with the manifest. Raises CheckpointError that names the first bad one."""
        self._local = self._checked_files()

    @property
    def folder(self) -> Path | None:
        """The local folder of the files, between ``verify`` and ``close``."""
        return self._local

    def use_verified(self, folder: Path) -> None:
        """Loads the files from ``folder``, where another process of this machine has verified them.

        The folder must stay until ``load`` has returned.
        """
        self._local = folder

    def load(self, *, keep_files: bool = False) -> TrainingState:
        """The state, on the CPU. Raises CheckpointError that names the file.

        Removes the temporary copy, unless it must stay for other processes (``keep_files``).
        """
        folder = self._local or self._checked_files()
        part_names = parts.parts_of(self.manifest.files)
        if part_names:
            state = parts.read_parts(folder, part_names, self.run, self.uri)
        else:
            with_ema = EMA in self.manifest.files
            state = files.read_state(folder, self.run, self.uri, with_ema=with_ema)
        if not keep_files:
            self.close()
        return state

    def _checked_files(self) -> Path:
        try:
            part_names = parts.parts_of(self.manifest.files)
        except CheckpointError as error:
            raise CheckpointError(f"{self.uri}/{MANIFEST}: {error}") from error
        for name in (OPTIMIZER, *([] if part_names else [MODEL])):
            if name not in self.manifest.files:
                raise CheckpointError(f"{self.uri}/{MANIFEST}: does not list {name}")
        if storage.scheme(self.uri) == "file":
            folder, remote = local_files.path_of(self.uri), False
        else:
            folder, remote = self._cleanup.enter_context(scratch.folder("load")), True
        for name, entry in self.manifest.files.items():
            files.check_file(self.uri, name, entry, copy=folder / name if remote else None)
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
    """The checkpoint in the folder ``uri``, for example the one that rank 0 chose.

    Raises CheckpointError if its manifest is missing or damaged. ``load`` checks the other files.
    """
    folder = uri.rstrip("/")
    return LoadedCheckpoint(folder, read_manifest(folder))


def latest_verified(run_uri: str) -> LoadedCheckpoint | None:
    """The newest checkpoint of the run that verifies, or None if the run has no checkpoint.

    Logs each newer one that it skips, with the reason. Raises CheckpointError when there are committed
    checkpoints and none can be used, because only the user may decide to start over. Raises StorageError
    when the storage does not answer.
    """
    folders = list_folders(run_uri)
    reasons: list[str] = []
    for _ in range(MAX_LISTINGS):
        checkpoint, reasons = _first_verified(folders)
        if checkpoint is not None or not reasons:
            return checkpoint
        # A running training may have written newer checkpoints and deleted these in the meantime.
        before, folders = folders, list_folders(run_uri)
        if {folder.uri for folder in folders if folder.committed} <= {folder.uri for folder in before}:
            break
    raise CheckpointError(
        f"{run_uri}: none of its {len(reasons)} checkpoints can be used; the newest one: {reasons[0]}"
    )


def _first_verified(folders: list[Folder]) -> tuple[LoadedCheckpoint | None, list[str]]:
    """The first of ``folders`` that verifies, and what is wrong with those before it."""
    reasons = []
    for folder in folders:
        if not folder.committed:
            logger.warning("%s: skipped, because it is unfinished", folder.uri)
            continue
        try:
            checkpoint = open_verified(folder)
        except CheckpointError as error:
            reasons.append(str(error))
            logger.error("skipped a damaged checkpoint: %s", error)  # noqa: TRY400 - expected, no trace
            continue
        logger.info("%s: verified, step %d", checkpoint.uri, checkpoint.step)
        return checkpoint, reasons
    return None, reasons


def open_verified(folder: Folder) -> LoadedCheckpoint:
    """The checkpoint in ``folder``, after every byte was compared. Raises CheckpointError."""
    manifest = read_manifest(folder.uri)
    if manifest.step != folder.step:
        raise CheckpointError(f"{folder.uri}: its manifest is that of step {manifest.step}")
    checkpoint = LoadedCheckpoint(folder.uri, manifest)
    try:
        checkpoint.verify()
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint
