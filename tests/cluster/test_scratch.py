"""Temporary folders: what killed processes leave goes, what living ones use stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster import scratch
from schemas.errors import StorageError

DIES = """
import os, signal, sys
from pathlib import Path
from cluster import scratch
with scratch.folder("test", Path(sys.argv[1])) as mine:
    (mine / "half").write_bytes(b"x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
"""

# Dies between making a folder and locking it, as early as one can.
DIES_EARLY = """
import os, signal, sys, tempfile
from pathlib import Path
from cluster import scratch
make = tempfile.mkdtemp
def make_and_die(dir):
    make(dir=dir)
    os.kill(os.getpid(), signal.SIGKILL)
tempfile.mkdtemp = make_and_die
with scratch.folder("test", Path(sys.argv[1])):
    pass
"""

LIVES = """
import random, sys
from pathlib import Path
from cluster import scratch
for number in range(200):
    with scratch.folder("test", Path(sys.argv[1])) as mine:
        (mine / "inner").mkdir()
        (mine / "inner" / "file").write_text(sys.argv[2])
        if random.random() < 0.2:
            with scratch.folder("test", Path(sys.argv[1])) as other:
                assert other != mine
        assert (mine / "inner" / "file").read_text() == sys.argv[2]
    assert not mine.exists()
"""


def folders(parent: Path) -> list[Path]:
    return [path for kind in parent.iterdir() for path in kind.iterdir() if path.is_dir()]


@pytest.mark.parametrize("script", [DIES, DIES_EARLY])
def test_a_killed_process_leaves_no_temporary_folder_for_ever(tmp_path: Path, script: str) -> None:
    """Whoever makes the next folder removes it; the folders of the living stay."""
    with scratch.folder("test", tmp_path) as living:
        killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
        assert killed.returncode == -9
        assert len(folders(tmp_path)) == 2
        with scratch.folder("test", tmp_path) as mine:
            assert sorted(folders(tmp_path)) == sorted([living, mine])
    assert folders(tmp_path) == []


def test_many_processes_never_take_the_folders_of_each_other(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", LIVES, str(tmp_path), str(number)]) for number in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert folders(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(StorageError, match="make a temporary folder: Not a directory"),
        scratch.folder("test", tmp_path / "file"),
    ):
        pass
