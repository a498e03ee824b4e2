"""Where a relative path of a config lies, on this machine and in a submitted job."""

from pathlib import Path

import pytest

from cluster.job_paths import lasting, lasting_input


def test_uris_and_absolute_paths_stay(tmp_path: Path) -> None:
    for path in ("s3://bucket/a", "file:///x/y", str(tmp_path)):
        assert lasting(path) == path


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lasting("runs/x") == str(tmp_path / "runs/x")


def test_in_a_submitted_job_it_outlasts_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("BERTMILL_HOME", str(tmp_path / "home"))
    assert lasting("runs/x") == str(tmp_path / "home" / "runs" / "x")
    monkeypatch.delenv("BERTMILL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert lasting("runs/x") == str(tmp_path / "me" / "bertmill" / "runs" / "x")


def test_an_input_that_was_uploaded_with_the_job_stays_relative(tmp_path, monkeypatch):
    copy = tmp_path / "working_dir_files" / "_ray_pkg_0"
    (copy / "model").mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("BERTMILL_HOME", str(tmp_path / "home"))
    assert lasting_input("model") == "model"
    assert lasting_input("runs/m") == str(tmp_path / "home" / "runs" / "m")
    assert lasting_input("s3://bucket/model") == "s3://bucket/model"
    monkeypatch.chdir(tmp_path)
    assert lasting_input("model") == str(tmp_path / "model")
