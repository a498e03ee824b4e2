"""The real validators, found beside Python or on PATH; a test whose tool is missing is skipped by name."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_tool(
    name: str, *words: str, text: str | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs a validator; its exit status is for the caller to judge."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}") or shutil.which(name)
    if found is None:
        how = {"promtool": "apt-get install prometheus", "prometheus": "apt-get install prometheus"}
        pytest.skip(f"{name} is missing: {how.get(name, 'pip install -e .[infra]')}")
    return subprocess.run(
        [found, *words], input=text, cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
