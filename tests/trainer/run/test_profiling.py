"""The profiler window: which steps it traces, and where the trace is."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from cluster import storage
from schemas.errors import StorageError
from tests.trainer.runs import History, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import Profile, TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.run.loop import train
from trainer.run.profiling import ProfileWindow


def events(uri: str) -> list[str]:
    trace = json.loads(gzip.decompress(storage.read_bytes(uri)))
    return [event["name"] for event in trace["traceEvents"]]


def test_the_trace_holds_the_steps_of_the_window(run: str) -> None:
    window = ProfileWindow(Profile(at_step=2, steps=2), run, attempt=7)
    traces = []
    for step in range(1, 6):
        window.start_step(step)
        for _ in range(step * 10):
            torch.ones(2).erfinv()
        traces.append(window.end_step())
    assert [trace is not None for trace in traces] == [False, False, True, False, False]
    assert traces[2] == f"{run}/profile/attempt-000007-step-00000003.pt.trace.json.gz"
    assert events(traces[2]).count("aten::erfinv") == 20 + 30
    assert window.close() is None


def test_a_trace_that_the_storage_refuses_is_logged(
    local_run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(storage, "upload_file", refuse)
    window = ProfileWindow(Profile(at_step=1, steps=1), local_run, attempt=1)
    window.start_step(1)
    assert window.end_step() is None
    assert "the trace could not be stored: no room" in caplog.text


def test_a_run_traces_its_window_even_if_it_stops_inside(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus")
    config = train_config(tmp_path, manifest, profile={"at_step": 2, "steps": 3})
    calls = iter(range(1, 1000))
    train(TrainConfig.model_validate(config), single_rank(), Hooks(stop_requested=lambda: next(calls) == 3))
    train(TrainConfig.model_validate(config), single_rank())
    found = History(tmp_path / "runs" / "run").events("profiled")
    assert [(event["attempt"], event["step"]) for event in found] == [(1, 3), (2, 4)]
    for event, steps in zip(found, (2, 1), strict=True):
        names = events(event["trace"])
        assert sum(name.startswith("Optimizer.step#") for name in names) == steps
