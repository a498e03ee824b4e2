"""``bertmill checkpoints RUN`` and ``bertmill verify RUN``: the checkpoints of a run and their problems."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from cluster import storage
from schemas.errors import CheckpointError
from trainer.checkpoint.folders import Folder, list_folders
from trainer.checkpoint.manifest import MANIFEST
from trainer.checkpoint.reading import MAX_LISTINGS, open_checkpoint, open_verified
from trainer.checkpoint.snapshot import check_finite

UNFINISHED = "unfinished: it has no manifest"
DELETED = "deleted by a running training after it was listed"


@dataclass(frozen=True)
class ListedCheckpoint:
    """One line of the list."""

    step: int
    attempt: int
    uri: str
    size: int
    """Bytes of all its files."""
    modified: float
    """When its newest file was written, in seconds since 1970."""
    problem: str | None
    """Why it cannot be used, or None when it verifies."""


def list_checkpoints(run_uri: str) -> Iterator[ListedCheckpoint]:
    """Every checkpoint folder of the run, newest first. Verifies each one as the caller reaches it.

    Raises CheckpointError if the run has no checkpoint folder, most likely because the URI is misspelled.
    """
    folders = list_folders(run_uri)
    if not folders:
        raise CheckpointError(f"{run_uri}: no checkpoints here; check the URI of the run")
    for folder in folders:
        size = sum(info.size for info in folder.files.values())
        modified = max(info.modified for info in folder.files.values())
        yield ListedCheckpoint(folder.step, folder.attempt, folder.uri, size, modified, _problem(folder))


def verify_run(run_uri: str) -> list[str]:
    """The problems of the run's checkpoints, one line each, or [] when a resume is safe.

    Unfinished folders are not a problem, because the next commit removes them. The state is loaded as
    well, because a file may match its hash and still hold more than plain data.
    """
    for _ in range(MAX_LISTINGS):
        results = [_load_problem(listed) for listed in list_checkpoints(run_uri)]
        if None in results or DELETED not in results:
            break
    problems = [problem for problem in results if problem not in (None, UNFINISHED, DELETED)]
    if None not in results:
        problems.append(f"{run_uri}: no checkpoint of this run can be used")
    return [problem for problem in problems if problem is not None]


def _load_problem(listed: ListedCheckpoint) -> str | None:
    """Why a checkpoint does not verify or does not load, or None if it can be used."""
    if listed.problem is not None:
        return listed.problem
    try:
        with open_checkpoint(listed.uri) as checkpoint:
            state = checkpoint.load()
        check_finite(state, listed.uri)
    except CheckpointError as error:
        return _reason(error, listed.uri)
    return None


def format_line(listed: ListedCheckpoint, now: float | None = None) -> str:
    """The line that ``bertmill checkpoints`` prints."""
    age = _age((time.time() if now is None else now) - listed.modified)
    state = listed.problem or "verified"
    return f"step {listed.step:>9}  attempt {listed.attempt:>4}  {age:>8}  {listed.size:>14,} B  {state}"


def _problem(folder: Folder) -> str | None:
    if not folder.committed:
        return UNFINISHED
    try:
        open_verified(folder).close()
    except CheckpointError as error:
        return _reason(error, folder.uri)
    return None


def _reason(error: CheckpointError, folder_uri: str) -> str:
    """Why a committed checkpoint cannot be used: its error, or that retention has deleted it."""
    exists = storage.exists(storage.join(folder_uri, MANIFEST))
    return str(error) if exists else DELETED


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
