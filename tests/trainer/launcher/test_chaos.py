"""The short form of benchmarks/chaos/train.py: eight faults on each storage."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_few_faults_change_nothing(place: str) -> None:
    command = [sys.executable, "benchmarks/chaos/train.py", "--faults", "8", "--world-runs", "0"]
    done = subprocess.run(
        [*command, "--storage", place, "--seed", "3"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 checks failed" in done.stdout
    # A run can end before its first fault is due. Then another one follows.
    assert re.search(r"(\d+) of \1 runs ended with weights of the same SHA-256", done.stdout), done.stdout
    assert not re.search(r"^0 faults", done.stdout, re.MULTILINE), done.stdout
