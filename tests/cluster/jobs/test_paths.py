"""Tests how relative paths in a config resolve, on this machine and in a submitted job."""

from pathlib import Path

import pytest

from cluster.jobs.config_file import validate
from cluster.jobs.paths import expand_location, resolve_input_path, resolve_output_path
from schemas.errors import ConfigError
from trainer.config import TrainConfig


def test_uris_and_absolute_paths_stay(tmp_path: Path) -> None:
    for path in ("s3://bucket/a", "file:///x/y", str(tmp_path)):
        assert resolve_output_path(path) == path


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_output_path("runs/x") == str(tmp_path / "runs/x")


def test_in_a_submitted_job_it_outlasts_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("BERTMILL_HOME", str(tmp_path / "home"))
    assert resolve_output_path("runs/x") == str(tmp_path / "home" / "runs" / "x")
    monkeypatch.delenv("BERTMILL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert resolve_output_path("runs/x") == str(tmp_path / "me" / "bertmill" / "runs" / "x")


def test_an_input_that_was_uploaded_with_the_job_stays_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_0"
    (copy / "model").mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("BERTMILL_HOME", str(tmp_path / "home"))
    assert resolve_input_path("model") == "model"
    assert resolve_input_path("runs/m") == str(tmp_path / "home" / "runs" / "m")
    assert resolve_input_path("s3://bucket/model") == "s3://bucket/model"
    monkeypatch.chdir(tmp_path)
    assert resolve_input_path("model") == str(tmp_path / "model")


def test_home_and_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BUCKET", "b")
    for text in ("~/runs", "$HOME/runs", "${HOME}/runs"):
        assert expand_location(text) == str(tmp_path / "runs")
    assert expand_location("s3://${BUCKET}/x") == "s3://b/x"
    assert expand_location("~") == str(tmp_path)
    assert expand_location("a~b/c:d") == "a~b/c:d"
    assert expand_location("datasets:///data/wikipedia?name=x") == "datasets:///data/wikipedia?name=x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("$NO_SUCH_THING/runs", "the environment variable 'NO_SUCH_THING' is not set"),
        ("s3://${NO_SUCH_THING}/runs", "the environment variable 'NO_SUCH_THING' is not set"),
        ("~no-such-user/runs", "no user of that name has a home folder"),
        ("s3:/b/runs", "write s3://b/runs"),
        ("s3:b/runs", "write s3://b/runs"),
        ("S3://b/runs", "write s3://b/runs"),
        ("s3:///runs", "no bucket or host after s3://; write s3://BUCKET/KEY"),
        ("gs:/b", "write gs://b"),
        ("file://runs/x", "write file:///runs/x"),
        ("file:/runs/x", "write file:///runs/x"),
        ("  ", "not an empty text"),
    ],
)
def test_what_is_neither_a_path_nor_a_uri_is_refused_with_the_field(text: str, reason: str) -> None:
    config = {
        "run": {"name": "r", "storage": text},
        "data": {"manifest": "m"},
        "phases": [
            {
                "max_seq_length": 32,
                "global_batch": 1,
                "micro_batch_tokens": 32,
                "steps": 1,
                "learning_rate": 1,
            }
        ],
    }
    with pytest.raises(ConfigError, match=r"train\.yaml: run\.storage: ") as caught:
        validate(TrainConfig, config, "train.yaml")
    assert reason in str(caught.value)
