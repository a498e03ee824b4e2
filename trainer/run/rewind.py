"""Takes a run back to one of its checkpoints, and optionally skips the data after it."""

import logging
import time
from pathlib import Path

from cluster import storage
from cluster.jobs.lease import Claimant, RunLease, acquire_lease
from schemas.errors import CheckpointError
from trainer.checkpoint import files
from trainer.checkpoint.folders import Folder, checkpoints_uri, folder_name, list_folders
from trainer.checkpoint.manifest import MANIFEST, DataSkip, FileEntry, Manifest
from trainer.checkpoint.reading import LoadedCheckpoint, open_verified

logger = logging.getLogger(__name__)


def rewind(run_uri: str, step: int, skip_data: int = 0) -> str:
    """Makes the checkpoint of ``step`` the one that the run resumes from and returns the new folder's URI.

    A copy of it, with the state of the optimizer, becomes the newest checkpoint of the run. Later ones stay
    until the run deletes them as old. The training leaves out ``skip_data`` batches after ``step``. Raises
    CheckpointError when there is no intact checkpoint of this step, or when a process is training the run.
    """
    run_uri = run_uri.rstrip("/")
    folder = _folder_of(run_uri, step)
    lease = acquire_lease(run_uri, Claimant("rewind"))
    try:
        with open_verified(folder) as checkpoint:
            return _copy(checkpoint, lease, skip_data)
    finally:
        lease.release()


def _folder_of(run_uri: str, step: int) -> Folder:
    folders = [folder for folder in list_folders(run_uri) if folder.committed]
    for folder in folders:
        if folder.step == step:
            return folder
    steps = ", ".join(map(str, sorted({folder.step for folder in folders}))) or "none"
    raise CheckpointError(f"{run_uri}: no checkpoint of step {step}; the steps with a checkpoint are {steps}")


def _copy(checkpoint: LoadedCheckpoint, lease: RunLease, skip_data: int) -> str:
    run = checkpoint.run
    position = run.position
    if skip_data:
        skip = DataSkip(step=checkpoint.step, batches=skip_data)
        position = position.model_copy(update={"skips": [*position.skips, skip]})

    def download(folder: Path) -> dict[str, FileEntry]:
        for name in checkpoint.manifest.files:
            storage.download_file(storage.join(checkpoint.uri, name), folder / name)
        return dict(checkpoint.manifest.files)

    uri = storage.join(checkpoints_uri(lease.run_uri), folder_name(checkpoint.step, lease.suffix))
    entries = files.put_files(uri, download)
    manifest = Manifest(
        step=checkpoint.step,
        attempt=lease.number,
        created=int(time.time()),
        code_version=checkpoint.manifest.code_version,
        files=entries,
        run=run.model_copy(update={"position": position}),
    )
    lease.check()
    storage.put_bytes(storage.join(uri, MANIFEST), manifest.to_bytes())
    return uri
