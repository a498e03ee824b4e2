"""Frees disk space or room in a bucket for a new checkpoint, by deleting the oldest one."""

import logging
from collections.abc import Callable

from schemas.errors import CheckpointError
from trainer.checkpoint.folders import Folder, delete_folder, list_folders
from trainer.checkpoint.reading import open_verified

logger = logging.getLogger(__name__)

VERIFIED_KEPT = 2
"""Verified checkpoints to keep: two, in case the disk damages one."""


def free_oldest(run_uri: str, newest_attempt: int, is_kept: Callable[[int], bool]) -> bool:
    """Deletes the oldest checkpoint that is not needed. Returns false if there is none.

    Two verified checkpoints that are newer always stay, and so do steps that ``is_kept`` and checkpoints of
    attempts after ``newest_attempt``. Raises StorageError.
    """
    committed = [folder for folder in list_folders(run_uri) if folder.committed]
    verified = 0
    for number, folder in enumerate(committed):
        verified += _verifies(folder)
        if verified == VERIFIED_KEPT:
            spared = [
                older
                for older in committed[number + 1 :]
                if older.attempt <= newest_attempt and not is_kept(older.step)
            ]
            break
    else:
        return False
    if not spared:
        return False
    logger.warning("%s: deleted, because there is no room for a newer checkpoint", spared[-1].uri)
    delete_folder(spared[-1].uri)
    return True


def _verifies(folder: Folder) -> bool:
    try:
        open_verified(folder).close()
    except CheckpointError as error:
        logger.warning("damaged checkpoint: %s", error)
        return False
    return True
