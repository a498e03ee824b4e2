"""Real wandb and MLflow, offline: one run for all attempts, and failures that lose only figures."""

import json
import struct
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from tests.support.waiting import HANG_SECONDS
from tests.trainer.records import step_record
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.monitoring import trackers
from trainer.monitoring.records import Kernel, Started
from trainer.monitoring.run_log import RunLog
from trainer.monitoring.trackers import Tracker, TrackerThread, open_trackers
from trainer.run.loop import train


def wandb_history(folder: Path) -> tuple[set[str], list[dict[str, Any]]]:
    """Ids and points of all offline files below ``folder``, in order of their attempts."""
    from wandb.proto.wandb_internal_pb2 import Record

    ids, points = set(), []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        for content in log_records(path.read_bytes()):
            record = Record.FromString(content)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                points.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return ids, points


def log_records(content: bytes) -> list[bytes]:
    """The records of a file in LevelDB's log format, after wandb's header of seven bytes."""
    records, parts, place = [], b"", 7
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(parts)
            parts = b""
    return records


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"file://{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return uri


def interrupted_and_resumed(config: dict[str, Any]) -> None:
    """Trains to an error after seven steps with a checkpoint at step four, and then to the end."""
    calls = iter(range(100))

    def fail() -> bool:
        if next(calls) == 7:
            raise RuntimeError("a fault")
        return False

    with pytest.raises(RuntimeError, match="a fault"):
        train(TrainConfig.model_validate(config), single_rank(), Hooks(stop_requested=fail))
    outcome = train(TrainConfig.model_validate(config), single_rank())
    assert (outcome.resumed_from, outcome.status) == (4, "finished")


def test_a_resumed_run_continues_in_both_trackers(
    tmp_path: Path, mlflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("WANDB_MODE", "offline")
    manifest = write_corpus(tmp_path / "corpus", validation_rows=(9, 8))
    config = train_config(
        tmp_path,
        manifest,
        logging={"every_steps": 1, "trackers": ["wandb", "mlflow"], "project": "papers"},
        evaluation={"every_steps": 3, "rows": 8},
        phases=[phase(32, 16, 512, steps=10)],
    )
    interrupted_and_resumed(config)
    history = History(tmp_path / "runs" / "run")
    assert history.figures()[10]["failed_tracker_writes"] == 0
    losses = history.losses()
    held_out = {record["step"]: record["held_out"]["all"]["loss"] for record in history.events("evaluated")}

    ids, points = wandb_history(tmp_path / "runs" / "run")
    assert len(ids) == 1
    assert [(p["step"], p["loss"]) for p in points if "loss" in p] == sorted(losses.items())
    evaluated = [(p["step"], p["held_out/all/loss"]) for p in points if "held_out/step" in p]
    assert evaluated == sorted(held_out.items())

    client = MlflowClient(mlflow)
    experiment = client.get_experiment_by_name("papers")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["phases.0.global_batch"] == "16"
    points_of = {
        name: client.get_metric_history(found.info.run_id, name) for name in ("loss", "held_out/all/loss")
    }
    assert [(p.step, p.value) for p in points_of["loss"]] == sorted(losses.items())
    assert [(p.step, p.value) for p in points_of["held_out/all/loss"]] == sorted(held_out.items())


def test_more_figures_than_a_request_may_have_are_sent_in_parts(tmp_path: Path, mlflow: str) -> None:
    from mlflow import MlflowClient

    (tracker,) = open_trackers(["mlflow"], str(tmp_path), "run", "bertmill")
    languages = {f"l{n}": {"loss": n, "sequences": 1, "masked_tokens": 1, "pairs": 1} for n in range(400)}
    log = RunLog(str(tmp_path), 1, 0, tensorboard=False, trackers=[tracker])
    log.write(started())
    log.write(step_record(1, languages=languages))
    log.close()
    assert tracker.failures == 0
    client = MlflowClient(mlflow)
    (run,) = client.search_runs(["0", *[e.experiment_id for e in client.search_experiments()]])
    assert {run.data.metrics[f"languages/l{n}/loss"] for n in range(400)} == set(range(400))
    assert run.info.status == "FAILED"  # the attempt did not record its end
    assert run.data.params == {"seed": "1", "manifest": "https://host/m.json"}


def test_a_package_or_an_address_that_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = train_config(tmp_path, write_corpus(tmp_path / "corpus"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config["logging"] = {"trackers": ["mlflow"]}
    with pytest.raises(ConfigError, match=r"^logging.trackers: mlflow needs .*MLFLOW_TRACKING_URI="):
        train(TrainConfig.model_validate(config), single_rank())
    monkeypatch.setitem(sys.modules, "wandb", None)
    config["logging"] = {"trackers": ["wandb"]}
    with pytest.raises(ConfigError, match=r"wandb is not installed; pip install 'bertmill\[wandb\]'$"):
        train(TrainConfig.model_validate(config), single_rank())


def test_a_server_that_is_down_never_stops_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tracker,) = open_trackers(["mlflow"], str(tmp_path), "run", "bertmill")
    log = RunLog(str(tmp_path), 1, 0, tensorboard=False, trackers=[tracker])
    log.write(started())
    for step in (1, 2):
        log.write(step_record(step))
    log.close()
    assert log.failed_tracker_writes == 3
    assert caplog.text.count("mlflow: metrics are being lost: ") == 1
    assert sorted(History(tmp_path).losses()) == [1, 2]


class Stuck(Tracker):
    """A tracker whose server accepts a run and then never answers."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = threading.Event()
        self.steps: list[int] = []

    def open(self, run_id: str, record: Started) -> Mapping[str, float]:
        del run_id, record
        return {"step": 1}

    def send(self, figures: Mapping[str, float], step: int) -> None:
        assert figures["step"] == step
        self.asked.set()
        self.release.wait(HANG_SECONDS)
        self.steps.append(step)

    def close(self, status: str) -> None:
        del status


def test_a_tracker_that_hangs_holds_up_neither_the_steps_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_QUEUE_LENGTH", 10)
    monkeypatch.setattr(trackers, "_CLOSE_SECONDS", 0.1)
    stuck = Stuck()
    thread = TrackerThread("stuck", stuck, str(tmp_path))
    thread.write(started())
    thread.write(step_record(1))  # an earlier attempt has already sent it
    thread.write(step_record(2))
    assert stuck.asked.wait(HANG_SECONDS)
    for step in range(3, 23):
        thread.write(step_record(step))
    assert thread.failures == 10
    thread.close()
    assert thread.failures == 20
    stuck.release.set()
    thread._thread.join()
    assert 1 not in stuck.steps


def started() -> Started:
    return Started(
        attempt=1,
        rank=0,
        host="host",
        process=1,
        world_size=1,
        device="cpu",
        step=0,
        total_steps=2,
        kernel=Kernel(name="padded", reason=""),
        parameters=1,
        config={"seed": 1, "manifest": "https://user:secret@host/m.json?signature=ab"},
        model={},
    )
