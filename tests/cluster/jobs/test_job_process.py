"""Tests that a submitted job survives the kill after ``ray job stop`` and otherwise ends with its entry."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS, wait_until

WORK = """
import pathlib, signal, sys, time
from cluster.jobs import shutdown
from cluster.jobs.job_process import run_job
folder = pathlib.Path(sys.argv[1])
def main():
    with shutdown.handled():
        (folder / "started").touch()
        while not shutdown.requested():
            if (folder / "fail").exists():
                raise RuntimeError("the work fails")
            if (folder / "finish").exists():
                print("output of the work", flush=True)
                return 7
            time.sleep(0.02)
        (folder / "told").touch()
        while not (folder / "saved").exists():
            time.sleep(0.02)
        (folder / "ended").touch()
        return 143
sys.exit(run_job(main))
"""


@pytest.fixture
def entry(tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((tmp_path / "started").exists)
    return process


def test_the_exit_status_and_the_output_are_those_of_the_work(
    tmp_path: Path, entry: subprocess.Popen[str]
) -> None:
    (tmp_path / "finish").touch()
    assert entry.communicate(timeout=HANG_SECONDS)[0] == "output of the work\n"
    assert entry.returncode == 7


def test_an_unexpected_error_has_its_traceback(tmp_path: Path, entry: subprocess.Popen[str]) -> None:
    (tmp_path / "fail").touch()
    assert entry.communicate(timeout=HANG_SECONDS)[0].endswith("RuntimeError: the work fails\n")
    assert entry.returncode == 1


def test_a_stop_and_the_kill_after_it_leave_the_time_to_save(
    tmp_path: Path, entry: subprocess.Popen[str]
) -> None:
    """Acts like Ray's job supervisor: SIGTERM to the process and its descendants, then SIGKILL."""
    processes = [psutil.Process(entry.pid), *psutil.Process(entry.pid).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "told").exists)
    for process in processes:
        process.kill()
    entry.wait()
    (tmp_path / "saved").touch()
    wait_until((tmp_path / "ended").exists)
    assert entry.communicate(timeout=HANG_SECONDS)[0] == ""  # no process has the pipe open


def test_the_death_of_the_entry_process_is_a_request_to_stop(
    tmp_path: Path, entry: subprocess.Popen[str]
) -> None:
    entry.kill()
    wait_until((tmp_path / "told").exists)
    (tmp_path / "saved").touch()
    entry.communicate(timeout=HANG_SECONDS)
