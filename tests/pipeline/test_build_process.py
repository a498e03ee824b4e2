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

    # Every listing costs the storage and this process milliseconds of CPU time.
    wait_until(lambda: job.poll() is not None or finished(), what=stage, every=0.2)
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
    tmp_path: Path, fields: dict[str, Any], arguments: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", **fields))
    assert_refused(message, path, *arguments, capsys=capsys)
    assert not (tmp_path / "out").exists()


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first in a separate process, whose whole output a user sees."""
    done = builds.run(tmp_path / "none.yaml")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "none.yaml" in done.stderr
    source = {"name": "x", "kind": "wikimedia", "paths": [str(tmp_path / "gonewiki-pages-articles.xml.bz2")]}
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", sources=[source]))
    assert_refused("gonewiki-pages-articles.xml.bz2", path, capsys=capsys)
    source["paths"] = ["s3://no-such-bucket-here/x.xml.bz2"]
    path = builds.write_config(tmp_path, builds.config(tmp_path / "out", sources=[source]))
    assert_refused("s3://no-such-bucket-here", path, capsys=capsys)
    assert not (tmp_path / "out").exists()


def test_a_wrong_vocabulary_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\nword\n")
    data = builds.config(tmp_path / "out", vocabulary={"path": str(vocabulary)})
    assert_refused("vocab.txt:6", builds.write_config(tmp_path, data), capsys=capsys)
    assert not (tmp_path / "out").exists()


def assert_refused(message: str, path: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that the job ends with status 2 and names the mistake in its last line."""
    assert builds.run_here(path, *arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors.strip().splitlines()[-1], errors
    assert "Traceback" not in errors
