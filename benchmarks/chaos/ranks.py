"""Training processes with a fault, and the supervisor that starts and watches them.

Ranks are forked from one process that has imported everything. Otherwise a life of a few steps would take ten
times as long to import torch as to train.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch._dynamo  # noqa: F401 - imported once here: each forked rank would import it again at its first loss

from benchmarks.chaos.faulty_trainer import ChaosTrainer, Fault
from tests.support.s3_server import free_ports
from trainer import pretrain
from trainer.run import loop


@dataclass
class Life:
    """The record of one group of ranks until its end."""

    fault: Fault
    world: int
    statuses: list[int]
    resumed: int
    made: dict[int, dict[int, list[int]]]
    """Step -> rank -> rows, of the steps that were started."""
    committed: list[int] = field(default_factory=list)
    failed_saves: int = 0
    weights: str = ""
    seconds: float = 0.0
    loss: float | None = None
    output: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run finished."""
        return bool(self.weights)


class Group:
    """The ranks of one life, as torchrun would start them."""

    def __init__(
        self,
        config: Path,
        world: int,
        fault: Fault,
        folder: Path,
        number: int,
        overrides: Sequence[str] = (),
    ) -> None:
        self.fault, self.world = fault, world
        self._diary = folder / f"life-{number:04d}.jsonl"
        self._output = folder / f"life-{number:04d}.log"
        self._started = time.monotonic()
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        port = free_ports(1)[0]
        leader = 0
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, leader)
                self._rank_main(["--config", str(config), *overrides], rank, port)
            leader = leader or pid
            with contextlib.suppress(OSError):  # it may have ended already
                os.setpgid(pid, leader)
            self._pids[pid] = rank

    def _rank_main(self, arguments: list[str], rank: int, port: int) -> None:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            output = os.open(self._output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.world),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            )  # fmt: skip
            ChaosTrainer.fault = self.fault
            ChaosTrainer.diary = os.open(self._diary, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            mock.patch.object(loop, "Trainer", ChaosTrainer).start()
            launcher = "torchrun" if self.world > 1 else "local"
            status = pretrain.main([*arguments, "--launcher", launcher])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def steps_done(self) -> int:
        """The highest step that was started, -1 for none."""
        steps = [record["step"] for record in self._records() if record["event"] == "step"]
        return max(steps, default=-1)

    def resumed(self) -> int | None:
        """The step that it resumed from, or None before that."""
        steps = [record["step"] for record in self._records() if record["event"] == "resumed"]
        return steps[0] if steps else None

    def wait_for_step(self, step: int) -> bool:
        """Waits until ``step`` has started, or the ranks have ended. Returns whether ``step`` has started."""
        while self.steps_done() < step:
            if self.poll():
                return self.steps_done() >= step
            time.sleep(0.02)
        return True

    def output(self) -> str:
        """The output of the ranks so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def poll(self) -> bool:
        """Whether all ranks have ended."""
        for pid in [pid for pid, rank in self._pids.items() if rank not in self._statuses]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._statuses[self._pids[pid]] = os.waitstatus_to_exitcode(status)
        return len(self._statuses) == self.world

    def wait(self, seconds: float = 240.0, grace: float = 40.0) -> Life:
        """Waits for the end of the life. Kills a rank that outlives a failed one by ``grace`` seconds."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            if any(self._statuses.values()):
                deadline = min(deadline, time.monotonic() + grace)
                grace = 1e9
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.02)
        return self._life()

    def adopt(self, other: "Group") -> None:
        """Takes over the processes of the group that has replaced this one."""
        self.__dict__.update(other.__dict__)

    def kill(self) -> None:
        """Sends SIGKILL to every live rank."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to every live rank."""
        for pid, rank in self._pids.items():
            if rank not in self._statuses:
                os.kill(pid, number)

    def _records(self) -> list[dict[str, Any]]:
        if not self._diary.exists():
            return []
        lines = self._diary.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _life(self) -> Life:
        made: dict[int, dict[int, list[int]]] = {}
        resumed, committed, failed, weights, loss = -1, [], 0, "", None
        for record in self._records():
            if record["event"] == "step":
                made.setdefault(record["step"], {})[record["rank"]] = record["rows"]
            elif record["event"] == "resumed":
                resumed = record["step"]
            elif record["event"] == "committed":
                committed.append(record["step"])
            elif record["event"] == "failed save":
                failed += 1
            elif record["event"] == "finished":
                weights, loss = record["weights"], record["loss"]
        statuses = [self._statuses[rank] for rank in range(self.world)]
        return Life(
            self.fault,
            self.world,
            statuses,
            resumed,
            made,
            committed,
            failed,
            weights,
            time.monotonic() - self._started,
            loss,
            self.output(),
        )
