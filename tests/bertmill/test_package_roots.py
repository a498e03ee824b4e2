"""Another package with the name of one of ours, before ours on the path: one line and status 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

EDITABLE = f"import sys; sys.path.append({str(ROOT)!r}); "


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` like an editable install, with our root last on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", EDITABLE + code],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["trainer", "schemas", "cluster", "pipeline"])
@pytest.mark.parametrize("kind", ["package", "module"])
def test_the_console_command_names_the_other_package(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "package":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    else:
        (tmp_path / f"{name}.py").touch()
    done = python("from bertmill.cli import main; sys.exit(main(['--version']))", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bertmill: package {name!r} comes from {tmp_path}")
    assert str(ROOT) in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_python_api_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").touch()
    done = python("import bertmill; bertmill.load_model", tmp_path)
    assert done.stderr.splitlines()[-1].startswith("ImportError: package 'trainer' comes from")


def test_a_folder_without_code_is_not_a_package(tmp_path: Path) -> None:
    """A regular package takes precedence over a namespace package, even later on the path."""
    (tmp_path / "trainer").mkdir()
    done = python("from bertmill.cli import main; sys.exit(main(['--version']))", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["pipeline.build_corpus", "trainer.pretrain"])
def test_a_job_uses_the_packages_beside_it(tmp_path: Path, module: str) -> None:
    for name in ("trainer", "schemas", "cluster", "pipeline"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    script = ROOT / (module.replace(".", "/") + ".py")
    done = subprocess.run(
        [sys.executable, str(script), "--config", "none.yaml"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "none.yaml: no such config file" in done.stderr
