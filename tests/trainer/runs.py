"""Short real trainings for tests: their configs, their processes, and what they wrote down."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.ray_cluster import ROOT

TINY = {
    "size": "custom",
    "layers": 1,
    "hidden_size": 32,
    "heads": 2,
    "intermediate_size": 64,
    "max_positions": 64,
}


def phase(max_seq_length: int, global_batch: int, micro_batch_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "max_seq_length": max_seq_length,
        "global_batch": global_batch,
        "micro_batch_tokens": micro_batch_tokens,
        "learning_rate": 5e-3,
        **fields,
    }


def train_config(folder: Path, manifest: Path, **changes: Any) -> dict[str, Any]:
    """A config as a mapping: 12 steps of 16 rows; ``changes`` replace whole fields."""
    return {
        "run": {"name": "run", "storage": str(folder / "runs")},
        "data": {"manifest": str(manifest)},
        "model": TINY,
        "phases": [phase(32, 16, 128, steps=12)],
        "checkpoints": {"every_steps": 4, "every_seconds": None},
        "logging": {"every_steps": 1, "samples": True, "tensorboard": False},
        "workers": {"collective_timeout_seconds": 60},
        **changes,
    }


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def start(
    config: Path, *overrides: str, ranks: int = 1, script: str = "trainer/pretrain.py", **env: str
) -> subprocess.Popen[str]:
    """Training processes of the local launcher, or of torchrun for several ranks."""
    launcher = ["--launcher", "torchrun" if ranks > 1 else "local"]
    command = [sys.executable, script, "--config", str(config), *launcher, *overrides]
    if ranks > 1:
        elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *elastic, *command[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], expected: int = 0, timeout: float = 120) -> str:
    """The output of a process that has to end with this status in this time."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process)
        output, _ = process.communicate()
        raise AssertionError(f"still running after {timeout} s:\n{output}") from None
    assert process.returncode == expected, output
    return output


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process and everything it started."""
    os.killpg(process.pid, signal.SIGKILL)


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, timeout: float = 90
) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        if process is not None and process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        time.sleep(0.02)


class History:
    """What all attempts of a run wrote down; of a step that was made twice, the last attempt counts."""

    def __init__(self, run: Path) -> None:
        self.records: list[dict[str, Any]] = []
        for path in sorted((run / "metrics").glob("attempt-*/rank-*.jsonl")):
            attempt, rank = int(path.parent.name.split("-")[1]), int(path.stem.split("-")[1])
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    self.records.append({"attempt": attempt, "rank_of_file": rank, **json.loads(line)})

    def events(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("event") == name]

    def figures(self, rank: int = 0) -> dict[int, dict[str, Any]]:
        lines = [r for r in self.records if "event" not in r and r["rank_of_file"] == rank]
        return {record["step"]: record for record in lines}

    def losses(self) -> dict[int, float]:
        return {step: record["loss"] for step, record in self.figures().items()}

    def samples(self) -> dict[int, list[int]]:
        """Step -> the rows of its global batch, sorted."""
        last: dict[int, int] = {}
        for record in self.events("samples"):
            last[record["step"]] = max(last.get(record["step"], 0), record["attempt"])
        rows: dict[int, list[int]] = {}
        for record in self.events("samples"):
            if record["attempt"] == last[record["step"]]:
                rows.setdefault(record["step"], []).extend(record["rows"])
        return {step: sorted(found) for step, found in rows.items()}

    def steps_of_attempts(self) -> dict[int, list[int]]:
        """Attempt -> the steps that it made, in order, by rank 0."""
        made: dict[int, list[int]] = {}
        for record in self.events("samples"):
            if record["rank_of_file"] == 0:
                made.setdefault(record["attempt"], []).append(record["step"])
        return made
