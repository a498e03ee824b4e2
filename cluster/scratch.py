"""Temporary folders that are cleaned up even if their process is killed."""

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import StorageError

logger = logging.getLogger(__name__)

_PREFIX = "scratch-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LOCK = ".lock"
"""Inside a folder, locked while its owner runs. Next to the folders, locked to create or sweep one."""


@contextmanager
def folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """A private temporary folder, removed at the end. Folders of dead processes are removed at the start.

    ``parent`` defaults to the system's folder for temporary files. Raises StorageError if the folder
    cannot be created, or if its name is a link or belongs to another user.
    """
    root = (parent or Path(tempfile.gettempdir())) / f"bertmill-{os.getuid()}-{purpose}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(root)
        path, lock = _make(root)
    except OSError as error:
        raise StorageError(f"{root}: cannot create a temporary folder: {error.strerror}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _check_private(root: Path) -> None:
    """Raises StorageError unless ``root`` is a real folder of this user that no other user can write to.

    Anyone can create names in /tmp. A link there could make this process delete other files of its user.
    """
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise StorageError(f"{root}: must be a folder, not a link; remove it or set TMPDIR to another folder")
    if status.st_uid != os.getuid():
        raise StorageError(f"{root}: belongs to another user; set TMPDIR to another folder")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StorageError(f"{root}: other users can write to it; run: chmod 700 {root}")


def _make(root: Path) -> tuple[Path, int]:
    """Sweeps ``root`` and creates a folder in one step, so that no sweep sees a folder without its lock."""
    with _locked(root):
        _sweep(root)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = _open_lock(path / _LOCK, os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    # The kernel releases the lock of a dead process, so no process waits for it.
    lock = _open_lock(root / _LOCK, os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path, flags: int = 0) -> int:
    return os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _sweep(root: Path) -> None:
    """Removes folders of dead processes, which hold no lock or died before they created one."""
    for path in root.iterdir():
        if not _OURS.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        try:
            lock = _open_lock(path / _LOCK)
        except FileNotFoundError:
            # Its owner was killed before it created the lock, or is removing the folder now.
            shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("%s: removing the temporary folder of a killed process", path)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
