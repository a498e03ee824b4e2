"""The short form of benchmarks/chaos_train.py: eight faults on each storage."""

import os
import subprocess
import sys

import pytest

from tests.ray_cluster import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_few_faults_change_nothing(place: str) -> None:
    command = [sys.executable, "benchmarks/chaos_train.py", "--faults", "8", "--world-runs", "0"]
    done = subprocess.run(
        [*command, "--storage", place, "--seed", "3"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 promises were broken" in done.stdout
    assert "1 of 1 runs ended with weights of the same SHA-256" in done.stdout
