"""Tests the corpus job as a user runs it: exit status, bytes for any number of CPUs, kill and restart."""

import hashlib
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster import storage
from tests.pipeline import builds
from tests.pipeline.conftest import Built
from tests.support.waiting import wait_until


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


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_build_with_an_earlier_one_gives_the_same_bytes_on_s3(
    built: Built, s3_folder: str, tmp_path: Path
) -> None:
    """All workers are killed once, then the whole job. The earlier build has the same pages."""
    path = builds.write_config(tmp_path, builds.held_out_config(s3_folder, previous=str(built.folder)))
    job = start(path)
    when_stored(job, path, s3_folder, "templates-")
    wait_until(lambda: ray_workers(job.pid), what="a worker")
    for worker in ray_workers(job.pid):
        os.kill(worker, signal.SIGKILL)
    when_stored(job, path, s3_folder, "extract-")
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    assert not storage.exists(f"{s3_folder}/manifest.json")
    done = builds.run(path, "--cpus", "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"extract: reused ([\d,]+) of \1 pages", done.stderr), done.stderr
    published = {
        info.uri.removeprefix(f"{s3_folder}/"): hashlib.sha256(storage.read_bytes(info.uri)).hexdigest()
        for info in storage.list_files(s3_folder)
    }
    assert not [name for name in published if name.startswith("work/page-copies-")]
    assert {name: digest for name, digest in published.items() if not name.startswith("work/")} == built.files


def start(path: Path) -> "subprocess.Popen[bytes]":
    """Starts the job in its own process group with one CPU. Its output goes to the file ``log_of(path)``."""
    with log_of(path).open("w") as log:
        return subprocess.Popen(
            builds.command(path, "--cpus", "1"),
            env=builds.environment(), cwd=builds.ROOT, start_new_session=True,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def log_of(path: Path) -> Path:
    return path.with_suffix(".log")


def when_stored(job: "subprocess.Popen[bytes]", path: Path, output: str, stage: str) -> None:
    """Returns as soon as a unit of the stage is finished."""

    def finished() -> bool:
        found = storage.list_files(f"{output}/work")
        return any(f"/work/{stage}" in info.uri and info.uri.endswith(".done.json") for info in found)

    wait_until(lambda: job.poll() is not None or finished(), what=stage)
    assert job.poll() is None, f"the job ended before it could be killed:\n{log_of(path).read_text()}"


def ray_workers(session: int) -> list[int]:
    """The worker processes of a session's Ray. They have their own process groups."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes().rstrip(b"\0 ")
            is_worker = command.startswith(b"ray::") and not command.endswith(b"Agent")
            if is_worker and os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
    return found


def kill_when(path: Path, output: Path, pattern: str) -> None:
    """Starts the job and kills its whole process group as soon as a file matches ``pattern``."""
    job = start(path)
    wait_until(lambda: list(output.glob(pattern)) or job.poll() is not None, what=pattern)
    assert job.poll() is None, f"the job ended before it could be killed:\n{log_of(path).read_text()}"
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
