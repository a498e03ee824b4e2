"""Fixtures of the trainer's tests: places for runs, one thread."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(
    params=["file", pytest.param("gs", marks=pytest.mark.gs), pytest.param("s3", marks=pytest.mark.s3)]
)
def run(request: pytest.FixtureRequest, tmp_path: Path, temporary: Path) -> str:
    """The place of a run: a local folder, a real S3, and an emulated Google Cloud Storage."""
    if request.param in ("s3", "gs"):
        return str(request.getfixturevalue(f"{request.param}_folder"))
    return str(tmp_path / "run")


@pytest.fixture
def local_run(tmp_path: Path, temporary: Path) -> str:
    """A local folder for a run."""
    return str(tmp_path / "run")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Uses one thread, because models of a few thousand weights would spend the time on synchronization.

    tests/numeric_matrix.py sets TEST_THREADS.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
    yield
    torch.set_num_threads(before)
