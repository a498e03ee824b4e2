"""``bertmill checkpoints RUN`` and ``bertmill verify RUN``: what a run holds, and whether it is whole."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from cluster import storage
from schemas.errors import CheckpointError
from trainer import checkpoint, checkpoint_format

UNFINISHED = "unfinished: it has no manifest"
DELETED = "deleted since it was listed, by a training that goes on"


@dataclass(frozen=True)
class ListedCheckpoint:
    """One line of the list."""

    step: int
    attempt: int
    uri: str
    size: int
    """Bytes of all files that are there."""
    modified: float
    """When its newest file was written, seconds since 1970."""
    problem: str | None
    """Why it cannot be used, or None when every byte is verified."""


def list_checkpoints(run_uri: str) -> Iterator[ListedCheckpoint]:
    """Every checkpoint folder of the run, newest first, each read and compared as it is reached.

    Raises CheckpointError if there is no checkpoint folder at all: most likely the URI is misspelt.
    """
    folders = checkpoint_format.scan(run_uri)
    if not folders:
        raise CheckpointError(f"{run_uri}: no checkpoints here")
    for folder in folders:
        size = sum(info.size for info in folder.files.values())
        modified = max(info.modified for info in folder.files.values())
        yield ListedCheckpoint(folder.step, folder.attempt, folder.uri, size, modified, _problem(folder))


def verify_run(run_uri: str) -> list[str]:
    """Everything that is wrong with the run's checkpoints, one line each; [] when a resume is safe.

    Unfinished folders are no fault: the next commit removes them. The optimizer state is loaded as
    well, so that a file which is whole but is not plain data is found here and not at the resume.
    """
    for _ in range(checkpoint.LOOKS):
        found = [_loaded(listed) for listed in list_checkpoints(run_uri)]
        if None in found or DELETED not in found:
            break
    problems = [problem for problem in found if problem not in (None, UNFINISHED, DELETED)]
    if None not in found:
        problems.append(f"{run_uri}: no checkpoint of this run can be used")
    return [problem for problem in problems if problem is not None]


def _loaded(listed: ListedCheckpoint) -> str | None:
    """What is wrong with a checkpoint, also with the content of its files; None if it can be used."""
    if listed.problem is not None:
        return listed.problem
    try:
        with checkpoint.open_checkpoint(listed.uri) as found:
            state = found.load()
        checkpoint_format.check_finite(state, listed.uri)
    except CheckpointError as error:
        return _reason(error, listed.uri)
    return None


def format_line(listed: ListedCheckpoint, now: float | None = None) -> str:
    """The line that ``bertmill checkpoints`` prints."""
    age = _age((time.time() if now is None else now) - listed.modified)
    state = listed.problem or "verified"
    return f"step {listed.step:>9}  attempt {listed.attempt:>4}  {age:>8}  {listed.size:>14,} B  {state}"


def _problem(folder: checkpoint_format.Folder) -> str | None:
    if not folder.committed:
        return UNFINISHED
    try:
        checkpoint.verified(folder).close()
    except CheckpointError as error:
        return _reason(error, folder.uri)
    return None


def _reason(error: CheckpointError, folder_uri: str) -> str:
    """Why a committed checkpoint cannot be used: a fault, or that retention has deleted it meanwhile."""
    there = storage.exists(storage.join(folder_uri, checkpoint_format.MANIFEST))
    return str(error) if there else DELETED


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
