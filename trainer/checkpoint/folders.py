"""The checkpoint folders of a run: their names, and which of them are committed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster import storage
from cluster.storage.entries import FileInfo
from schemas.errors import CheckpointError
from trainer.checkpoint.manifest import MANIFEST, Manifest

_FOLDER = re.compile(r"step-(\d{8,})\.(\d{6,})(-[a-z0-9-]*)?")


@dataclass(frozen=True)
class Folder:
    """One checkpoint folder as a listing shows it."""

    attempt: int
    step: int
    uri: str
    files: Mapping[str, FileInfo]

    @property
    def committed(self) -> bool:
        """Whether it has a manifest."""
        return MANIFEST in self.files


def folder_name(step: int, attempt_suffix: str) -> str:
    """Name of the folder of ``step``, unique to the attempt."""
    return f"step-{step:08d}.{attempt_suffix}"


def checkpoints_uri(run_uri: str) -> str:
    """The folder of all checkpoints of a run."""
    return storage.join(run_uri, "checkpoints")


def delete_folder(folder_uri: str) -> None:
    """Deletes a checkpoint, the manifest first: a folder that is half deleted must not look committed."""
    storage.delete(storage.join(folder_uri, MANIFEST))
    storage.delete_prefix(folder_uri)


def read_manifest(folder_uri: str) -> Manifest:
    """The checked manifest of a checkpoint folder. Raises CheckpointError."""
    uri = storage.join(folder_uri, MANIFEST)
    try:
        return Manifest.from_bytes(storage.read_bytes(uri), uri)
    except FileNotFoundError as error:
        raise CheckpointError(f"{uri}: missing; the checkpoint is unfinished or was deleted") from error


def list_folders(run_uri: str) -> list[Folder]:
    """All checkpoint folders of the run, newest first: the highest step of the newest attempt comes first.

    The attempt counts before the step. An attempt that fell back to an earlier step turns the later
    steps of previous attempts into a branch that the run does not follow.
    """
    root = checkpoints_uri(run_uri)
    files_by_folder: dict[str, dict[str, FileInfo]] = {}
    for info in storage.list_files(root):
        name, _, file = info.uri.removeprefix(root.rstrip("/") + "/").partition("/")
        if file:
            files_by_folder.setdefault(name, {})[file] = info
    folders = []
    for name, files in files_by_folder.items():
        match = _FOLDER.fullmatch(name)
        if match:
            folders.append(Folder(int(match[2]), int(match[1]), storage.join(root, name), files))
    return sorted(folders, key=lambda folder: (folder.attempt, folder.step, folder.uri), reverse=True)


def newest_committed_step(run_uri: str) -> int:
    """The step of the newest committed checkpoint of the run, or 0 without one."""
    return next((folder.step for folder in list_folders(run_uri) if folder.committed), 0)


def newest_committed(run_uri: str) -> str | None:
    """The newest committed checkpoint of the run, or None."""
    return next((folder.uri for folder in list_folders(run_uri) if folder.committed), None)
