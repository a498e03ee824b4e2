"""A copy of the checkout, as a user's working directory that a job is submitted from."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Nothing that the jobs do not need, so that it shows if they need more.
FOLDERS = ("bertmill", "cluster", "configs", "infra", "pipeline", "schemas", "trainer")


def copy_checkout(target: Path) -> Path:
    """Copies the packages, the configs and pyproject.toml, which has the version, to ``target``."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target
