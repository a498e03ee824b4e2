"""Every case of the area dumps, through the console command, and its answers to bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bertmill.explain_dump import explain
from schemas.errors import InputError
from tests.pipeline.sources.dumps import CASES, SAMPLE


def test_all_cases_pass() -> None:
    command = [sys.executable, "run_cases.py", "dumps", "--command", f"{sys.executable} -m bertmill explain"]
    done = subprocess.run(
        [*command, "--time-factor", "3"], cwd=CASES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_bad_input_is_one_line_and_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bertmill", "explain", "dump", str(tmp_path / "no.xml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith(f"{tmp_path / 'no.xml'}: no such file")
    assert len(done.stderr.strip().splitlines()) == 1


def test_real_dumps_balance() -> None:
    for path in sorted((SAMPLE / "dumps").glob("*.xml.bz2")):
        answer = json.loads(json.dumps(explain([str(path)])))
        assert answer["pages_seen"] == len(answer["kept"]) + sum(answer["skipped"].values()) > 0
    with pytest.raises(InputError, match="error-page"):
        explain([str(CASES / "error-page.xml.bz2")])


def test_the_console_command_starts_without_the_large_libraries() -> None:
    large = {"torch", "ray", "transformers", "datasets"}
    code = f"import sys, bertmill.cli; print(sorted({large!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
