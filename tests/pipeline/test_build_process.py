"""The corpus job as a user runs it: exit status, bytes for any number of CPUs, kill and restart."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import builds
from tests.pipeline.conftest import Built
from tests.waiting import wait_until


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_build_resumed_with_other_cpus_gives_the_bytes_of_an_undisturbed_one(
    built: Built, tmp_path: Path
) -> None:
    """Cases pipeline-022 and pipeline-026: started with one CPU, killed in three stages, resumed with two.

    The undisturbed build had four CPUs.
    """
    output = tmp_path / "killed"
    path = builds.write_config(tmp_path, builds.held_out_config(output))
    for stage in ("templates", "template-tables", "extract"):
        kill_when(path, output, f"work/{stage}-*/*.parquet")
        assert not (output / "manifest.json").exists()
    done = builds.run(path, "--cpus", "2")
    assert done.returncode == 0, done.stderr
    assert "5 finished earlier" in done.stderr
    assert builds.published_files(output) == built.files


def kill_when(path: Path, output: Path, pattern: str) -> None:
    """Starts the job and kills its whole process group as soon as a file matches ``pattern``."""
    job = subprocess.Popen(
        builds.command(path, "--cpus", "1"),
        env=builds.environment(), cwd=builds.ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: list(output.glob(pattern)) or job.poll() is not None, what=pattern)
    assert job.poll() is None, "the job ended before it could be killed"
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        ({"seeds": 1}, [], "seeds: unknown field"),
        ({"seed": -1}, [], "seed: Input should be greater than or equal to 0"),
        ({"sources": []}, [], "sources: List should have at least 1 item"),
        ({}, ["--instances.passes=0"], "instances.passes"),
        ({}, ["--instances.pases=2"], "instances.pases: unknown field"),
        ({}, ["--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_config_is_one_line_and_status_2(
    tmp_path: Path, fields: dict[str, Any], arguments: list[str], message: str
) -> None:
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", **fields))
    done = builds.run(path, *arguments)
    assert_refused(done, message)
    assert not (tmp_path / "out").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert_refused(builds.run(tmp_path / "none.yaml"), "none.yaml")
    source = {"name": "x", "kind": "wikimedia", "paths": [str(tmp_path / "gonewiki-pages-articles.xml.bz2")]}
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", sources=[source]))
    assert_refused(builds.run(path), "gonewiki-pages-articles.xml.bz2")
    source["paths"] = ["s3://no-such-bucket-here/x.xml.bz2"]
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", sources=[source]))
    assert_refused(builds.run(path), "s3://no-such-bucket-here")
    assert not (tmp_path / "out").exists()


def test_a_wrong_vocabulary_file_is_named(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\nword\n")
    data = builds.config(tmp_path / "out", vocabulary={"path": str(vocabulary)})
    done = builds.run(builds.write_config(tmp_path, data))
    assert_refused(done, "vocab.txt:6")
    assert not (tmp_path / "out").exists()


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert message in last, done.stderr
    assert "Traceback" not in done.stderr
