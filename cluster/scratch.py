"""Temporary folders that a killed process does not leave behind for ever."""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import StorageError

log = logging.getLogger(__name__)

_LOCK = ".lock"
"""In a folder: locked while its owner lives. Beside the folders: locked while one is made or swept."""


@contextmanager
def folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """A private temporary folder, removed at the end; those of dead processes are removed at the start.

    ``parent`` defaults to the system's folder for temporary files. Raises StorageError if it cannot be
    written to or holds a folder of another user under our name.
    """
    root = (parent or Path(tempfile.gettempdir())) / f"bertmill-{os.getuid()}-{purpose}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise StorageError(f"{root}: this temporary folder belongs to another user")
        path, lock = _make(root)
    except OSError as error:
        raise StorageError(f"{root}: make a temporary folder: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make(root: Path) -> tuple[Path, int]:
    """Sweeps ``root`` and makes a folder there, as one step: no sweeper sees a folder before its lock."""
    with _locked(root):
        _sweep(root)
        path = Path(tempfile.mkdtemp(dir=root))
        lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    # The kernel releases a lock however its process ends, so nobody waits for the dead.
    lock = os.open(root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sweep(root: Path) -> None:
    """Removes the folders whose process is gone: it holds no lock, or died before it had made one."""
    for path in root.iterdir():
        if path.name == _LOCK:
            continue
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # Its owner was killed between two lines, or is removing it right now: both want it gone.
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            log.info("%s: removing the temporary folder of a process that was killed", path)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
