"""``bertmill checkpoints RUN`` and ``bertmill verify RUN`` on a run with and without damage."""

from pathlib import Path

import pytest

from bertmill.cli import main
from cluster import storage
from tests.trainer.states import flip_byte, folder_of, save_steps
from trainer.checkpoint.manifest import OPTIMIZER


def test_a_sound_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    save_steps(run, [2, 4])
    assert main(["verify", run]) == 0
    assert "every checkpoint can be used" in capsys.readouterr().out
    assert main(["checkpoints", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["4", "2"]
    assert all(line.endswith("verified") for line in lines)
    # step S  attempt N  AGE UNIT  SIZE B  STATE
    for line, step in zip(lines, (4, 2), strict=True):
        _, _, _, attempt, age, unit, size, _, _ = line.split()
        assert (attempt, unit) == ("1", "s")
        assert int(age) < 120
        files = storage.list_files(folder_of(run, step))
        assert int(size.replace(",", "")) == sum(info.size for info in files)
    assert main(["verify", folder_of(run, 4)]) == 0


def test_a_damaged_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    save_steps(run, [2, 4])
    damaged = storage.join(folder_of(run, 4), OPTIMIZER)
    flip_byte(damaged, 100)
    assert main(["verify", run]) == 1
    assert capsys.readouterr().out == f"{damaged}: its sha256 differs from the manifest\n"
    assert main(["checkpoints", run]) == 0
    assert f"{damaged}: its sha256 differs" in capsys.readouterr().out


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
