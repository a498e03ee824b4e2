"""A group that grows when a node joins, and one that shrinks when a node dies: the batches stay the same."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.launcher.test_ray_nodes import start_job
from tests.trainer.launcher.test_ray_train import has_checkpoint, workers_of
from tests.trainer.node_cluster import Nodes
from tests.trainer.runs import TINY, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import train

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# More than a run makes before the test ends it.
STEPS = 100_000
_ENOUGH = 30
"""Steps that the changed group makes before the test ends the run."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 90, 66), lengths=(32,))


@pytest.fixture
def nodes() -> Iterator[Callable[[int], Nodes]]:
    """Starts a Ray of this many nodes with a CPU each."""
    started: list[Nodes] = []

    def start(count: int) -> Nodes:
        started.append(Nodes(count))
        return started[-1]

    yield start
    for each in started:
        each.end()


def config_of(folder: Path, manifest: Path) -> dict[str, Any]:
    workers = {"num_workers": [1, 2], "resize_seconds": 1, "collective_timeout_seconds": HANG_SECONDS}
    # Dropout depends on the micro-batches. With a low rate, sums in another order stay close to each other.
    phases = [phase(32, 16, 128, steps=STEPS) | {"learning_rate": 1e-4}]
    model = {**TINY, "hidden_dropout": 0.0}
    return train_config(folder, manifest, phases=phases, model=model, workers=workers)


def ranks_of(run: Path) -> dict[int, set[int]]:
    """Attempt -> the ranks that made at least _ENOUGH steps in it."""
    ranks: dict[int, set[int]] = {}
    for path in run.glob("metrics/attempt-*/rank-*.jsonl"):
        if path.read_bytes().count(b'"samples"') >= _ENOUGH:
            attempt, rank = path.parent.name.split("-")[1], path.stem.split("-")[1]
            ranks.setdefault(int(attempt), set()).add(int(rank))
    return ranks


def stop(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG_SECONDS)
    return output


def compare_with_a_fixed_group(history: History, folder: Path, manifest: Path) -> None:
    """One rank makes the same steps: the rows are equal, the losses up to the order of their sums."""
    losses, made = history.losses(), 0
    steps = max(losses)

    def stop_requested() -> bool:
        nonlocal made
        made += 1
        return made >= steps

    folder.mkdir()
    config = TrainConfig.model_validate(config_of(folder, manifest) | {"workers": {"num_workers": 1}})
    train(config, single_rank(), Hooks(stop_requested))
    fixed = History(folder / "runs" / "run")
    samples = history.samples()
    assert {step: samples[step] for step in range(steps)} == fixed.samples()
    assert losses == pytest.approx(fixed.losses(), rel=1e-3)


def test_a_group_grows_when_a_node_joins(
    nodes: Callable[[int], Nodes], tmp_path: Path, manifest: Path
) -> None:
    cluster, run = nodes(1), tmp_path / "runs" / "run"
    process = start_job(cluster, write_config(tmp_path, config_of(tmp_path, manifest)))
    wait_until(lambda: has_checkpoint(run), process)
    cluster.tell("add")
    wait_until(lambda: {0, 1} in ranks_of(run).values(), process)
    output = stop(process)
    history = History(run)
    first, *_, grown = (ranks for _, ranks in sorted(ranks_of(run).items()))
    assert (first, grown) == ({0}, {0, 1}), output
    compare_with_a_fixed_group(history, tmp_path / "fixed", manifest)


def test_a_group_shrinks_when_a_node_dies(
    nodes: Callable[[int], Nodes], tmp_path: Path, manifest: Path
) -> None:
    cluster, run = nodes(2), tmp_path / "runs" / "run"
    process = start_job(cluster, write_config(tmp_path, config_of(tmp_path, manifest)))
    wait_until(lambda: {0, 1} in ranks_of(run).values(), process)
    cluster.tell(f"kill {workers_of(run)[-1]}")
    wait_until(lambda: {0} in ranks_of(run).values(), process)
    output = stop(process)
    history = History(run)
    *_, shrunk = (ranks for _, ranks in sorted(ranks_of(run).items()))
    assert shrunk == {0}, output
    compare_with_a_fixed_group(history, tmp_path / "fixed", manifest)
