"""An uploaded copy of a checkout writes the version that the checkout writes."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_copy_that_is_not_installed_knows_its_version(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    code = "from schemas.versions import CODE_VERSION; print(CODE_VERSION)"
    # -S: without the environment's packages, as where bertmill is not installed.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    expected = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert done.stdout.strip() == expected
