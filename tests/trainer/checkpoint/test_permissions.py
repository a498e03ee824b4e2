"""Who may read the files of a checkpoint."""

import os
import stat
from pathlib import Path

import pytest

from tests.trainer.states import save_steps
from trainer.checkpoint.folders import list_folders


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read_a_checkpoint(local_run: str, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_steps(local_run, [1])
    finally:
        os.umask(before)
    (folder,) = list_folders(local_run)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(folder.uri).iterdir()}
    assert modes == dict.fromkeys(modes, mode)
