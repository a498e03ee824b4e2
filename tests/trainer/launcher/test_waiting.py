"""A training that waits for CPUs reports it and can be stopped. One that cannot succeed is not repeated."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from schemas.errors import BertmillError, PluginError, StorageError
from tests.support.ray_cluster import RayCluster
from tests.support.waiting import HANG_SECONDS
from tests.trainer.launcher.test_ray_train import config_of, finish, job
from tests.trainer.runs import train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.launcher import ray_train
from trainer.run.loop import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(64,), lengths=(32,))


@pytest.fixture
def waiting(ray_session: RayCluster, tmp_path: Path, manifest: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver that requests 64 CPUs of a cluster that has 4."""
    process = job(ray_session, config_of(tmp_path, manifest, num_workers=64))
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate(timeout=HANG_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_waits_for_cpus_says_so_and_stops(
    waiting: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert waiting.stdout is not None
    for line in waiting.stdout:
        if "waiting for 64 CPUs, the cluster has 4 CPUs" in line:
            break
    else:
        raise AssertionError("nothing was said")
    waiting.send_signal(number)
    output = finish(waiting, expected=143)
    assert "pretrain: stopped while waiting for 64 CPUs, the cluster has 4 CPUs; rerun" in output


def test_cpus_that_do_not_come_in_the_time_set_are_an_error_that_counts_them(
    ray_session: RayCluster, tmp_path: Path, manifest: Path
) -> None:
    config = config_of(tmp_path, manifest, num_workers=64, start_timeout_seconds=0.5)
    output = finish(job(ray_session, config), expected=2)
    assert "s for 64 CPUs, the cluster has 4 CPUs; lower workers.num_workers" in output.splitlines()[-1]


def fails(kind: type[Exception], settings: dict[str, Any]) -> Outcome | BertmillError:
    """The work of a rank whose seventh step always fails with an error of this kind."""
    with (Path(settings["config"]["run"]["storage"]).parent / "starts").open("a") as starts:
        starts.write("start\n")
    error = kind("CUDA error: an illegal memory access was encountered")
    error.add_note("in optimizer step 7")
    with mock.patch.object(ray_train, "train", side_effect=error):
        return ray_train.work(settings)


@pytest.mark.parametrize("kind", [RuntimeError, PluginError])
def test_a_step_that_always_fails_is_tried_twice(
    ray_session: RayCluster,
    tmp_path: Path,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    """Also when a plug-in raised the error, which one rank alone may do."""
    monkeypatch.setattr(ray_train, "work", partial(fails, kind))
    config = TrainConfig.model_validate(train_config(tmp_path, manifest))
    with pytest.raises(StorageError, match=r"failed twice in step 7 in the same way.*rank 0: .*CUDA error"):
        ray_train.fit(config, print)
    assert (tmp_path / "starts").read_text().count("start") == 2
