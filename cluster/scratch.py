"""Temporary folders that a killed process does not leave behind for ever."""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import StorageError

log = logging.getLogger(__name__)

_LOCK = ".lock"
_ABANDONED_SECONDS = 60.0
"""Age from which a folder without a lock counts as left behind; making one takes microseconds."""


@contextmanager
def folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """A private temporary folder, removed at the end; those of dead processes are removed at the start.

    A lock on a file inside tells the living from the dead: the kernel releases it however a process
    ends. ``parent`` defaults to the system's folder for temporary files.
    """
    root = (parent or Path(tempfile.gettempdir())) / f"bertmill-{os.getuid()}-{purpose}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise StorageError(f"{root}: this temporary folder belongs to another user")
        sweep(root)
        path = Path(tempfile.mkdtemp(dir=root))
        # Locked before it has the name that ``sweep`` looks for.
        lock = os.open(path / "lock.new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (path / "lock.new").rename(path / _LOCK)
    except OSError as error:
        raise StorageError(f"{root}: make a temporary folder: {error.strerror}") from error
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def _remove(path: Path) -> None:
    """Removes the folder, the lock last: a process killed in between leaves what ``sweep`` still knows."""
    if not path.exists():  # two sweepers met, and the other one was faster
        return
    for inner in list(path.iterdir()):
        if inner.is_dir():
            shutil.rmtree(inner, ignore_errors=True)
        elif inner.name != _LOCK:
            inner.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> int:
    """Removes the folders below ``root`` whose process is gone; returns their number."""
    removed = 0
    for path in root.iterdir():
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # Just being made or just being removed by its owner, who may have been killed right there.
            removed += _remove_if_old(path)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            log.info("%s: removing the temporary folder of a process that was killed", path)
            _remove(path)
            removed += 1
        finally:
            os.close(lock)
    return removed


def _remove_if_old(path: Path) -> bool:
    try:
        old = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:  # its owner was faster
        return False
    if old:
        shutil.rmtree(path, ignore_errors=True)
    return old
