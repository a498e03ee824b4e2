"""A trainer that fails at a chosen moment, and keeps a diary that survives it."""

import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cluster import storage
from tests.support.s3_server import READER_KEY, READER_SECRET
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
