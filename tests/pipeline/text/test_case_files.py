"""Runs the shared case files of the cleaning areas through the console command, as a user would."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "cases"


@pytest.mark.parametrize("area", ["wikitext", "normalize", "sentences"])
def test_all_cases_of_the_area_pass(area: str) -> None:
    command = [sys.executable, str(CASES / "run_cases.py"), area, "--time-factor", "10"]
    result = subprocess.run(
        [*command, "--command", f"{sys.executable} -m bertmill explain"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed, 0 failed" in result.stdout
