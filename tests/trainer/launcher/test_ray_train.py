"""Ray Train as launcher: the same run as other launchers, through the death of a worker and of the driver."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_cluster import ROOT, RayCluster
from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.runs import Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.manifest import MANIFEST

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


def steps_written(run: Path) -> int:
    return len([event for event in History(run).events("samples") if event["rank_of_file"] == 1])


def has_checkpoint(run: Path, attempt: str = "*") -> bool:
    return any(run.glob(f"checkpoints/*.{attempt}-*/{MANIFEST}"))


def workers_of(run: Path) -> list[int]:
    """The living processes of the newest attempt, by rank."""
    started = History(run).events("started")
    newest = max((event["attempt"] for event in started), default=0)
    pids = [event["process"] for event in started if event["attempt"] == newest]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_elastic_run_takes_what_the_cluster_has_and_keeps_its_batches(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    """At most six ranks of two CPUs, on four CPUs: two ranks train the rows that one rank trains."""
    elastic = tmp_path / "elastic"
    elastic.mkdir()
    config = config_of(elastic, manifest, steps=6, num_workers=[1, 6], cpus_per_worker=2)
    output = finish(job(ray_session, config))
    assert "status         finished" in output
    history = History(elastic / "runs/run")
    assert {record["rank_of_file"] for record in history.events("samples")} == {0, 1}
    Group(config_of(tmp_path, manifest, steps=6)).finish()
    assert history.samples() == History(tmp_path / "runs/run").samples()


def test_relative_paths_are_those_of_the_driver(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config = config_of(tmp_path, manifest, steps=4)
    Group(config).finish()
    second = ("--run.name=second", "--start_from=runs/run", "--data.disk_cache=cache")
    output = finish(job(ray_session, config, *second, folder=tmp_path))
    assert "status         finished" in output
    (first, *_) = History(tmp_path / "runs" / "second").events("started")
    assert first["config"]["start_from"] == str(tmp_path / "runs" / "run")


def test_a_killed_worker_is_replaced_and_the_run_is_that_of_forked_processes(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    """It is killed more often than workers.max_failures, but each time after a new checkpoint."""
    config, run = config_of(tmp_path, manifest, steps=120, max_failures=1), tmp_path / "runs" / "run"
    process = job(ray_session, config)
    for attempt in ("000001", "000002"):
        wait_until(partial(has_checkpoint, run, attempt), process)
        os.kill(workers_of(run)[-1], signal.SIGKILL)
    output = finish(process)
    assert output.count("restarting the workers: rank ") == 2
    assert "resumes after step" in output
    assert "status         finished" in output
    history = History(run)
    assert sorted(history.samples()) == list(range(120))
    (tmp_path / "whole").mkdir()
    Group(config_of(tmp_path / "whole", manifest, steps=120), ranks=2).finish()
    whole = History(tmp_path / "whole" / "runs" / "run")
    assert history.samples() == whole.samples()
    assert history.losses() == whole.losses()


def test_a_restarted_driver_resumes_after_a_kill(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config, run = config_of(tmp_path, manifest, steps=120), tmp_path / "runs" / "run"
    process = job(ray_session, config)
    wait_until(lambda: has_checkpoint(run))
    process.kill()
    process.communicate()
    wait_until(lambda: not workers_of(run))
    done = steps_written(run)
    assert done < 120
    output = finish(job(ray_session, config))
    assert "resumes after step" in output
    assert sorted(History(run).samples()) == list(range(120))


def _has_steps(run: Path, attempt: int) -> bool:
    return len(History(run).steps_of_attempts().get(attempt, [])) >= 6


def test_sigterm_to_a_worker_or_to_the_driver_saves_and_stops(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config, run = config_of(tmp_path, manifest, steps=100_000), tmp_path / "runs" / "run"
    for attempt in (1, 2):
        process = job(ray_session, config)
        wait_until(partial(_has_steps, run, attempt))
        os.kill(process.pid if attempt == 1 else workers_of(run)[-1], signal.SIGTERM)
        assert "rerun the same command to resume" in finish(process, expected=143)
    history = History(run)
    first, second = history.steps_of_attempts().values()
    assert second[0] == first[-1] + 1
    assert [event["step"] for event in history.events("stopped") if event["attempt"] == 2] == [
        second[-1] + 1
    ] * 2


def test_a_mistake_is_one_line_and_not_tried_again(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config = config_of(tmp_path, manifest)
    output = finish(job(ray_session, config, "--model.max_positions=16"), expected=2)
    assert output.splitlines()[-1].startswith("pretrain: model: max_positions 16 is too small")
    assert not (tmp_path / "runs" / "run" / "attempts").exists()
