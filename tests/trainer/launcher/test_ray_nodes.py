"""Nodes of a Ray cluster that die, are drained or join, during trainings on one cluster."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.launcher.test_ray_train import has_checkpoint, workers_of
from tests.trainer.node_cluster import Nodes, environment
from tests.trainer.runs import TINY, Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import train

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 100
_ENOUGH = 10
"""Steps that each group of the elastic run makes before the next event."""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes(1)
    yield found
    found.end()


@pytest.fixture(scope="module")
def start(nodes: Nodes) -> Iterator[Start]:
    """Starts tests/trainer/paced_job.py with arguments on the nodes. What it starts ends with the tests."""
    started = []
    program = "import sys; from tests.trainer.paced_job import main; sys.exit(main())"

    def job(*arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            cwd=ROOT,
            env={**environment(), "RAY_ADDRESS": nodes.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield job
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 90, 66), lengths=(32,))


def ranks_of(run: Path) -> dict[int, set[int]]:
    """Attempt -> the ranks that made at least _ENOUGH steps in it."""
    ranks: dict[int, set[int]] = {}
    for path in sorted(run.glob("metrics/attempt-*/rank-*.jsonl")):
        if path.read_bytes().count(b'"samples"') >= _ENOUGH:
            attempt, rank = path.parent.name.split("-")[1], path.stem.split("-")[1]
            ranks.setdefault(int(attempt), set()).add(int(rank))
    return ranks


def last_group_is(run: Path, ranks: set[int]) -> bool:
    """Whether the newest attempt with enough steps has these ranks."""
    return list(ranks_of(run).values())[-1:] == [ranks]


@pytest.fixture(scope="module")
def elastic(
    nodes: Nodes, start: Start, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The folder and the output of a run of one or two ranks, on one node, then on two, then on one."""
    folder = tmp_path_factory.mktemp("elastic")
    run = folder / "runs" / "run"
    process = start(write_config(folder, elastic_config(folder, manifest)))
    wait_until(lambda: has_checkpoint(run) and last_group_is(run, {0}), process)
    nodes.tell("add")
    wait_until(partial(last_group_is, run, {0, 1}), process)
    nodes.tell(f"kill {workers_of(run)[-1]}")
    wait_until(partial(last_group_is, run, {0}), process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG_SECONDS)
    return folder, output


def elastic_config(folder: Path, manifest: Path) -> dict[str, Any]:
    workers = {"num_workers": [1, 2], "resize_seconds": 1, "collective_timeout_seconds": HANG_SECONDS}
    # More steps than a run makes before the test ends it.
    # Dropout depends on the micro-batches. With a low rate, sums in another order stay close to each other.
    phases = [phase(32, 16, 128, steps=100_000) | {"learning_rate": 1e-4}]
    model = {**TINY, "hidden_dropout": 0.0}
    return train_config(folder, manifest, phases=phases, model=model, workers=workers)


def test_a_group_grows_when_a_node_joins_and_shrinks_when_one_dies(elastic: tuple[Path, str]) -> None:
    folder, output = elastic
    groups = [ranks for _, ranks in sorted(ranks_of(folder / "runs" / "run").items())]
    first, *between, last = groups
    assert first == last == {0}, output
    assert {0, 1} in between, output


def test_a_group_of_any_size_makes_the_steps_of_a_fixed_one(
    elastic: tuple[Path, str], tmp_path: Path, manifest: Path
) -> None:
    """One rank makes the same steps: the rows are equal, the losses up to the order of their sums."""
    history = History(elastic[0] / "runs" / "run")
    losses, made = history.losses(), 0
    steps = max(losses)

    def stop_requested() -> bool:
        nonlocal made
        made += 1
        return made >= steps

    changes = {"workers": {"num_workers": 1}, "checkpoints": {"every_steps": None, "every_seconds": None}}
    config = TrainConfig.model_validate(elastic_config(tmp_path, manifest) | changes)
    train(config, single_rank(), Hooks(stop_requested))
    fixed = History(tmp_path / "runs" / "run")
    samples = history.samples()
    assert {step: samples[step] for step in range(steps)} == fixed.samples()
    assert losses == pytest.approx(fixed.losses(), rel=1e-3)


@pytest.fixture(scope="module")
def disturbed(
    elastic: object, nodes: Nodes, start: Start, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> History:
    """A finished run of two ranks. The node of one died, and later another was drained.

    It comes after the elastic run, which leaves one node.
    """
    del elastic
    folder = tmp_path_factory.mktemp("disturbed")
    run = folder / "runs" / "run"
    process = start(config_of(folder, manifest), 2)
    for _ in range(3):
        nodes.tell("add")
    wait_until(partial(has_checkpoint, run, "000001"), process)
    nodes.tell(f"kill {workers_of(run)[-1]}")
    wait_until(partial(has_checkpoint, run, "000002"), process)
    nodes.tell(f"drain {workers_of(run)[-1]} 60")
    output, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, output
    return History(run)


def config_of(folder: Path, manifest: Path) -> Path:
    workers = {"num_workers": 2, "collective_timeout_seconds": HANG_SECONDS}
    phases = [phase(32, 16, 128, steps=STEPS)]
    return write_config(folder, train_config(folder, manifest, phases=phases, workers=workers))


def test_a_node_that_dies_is_done_without(disturbed: History) -> None:
    first, second, _ = disturbed.steps_of_attempts().values()
    assert second[0] <= first[-1] + 1


def test_a_node_that_will_go_is_left_after_a_checkpoint(disturbed: History) -> None:
    _, second, third = disturbed.steps_of_attempts().values()
    assert third[0] == second[-1] + 1  # nothing is repeated


def test_lost_nodes_change_nothing(disturbed: History, tmp_path: Path, manifest: Path) -> None:
    Group(config_of(tmp_path, manifest), ranks=2).finish()
    whole = History(tmp_path / "runs" / "run")
    assert disturbed.samples() == whole.samples()
    assert disturbed.losses() == whole.losses()
