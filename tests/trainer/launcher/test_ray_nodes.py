"""Nodes of a Ray cluster that die or are drained, during a training on two of them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.launcher.test_ray_train import has_checkpoint, workers_of
from tests.trainer.node_cluster import Nodes, environment
from tests.trainer.runs import Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 100


@pytest.fixture
def nodes() -> Iterator[Any]:
    found = Nodes()
    yield found
    found.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    manifest = write_corpus(folder / "corpus", shard_rows=(100, 90, 66), lengths=(32,))
    Group(config_of(folder, manifest), ranks=2).finish()
    return manifest, History(folder / "runs" / "run")


def config_of(folder: Path, manifest: Path) -> Path:
    workers = {"num_workers": 2, "collective_timeout_seconds": HANG_SECONDS}
    phases = [phase(32, 16, 128, steps=STEPS)]
    return write_config(folder, train_config(folder, manifest, phases=phases, workers=workers))


@pytest.fixture
def job(nodes: Nodes) -> Iterator[Any]:
    """Starts a training on the nodes, which ends with the test."""
    started = []

    def start(config: Path) -> "subprocess.Popen[str]":
        started.append(start_job(nodes, config))
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def start_job(nodes: Nodes, config: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "trainer/pretrain.py", "--config", str(config)],
        cwd=ROOT,
        env={**environment(), "RAY_ADDRESS": nodes.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def same(history: History, whole: History) -> None:
    assert history.samples() == whole.samples()
    assert history.losses() == whole.losses()


def test_a_node_that_dies_is_done_without(nodes: Nodes, job: Any, tmp_path: Path, undisturbed: Any) -> None:
    manifest, whole = undisturbed
    run = tmp_path / "runs" / "run"
    process = job(config_of(tmp_path, manifest))
    wait_until(lambda: has_checkpoint(run))
    nodes.tell(f"kill {workers_of(run)[-1]}")
    output, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, output
    same(History(run), whole)
    assert len(History(run).steps_of_attempts()) == 2


def test_a_node_that_will_go_is_left_after_a_checkpoint(
    nodes: Nodes, job: Any, tmp_path: Path, undisturbed: Any
) -> None:
    manifest, whole = undisturbed
    run = tmp_path / "runs" / "run"
    process = job(config_of(tmp_path, manifest))
    wait_until(lambda: has_checkpoint(run))
    nodes.tell(f"drain {workers_of(run)[-1]} 60")
    output, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, output
    history = History(run)
    same(history, whole)
    first, second = history.steps_of_attempts().values()
    assert second[0] == first[-1] + 1  # nothing is repeated
