"""Tests that temporary folders of killed processes are removed and those of others stay."""

import os
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

# Dies between creating a folder and locking it, as early as possible.
DIES_EARLY = """
import os, signal, sys, tempfile
from pathlib import Path
from cluster import scratch
make = tempfile.mkdtemp
def make_and_die(**arguments):
    make(**arguments)
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
def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path, script: str) -> None:
    """The next process to create a folder removes it. Folders of live processes stay."""
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
        pytest.raises(StorageError, match="cannot create a temporary folder: Not a directory"),
        scratch.folder("test", tmp_path / "file"),
    ):
        pass


def root_of(parent: Path) -> Path:
    return parent / f"bertmill-{os.getuid()}-test"


def test_a_link_in_the_place_of_the_folder_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    """Anyone can create such a link in /tmp. The sweep would delete the folders behind it."""
    (tmp_path / "home" / "thesis").mkdir(parents=True)
    root_of(tmp_path).symlink_to(tmp_path / "home", target_is_directory=True)
    with pytest.raises(StorageError, match="must be a folder, not a link"), scratch.folder("test", tmp_path):
        pass
    assert (tmp_path / "home" / "thesis").is_dir()


def test_only_folders_made_here_are_removed(tmp_path: Path) -> None:
    with scratch.folder("test", tmp_path):
        pass
    root = root_of(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (root / "scratch-linked00").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "notes").mkdir()
    (root / "scratch-file0000").write_text("a file")
    (root / "scratch-dead0000").mkdir()
    with scratch.folder("test", tmp_path):
        pass
    assert sorted(path.name for path in root.iterdir()) == [
        ".lock", "notes", "scratch-file0000", "scratch-linked00",
    ]  # fmt: skip
    assert (tmp_path / "elsewhere").is_dir()


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    root_of(tmp_path).mkdir(mode=0o700)
    (tmp_path / "precious").write_text("text")
    (root_of(tmp_path) / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="symbolic links"), scratch.folder("test", tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "text"


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    root_of(tmp_path).mkdir()
    root_of(tmp_path).chmod(0o777)
    with pytest.raises(StorageError, match=r"other users can write to it; run: chmod 700"):
        scratch.folder("test", tmp_path).__enter__()
