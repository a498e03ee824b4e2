"""Training processes that fail at a chosen moment, and the supervisor that restarts them.

Ranks are forked from one process that has imported everything. Otherwise a life of a few steps would take ten
times as long to import torch as to train.
"""

import contextlib
import hashlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # imported once here: each forked rank would import it again at its first loss

from cluster import storage
from tests.support.s3_server import READER_KEY, READER_SECRET, free_ports
from trainer import pretrain
from trainer.checkpoint import files as checkpoint_files
from trainer.checkpoint.manifest import MANIFEST, OPTIMIZER
from trainer.run import loop

POISONED_STEP = 7
"""At this step the last rank computes NaN, in every run, the undisturbed one included."""

FULL_DISK_BYTES = 40_000
"""Largest file on a "full" disk: less than the size of the model, more than that of the diary."""

SAVE_STAGES = ("model written", "files written", "read back", "before manifest", "after manifest", "deleting")
RANK_FAULTS = (
    "kill in forward",
    "kill in backward",
    "kill in optimizer step",
    "kill while saving",
    "kill all",
    "SIGTERM to one rank",
    "SIGTERM twice",
    "SIGTERM during a save",
    "hang of one rank",
    "disk full, one save",
    "disk full until the run stops",
)


@dataclass(frozen=True)
class Fault:
    """The fault of one life of a run."""

    kind: str = "none"
    rank: int = 0
    step: int = -1
    """The first step at which it may happen."""
    stage: str = ""
    """Where in a save, for "kill while saving"."""


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


class ChaosTrainer(loop.Trainer):
    """The trainer with one fault, and with a diary that survives SIGKILL."""

    fault = Fault()
    diary = -1
    pace = 0.0
    """Seconds that each step takes longer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._true_gradients = self.update.gradients
        vars(self.update).update(gradients=self._gradients)

    def run(self) -> Any:
        """Trains, with the faults of the save in place."""
        note(self.diary, event="resumed", step=self.position.step, rank=self.ranks.rank)
        if self.fault.kind == "kill while saving" and self.ranks.rank == 0:
            self._kill_at_stage(self.fault.stage)
        return super().run()

    def _here(self, kind: str) -> bool:
        fault = self.fault
        return fault.kind == kind and self.ranks.rank == fault.rank and self.position.step >= fault.step

    def _gradients(self, batches: Any, targets: Any) -> Any:
        time.sleep(self.pace)
        note(
            self.diary,
            event="step",
            step=batches.plan.step,
            rank=self.ranks.rank,
            rows=batches.row_ids.tolist(),
        )
        if self._here("kill in forward"):
            # The loss calls parts of the model, not the model itself.
            self.network.model.token_head.dense.register_forward_pre_hook(lambda *_: die())
        if self._here("kill in backward"):
            self.update.module.register_full_backward_pre_hook(lambda *_: die())
        if self._here("kill in optimizer step"):
            self.network.optimizer.register_step_post_hook(lambda *_: die())
        if self.fault.kind == "kill all" and self.position.step >= self.fault.step:
            os.killpg(0, signal.SIGKILL)
        if self._here("SIGTERM to one rank"):
            os.kill(os.getpid(), signal.SIGTERM)
        if self._here("SIGTERM twice"):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        if self._here("hang of one rank"):
            while True:
                signal.pause()
        if batches.plan.step == POISONED_STEP and self.ranks.rank == self.ranks.world_size - 1:
            hook = self.network.model.token_head.dense.register_forward_hook(
                lambda *arguments: arguments[2] * torch.nan
            )
            try:
                return self._true_gradients(batches, targets)
            finally:
                hook.remove()
        return self._true_gradients(batches, targets)

    def _save(self) -> None:
        fault, step = self.fault, self.position.step
        if fault.kind == "SIGTERM during a save" and self.ranks.rank == fault.rank and step >= fault.step:
            super()._save()
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self.saver.store is None:
            super()._save()
            return
        self._note_commit()
        full = fault.kind.startswith("disk full") and step >= fault.step
        denied = fault.kind == "S3 denies one save" and step >= fault.step
        if not (full or denied):
            super()._save()
        elif fault.kind == "disk full until the run stops":
            limit_files(FULL_DISK_BYTES)
            super()._save()
        else:
            ChaosTrainer.fault = Fault()
            self._save_badly(denied)

    def _save_badly(self, denied: bool) -> None:
        """Makes one save fail, which training survives."""
        assert self.saver.store is not None
        self.saver.store.wait()
        self._note_commit()
        before = {name: os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        if denied:
            os.environ.update(AWS_ACCESS_KEY_ID=READER_KEY, AWS_SECRET_ACCESS_KEY=READER_SECRET)
        else:
            limit_files(FULL_DISK_BYTES)
        super()._save()
        try:
            self.saver.store.wait()
        except Exception as error:
            note(self.diary, event="failed save", text=str(error))
        if denied:
            os.environ.update(before)
        else:
            limit_files(resource.RLIM_INFINITY)

    def _note_commit(self) -> None:
        if self.saver.store is not None and self.saver.store.last_committed is not None:
            note(self.diary, event="committed", step=self.saver.store.last_committed.step)

    def _kill_at_stage(self, stage: str) -> None:
        first = self.fault.step

        def armed() -> bool:
            return self.position.step >= first

        def before(module: Any, name: str, condition: Callable[..., bool]) -> None:
            real = getattr(module, name)

            def wrapped(*arguments: Any, **named: Any) -> Any:
                if armed() and condition(*arguments):
                    die()
                return real(*arguments, **named)

            setattr(module, name, wrapped)

        def is_manifest(uri: str, *_: Any) -> bool:
            return uri.endswith(MANIFEST)

        if stage == "model written":
            before(checkpoint_files, "synced_entry", lambda path: path.suffix == ".safetensors")
        elif stage == "files written":
            before(checkpoint_files, "check_file", lambda *_: True)
        elif stage == "read back":
            before(checkpoint_files, "check_file", lambda _, name, *__: name == OPTIMIZER)
        elif stage == "before manifest":
            before(storage, "put_if_absent", is_manifest)
        elif stage == "after manifest":
            before(self.saver.store, "_delete_old", lambda *_: True)
        else:
            before(storage, "delete_prefix", lambda *_: True)

    def _finish(self) -> Any:
        found = super()._finish()
        self._note_commit()
        if self.finished and self.ranks.rank == 0:
            digest = weights_digest(self.network.parameters)
            note(self.diary, event="finished", weights=digest, loss=self.position.last_loss)
        return found


def weights_digest(parameters: Any) -> str:
    """SHA-256 over the bytes of all parameters."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def die() -> None:
    """Sends SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def limit_files(size: int) -> None:
    """Limits the files of this process to ``size`` bytes, so that writes fail as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def note(diary: int, **record: Any) -> None:
    """Adds a line to the diary, in one write."""
    os.write(diary, (json.dumps(record) + "\n").encode())


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
        self._begun = time.monotonic()
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
            time.monotonic() - self._begun,
            loss,
            self.output(),
        )
