"""Ray Train as launcher: the same run as other launchers, through the death of a worker and of the driver."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from tests.support.ray_cluster import ROOT, RayCluster
from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.runs import Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.manifest import MANIFEST
from trainer.config import TrainConfig
from trainer.launcher.worker_group import look_at_nodes
from trainer.run.console import ConsoleLog

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 90, 66), lengths=(32,))


def config_of(folder: Path, manifest: Path, steps: int = 16, **workers: Any) -> Path:
    workers = {"num_workers": 2, "collective_timeout_seconds": HANG_SECONDS, **workers}
    return write_config(
        folder, train_config(folder, manifest, phases=[phase(32, 16, 128, steps=steps)], workers=workers)
    )


def job(cluster: RayCluster, config: Path, *overrides: str, folder: Path = ROOT) -> subprocess.Popen[str]:
    """The driver as a separate process, joined to the session's Ray."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "trainer" / "pretrain.py"), "--config", str(config), *overrides],
        cwd=folder,
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], expected: int = 0) -> str:
    output: str = process.communicate(timeout=HANG_SECONDS)[0]
    assert process.returncode == expected, output
    return output


def has_checkpoint(run: Path, attempt: str = "*") -> bool:
    return any(run.glob(f"checkpoints/*.{attempt}-*/{MANIFEST}"))


def workers_of(run: Path) -> list[int]:
    """The living processes of the newest attempt, by rank."""
    started = History(run).events("started")
    newest = max((event["attempt"] for event in started), default=0)
    pids = [event["process"] for event in started if event["attempt"] == newest]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module")
def elastic(
    ray_session: RayCluster, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[History, History]:
    """A run of one rank, and an elastic one that starts from its weights, in a folder of the driver.

    It has at most six ranks of two CPUs, on four CPUs.
    """
    folder = tmp_path_factory.mktemp("elastic")
    config = config_of(folder, manifest, steps=6, num_workers=[1, 6], cpus_per_worker=2)
    Group(config).finish()
    second = ("--run.name=second", "--start_from=runs/run", "--data.disk_cache=cache")
    output = finish(job(ray_session, config, *second, folder=folder))
    assert "status         finished" in output
    return History(folder / "runs" / "run"), History(folder / "runs" / "second")


def test_an_elastic_run_takes_what_the_cluster_has_and_keeps_its_batches(
    elastic: tuple[History, History],
) -> None:
    """Two ranks train the rows that one rank trains."""
    alone, history = elastic
    assert {record["rank_of_file"] for record in history.events("samples")} == {0, 1}
    assert history.samples() == alone.samples()


def test_the_nodes_can_be_read_at_any_time(elastic: tuple[History, History]) -> None:
    """Ray has the actor and the method that trainer/launcher/worker_group.py calls."""
    del elastic
    assert ray.get(look_at_nodes()) == {}


def test_relative_paths_are_those_of_the_driver(elastic: tuple[History, History]) -> None:
    (first, *_) = elastic[1].events("started")
    folder = Path(first["config"]["run"]["storage"]).parent
    assert first["config"]["start_from"] == str(folder / "runs" / "run")
    assert first["config"]["data"]["disk_cache"] == str(folder / "cache")


def test_workers_that_die_or_freeze_are_replaced_and_the_run_is_that_of_forked_processes(
    ray_session: object, tmp_path: Path, manifest: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They fail more often than workers.max_failures, but each time after a new checkpoint.

    When one is frozen, the others may wait in a collective of ours or of Ray, which they call in every step
    here. They give it up in the time set.
    """
    from trainer.launcher.ray_train import fit

    path = config_of(tmp_path, manifest, steps=120, max_failures=1, collective_timeout_seconds=20)
    run = tmp_path / "runs" / "run"
    failed: list[int] = []

    def disturb() -> None:
        for attempt, number in (("000001", signal.SIGKILL), ("000002", signal.SIGSTOP)):
            wait_until(partial(has_checkpoint, run, attempt))
            failed.append(workers_of(run)[-1])
            os.kill(failed[-1], number)

    output: list[str] = []
    thread = threading.Thread(target=disturb)
    thread.start()
    config = TrainConfig.model_validate(yaml.safe_load(path.read_text()))
    result = fit(config, ConsoleLog(output.append))
    thread.join()
    assert result.return_value.status == "finished"
    assert caplog.text.count("restarting the workers: rank ") == 2
    assert sum("resumes after step" in line for line in output) == 2
    assert result.checkpoint is not None
    assert result.checkpoint.path == list_folders(str(run))[0].uri
    assert not any(Path(f"/proc/{pid}").exists() for pid in failed)
    history = History(run)
    assert len(history.steps_of_attempts()) == 3
    assert sorted(history.samples()) == list(range(120))
    (tmp_path / "whole").mkdir()
    Group(config_of(tmp_path / "whole", manifest, steps=120), ranks=2).finish()
    whole = History(tmp_path / "whole" / "runs" / "run")
    assert history.samples() == whole.samples()
    assert history.losses() == whole.losses()


def _has_steps(run: Path, attempt: int) -> bool:
    return len(History(run).steps_of_attempts().get(attempt, [])) >= 6


@pytest.fixture(scope="module")
def restarted(
    ray_session: RayCluster, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[History, list[str]]:
    """A run in three attempts, and the outputs of the last two.

    The first driver is killed, the second driver gets SIGTERM, and then a worker of the third one.
    """
    folder = tmp_path_factory.mktemp("restarted")
    config, run = config_of(folder, manifest, steps=100_000), folder / "runs" / "run"
    process = job(ray_session, config)
    wait_until(lambda: has_checkpoint(run))
    process.kill()
    process.communicate()
    wait_until(lambda: not workers_of(run))
    outputs = []
    for attempt in (2, 3):
        process = job(ray_session, config)
        wait_until(partial(_has_steps, run, attempt))
        os.kill(process.pid if attempt == 2 else workers_of(run)[-1], signal.SIGTERM)
        outputs.append(finish(process, expected=143))
    return History(run), outputs


def test_a_restarted_driver_resumes_after_a_kill(restarted: tuple[History, list[str]]) -> None:
    history, outputs = restarted
    assert "resumes after step" in outputs[0]
    first, second, third = history.steps_of_attempts().values()
    assert 4 <= second[0] <= first[-1] + 1
    assert sorted(history.samples()) == list(range(third[-1] + 1))


def test_sigterm_to_a_worker_or_to_the_driver_saves_and_stops(restarted: tuple[History, list[str]]) -> None:
    history, outputs = restarted
    assert all("rerun the same command to resume" in output for output in outputs)
    _, second, third = history.steps_of_attempts().values()
    assert third[0] == second[-1] + 1
    assert [event["step"] for event in history.events("stopped") if event["attempt"] == 3] == [
        third[-1] + 1
    ] * 2


def test_a_mistake_is_one_line_and_not_tried_again(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config = config_of(tmp_path, manifest)
    output = finish(job(ray_session, config, "--model.max_positions=16"), expected=2)
    assert output.splitlines()[-1].startswith("pretrain: model: max_positions 16 is too small")
    assert not (tmp_path / "runs" / "run" / "attempts").exists()
