"""The times of a start, and that the next start finds the compiled code."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS
from tests.trainer.runs import History, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.monitoring.records import LogRecord, StepRecord
from trainer.monitoring.start_times import use_compile_cache
from trainer.run import reporting
from trainer.run.console import ConsoleLog
from trainer.run.loop import train

PARTS = ("process_seconds", "load_seconds", "seek_seconds", "compile_seconds", "first_step_seconds")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def test_every_start_says_how_long_its_parts_took(tmp_path: Path, manifest: Path) -> None:
    config = TrainConfig.model_validate(train_config(tmp_path, manifest))
    said: list[str] = []
    console = ConsoleLog(said.append)
    asked = iter(range(100))
    train(config, single_rank(), Hooks(stop_requested=lambda: next(asked) >= 4, on_record=console))
    train(config, single_rank(), Hooks(on_record=console))
    ready = History(tmp_path / "runs" / "run").events("ready")
    assert [(event["attempt"], event["step"]) for event in ready] == [(1, 1), (2, 6)]
    for event in ready:
        assert event["total_seconds"] == pytest.approx(sum(event[name] for name in PARTS), abs=0.01)
        assert all(event[name] > 0 for name in PARTS if name != "compile_seconds")
        assert event["compile_seconds"] == 0
        # Nothing is compiled here: compile is false.
        assert event["graphs_compiled"] == event["graphs_from_cache"] == 0
    assert sum(line.startswith("first step after") for line in said) == 2


def test_figures_have_the_cost_of_checkpoints_and_no_invented_utilisation(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(name: str) -> list[dict[str, Any]]:
        found: list[LogRecord] = []
        changes = {"run": {"name": name, "storage": str(tmp_path)}}
        config = train_config(tmp_path, manifest, **changes)
        train(TrainConfig.model_validate(config), single_rank(), Hooks(on_record=found.append))
        return [record.to_json() for record in found if isinstance(record, StepRecord)]

    # The peak of this processor is unknown.
    on_cpu = records("cpu")
    assert not any("mfu" in record for record in on_cpu)
    assert "checkpoint_seconds" not in on_cpu[0]
    assert on_cpu[-1]["checkpoint_seconds"] > 0
    assert on_cpu[-1]["checkpoint_stall_seconds"] >= 0
    monkeypatch.setattr(reporting, "peak_flops", lambda *_: 1e12)
    assert all(0 < record["mfu"] < 1 for record in records("known"))


def test_a_cache_in_a_store_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="compile_cache: s3://bucket/cache is not a local folder; compiled code"
    ):
        use_compile_cache("s3://bucket/cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"compile_cache: .*file/cache: Not a directory"):
        use_compile_cache(str(tmp_path / "file" / "cache"))


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path: Path, manifest: Path) -> None:
    """trainer-055: the second start takes the code that the first compiled from a folder that outlives it."""
    cache = tmp_path / "lasting" / "cache"
    changes = {"compile": True, "compile_cache": str(cache)}
    config = write_config(tmp_path, train_config(tmp_path, manifest, **changes))
    command = [sys.executable, "trainer/pretrain.py", "--launcher", "local", "--config", str(config)]
    # Code without vector instructions takes a third less time to compile.
    scalar = {"TORCHINDUCTOR_VEC_ISA_OK": "0"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **scalar}
    for steps in (1, 2):
        done = subprocess.run(
            [*command, f"--phases.0.steps={steps}", "--run.accept_changes=[phases]"],
            check=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS,
        )  # fmt: skip
        assert "first step after" in done.stdout
    first, second = History(tmp_path / "runs" / "run").events("ready")
    assert first["graphs_compiled"] > 0
    assert first["graph_breaks"] == 0
    assert first["graphs_from_cache"] == 0
    assert second["graphs_compiled"] == 0
    assert second["graphs_from_cache"] == first["graphs_compiled"]
    for event in (first, second):
        # The second compiles no graph, but it still traces the network and reads the cache.
        assert event["compile_seconds"] > 0
        assert event["first_step_seconds"] > 0
        assert event["total_seconds"] == pytest.approx(sum(event[name] for name in PARTS), abs=0.01)
    assert any(cache.rglob("*.so"))
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("output", ["/dev/full", "closed"])
def test_an_unread_output_does_not_stop_the_run(tmp_path: Path, manifest: Path, output: str) -> None:
    """The disk that a job's output goes to is full, or the program that reads it has ended."""
    config = write_config(tmp_path, train_config(tmp_path, manifest))
    command = [sys.executable, "trainer/pretrain.py", "--launcher", "local", "--config", str(config)]
    read, write = os.pipe()
    os.close(read)
    target = os.open(output, os.O_WRONLY) if output != "closed" else write
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, stdout=target, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=False
    )
    os.close(write)
    if target != write:
        os.close(target)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot print any more output") == 1
    assert sorted(History(tmp_path / "runs" / "run").losses()) == list(range(1, 13))
