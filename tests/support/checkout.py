"""A copy of the checkout, which serves as a user's working directory for submitting jobs."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Only what the jobs need, so that a test fails if they need more.
FOLDERS = ("bertmill", "cluster", "configs", "infra", "pipeline", "schemas", "trainer")


def copy_checkout(target: Path) -> Path:
    """Copies the packages, the configs and pyproject.toml, which has the version, to ``target``."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target
