"""Ray Train has our committed checkpoints registered, in place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.s3_server import S3Server
from tests.support.waiting import HANG_SECONDS
from tests.trainer.runs import phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer import hooks
from trainer.checkpoint.folders import list_folders
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import train


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 90, 66), lengths=(32,))


def config_of(folder: Path, manifest: Path, steps: int, storage: str | None = None) -> TrainConfig:
    workers = {"num_workers": 2, "collective_timeout_seconds": HANG_SECONDS}
    config = train_config(folder, manifest, phases=[phase(32, 16, 128, steps=steps)], workers=workers)
    config["run"]["accept_changes"] = ["phases"]
    config["run"]["storage"] = storage or config["run"]["storage"]
    return TrainConfig.model_validate(config)


def registered(config: TrainConfig) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    train(config, single_rank(), Hooks(on_commit=lambda uri, step: found.append((uri, step))))
    return found


def test_commits_are_registered_with_the_launcher(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "run"
    # The run takes less than ten seconds, but the last checkpoint is always registered.
    first = registered(config_of(tmp_path, manifest, 10))
    assert [step for _, step in first][-1] == 10
    monkeypatch.setattr(hooks, "_SECONDS_BETWEEN", 0.0)
    second = registered(config_of(tmp_path, manifest, 60))
    steps = [step for _, step in second]
    assert steps[0] == 10
    assert steps[-1] == 60
    assert len(steps) > 3
    assert steps == sorted(set(steps))
    assert second[-1] == (list_folders(str(run))[0].uri, 60)
    assert all(Path(uri).name.startswith(f"step-{step:08d}.") for uri, step in first + second)


# The job's environment reaches Ray's controller and the workers, like that of a cluster's nodes.
FITS = """
import json, os, sys, ray
from pathlib import Path
ray.init(address=sys.argv[1], log_to_driver=False, runtime_env={"env_vars": json.loads(sys.argv[2])})
from cluster import storage
from trainer.checkpoint.folders import list_folders
from trainer.config import TrainConfig
from trainer.launcher.ray_train import fit
for text in sys.argv[3:]:
    config = TrainConfig.model_validate_json(text)
    result = fit(config, lambda record: None)
    with result.checkpoint.as_directory() as copy:
        copied = json.loads((Path(copy) / "MANIFEST.json").read_text())["step"]
    run = storage.join(config.run.storage, config.run.name)
    record = json.loads(storage.read_bytes(storage.join(run, "checkpoint_manager_snapshot.json")))
    print(json.dumps({
        "newest": list_folders(run)[0].uri, "kept": len(list_folders(run)), "path": result.checkpoint.path,
        "returned": result.return_value.checkpoint, "metrics": result.metrics, "copied": copied,
        "best": len(result.best_checkpoints), "record": record["latest_checkpoint_result"]["metrics"],
    }))
"""


@pytest.mark.ray
@pytest.mark.s3
@pytest.mark.slow
def test_ray_knows_the_last_checkpoint(
    ray_session: RayCluster, s3_server: S3Server, s3_folder: str, tmp_path: Path, manifest: Path
) -> None:
    """The second job starts although the older checkpoints of the first one are deleted."""
    configs = [config_of(tmp_path, manifest, steps, storage=s3_folder) for steps in (12, 30)]
    environment = json.dumps(s3_server.environment)
    texts = [config.model_dump_json() for config in configs]
    done = subprocess.run(
        [sys.executable, "-c", FITS, ray_session.address, environment, *texts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["copied"] for result in results] == [12, 30]
    for result in results:
        step = {"step": result["copied"]}
        assert f"s3://{result['path']}" == result["newest"] == result["returned"]
        assert result["metrics"] == step == result["record"]
        assert 1 <= result["best"] <= 3
    assert results[-1]["kept"] == 3
