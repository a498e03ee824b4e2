"""Finds and runs the real validators, next to Python or on PATH. Skips a test whose tool is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def find_tool(name: str) -> str | None:
    """The path of a validator, or None if it is missing."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}") or shutil.which(name)


def run_tool(
    name: str, *words: str, text: str | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs a validator. The caller checks its exit status."""
    found = find_tool(name)
    if found is None:
        how = {"promtool": "apt-get install prometheus", "prometheus": "apt-get install prometheus"}
        pytest.skip(f"{name} is missing: {how.get(name, 'pip install -e .[infra]')}")
    return subprocess.run(
        [found, *words],
        input=text,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
