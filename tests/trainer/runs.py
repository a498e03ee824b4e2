"""Short real trainings for tests: their configs, their processes, and their records."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import yaml
from torch.multiprocessing.spawn import start_processes

from tests.support.ray_cluster import ROOT
from tests.support.s3_server import free_ports
from tests.support.waiting import HANG_SECONDS
from tests.trainer.faulty_pretrain import run_rank

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


def train_config(folder: Path, manifest: Path | str, **changes: Any) -> dict[str, Any]:
    """A config as a mapping: 12 steps of 16 rows. ``changes`` replace whole sections."""
    return {
        "run": {"name": "run", "storage": str(folder / "runs")},
        "data": {"manifest": str(manifest)},
        "model": TINY,
        "phases": [phase(32, 16, 128, steps=12)],
        "checkpoints": {"every_steps": 4, "every_seconds": None},
        "logging": {"every_steps": 1, "samples": True, "trackers": []},
        "workers": {"collective_timeout_seconds": HANG_SECONDS},
        **changes,
    }


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def torchrun(config: Path, ranks: int) -> tuple[int, str]:
    """Exit status and output of a training that the real torchrun has started."""
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    job = ["trainer/pretrain.py", "--launcher", "torchrun", "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *elastic, *job],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    return done.returncode, done.stdout + done.stderr


def fork_server() -> ForkServerContext:
    """The context of processes that fork from a server that has loaded torch and the trainer."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.trainer.faulty_pretrain"])
    return server


def run_ranks(function: Callable[..., None], *arguments: Any, ranks: int) -> None:
    """Calls ``function`` with a rank and ``arguments`` in a process for each rank. Raises if one fails."""
    fork_server()
    start_processes(function, arguments, nprocs=ranks, start_method="forkserver")


class Group:
    """Ranks of a training as processes forked from a server that has loaded torch."""

    def __init__(
        self,
        config: Path,
        ranks: int = 1,
        fault: str = "none:0:0",
        overrides: Sequence[str] = (),
        ranks_per_node: int | None = None,
        overrides_of_last: Sequence[str] = (),
    ) -> None:
        """``overrides_of_last`` are given to the last rank only."""
        per_node = ranks_per_node or ranks
        server = fork_server()
        launcher = "torchrun" if ranks > 1 else "local"
        arguments = ["--config", str(config), "--launcher", launcher, *overrides]
        shared = {
            # The server has the environment of its start, and a test sets its storage later.
            **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
            "WORLD_SIZE": str(ranks),
            "FAULT": fault,
        }
        self._outputs = [Path(tempfile.mkstemp(suffix=f"-rank-{rank}")[1]) for rank in range(ranks)]
        self.processes = [
            server.Process(
                target=run_rank,
                args=(
                    [*arguments, *(overrides_of_last if rank == ranks - 1 else ())],
                    {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank % per_node)},
                    output,
                ),
            )
            for rank, output in enumerate(self._outputs)
        ]
        for process in self.processes:
            process.start()

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def output(self) -> str:
        return "".join(path.read_text() for path in self._outputs)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def finish(self, *expected: int) -> str:
        """The output of all ranks, which have to end with these statuses (0 by default)."""
        end = time.monotonic() + HANG_SECONDS
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        output = self.output()
        for path in self._outputs:
            path.unlink()
        assert codes == list(expected or [0] * len(codes)), output
        return output


class History:
    """The records of all attempts of a run. If two attempts made a step, the last one counts."""

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
                rows.setdefault(record["step"], []).extend(record["row_ids"])
        return {step: sorted(found) for step, found in rows.items()}

    def steps_of_attempts(self) -> dict[int, list[int]]:
        """Attempt -> the steps that it made, in order, by rank 0."""
        made: dict[int, list[int]] = {}
        for record in self.events("samples"):
            if record["rank_of_file"] == 0:
                made.setdefault(record["attempt"], []).append(record["step"])
        return made
