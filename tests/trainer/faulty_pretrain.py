"""The job's entry point for tests, with a fault at one step: "kind:rank:step", rank "all" for every rank."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported once here: each forked rank would import it again at its first loss

from tests.support.waiting import wait_until
from tests.trainer.records import FreeEvent
from trainer import pretrain
from trainer.checkpoint import parts as checkpoint_parts
from trainer.checkpoint.folders import list_folders
from trainer.distributed.sharding import local
from trainer.run import loop


def memory_of(tokens: int) -> Any:
    """A hook before a forward pass, for a device that holds micro-batches of ``tokens`` tokens."""

    def check(_: Any, arguments: Any) -> None:
        if arguments[0].tokens > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    return check


class FaultyTrainer(loop.Trainer):
    """A trainer that injects the fault in the variable ``FAULT`` in the middle of a step."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._true_gradients = self.update.gradients
        vars(self.update).update(gradients=self._gradients)
        kind, rank, tokens = os.environ.get("FAULT", "none:0:0").split(":")
        if kind == "memory" and rank == str(self.ranks.rank):
            self.network.loss.register_forward_pre_hook(memory_of(int(tokens)))

    def _gradients(self, batches: Any, targets: Any) -> Any:
        kind, rank, step = os.environ.get("FAULT", "none:0:0").split(":")
        here = rank in ("all", str(self.ranks.rank)) and batches.plan.step == int(step)
        if here and kind.startswith("kill"):
            self._wait_for_the_save_before(int(step))
        if here and kind == "kill":
            self.update.module.register_full_backward_pre_hook(
                lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            )
        if here and kind == "kill-forward":
            layer = self.network.model.token_head.dense  # the loss does not call the whole model
            layer.register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if here and kind == "kill-optimizer":
            self.network.optimizer.register_step_post_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if here and kind in ("term", "term-twice"):
            for _ in range(1 + (kind == "term-twice")):
                os.kill(os.getpid(), signal.SIGTERM)
        if here and kind == "hang":
            signal.pause()
        if here and kind == "drift":
            with torch.no_grad():
                self.network.parameters[3].view(-1)[0] += 1e-3
        if kind == "stream":
            state = torch.get_rng_state()
            self._note("stream", step=batches.plan.step, draws=torch.rand(4).tolist())
            torch.set_rng_state(state)
        if here and kind == "nan":
            layer = self.network.model.token_head.dense
            hook = layer.register_forward_hook(lambda *args: args[2] * torch.nan)
            try:
                return self._true_gradients(batches, targets)
            finally:
                hook.remove()
        return self._true_gradients(batches, targets)

    def _wait_for_the_save_before(self, step: int) -> None:
        """A busy machine may take longer over a save in the background than over the steps after it."""
        every, uri = self.config.checkpoints.every_steps or 0, self.config.run.uri
        due = step // every * every if every else 0
        if due:
            wait_until(lambda: any(folder.committed and folder.step >= due for folder in list_folders(uri)))

    def _note(self, event: str, **fields: Any) -> None:
        self.log.write(FreeEvent.model_validate({"event": event, **fields}))

    def _save(self) -> None:
        kind, rank, step = os.environ.get("FAULT", "none:0:0").split(":")
        if (kind, rank, step) == ("kill-save", str(self.ranks.rank), str(self.position.step)):
            vars(checkpoint_parts).update(write_share=half_a_share)
        super()._save()
        if (kind, rank, step) == ("term-save", str(self.ranks.rank), str(self.position.step)):
            os.kill(os.getpid(), signal.SIGTERM)

    def _finish(self) -> Any:
        checkpoint = super()._finish()
        reads = sum(stream.rows.lengths_read for stream in self.data.streams.values())
        self._note("reads", rank=self.ranks.rank, lengths=reads)
        sums = [float(local(parameter).double().sum()) for parameter in self.network.parameters]
        self._note("weights", sums=sums)
        return checkpoint


def half_a_share(folder: Path, share: float, rank: int, world_size: int) -> None:
    """Writes a part that ends too early, and ends the process."""
    (folder / checkpoint_parts.part_name(rank, world_size)).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def run_rank(arguments: Sequence[str], environment: dict[str, str], output: Path) -> None:
    """The body of a forked process: its streams go to the file ``output``."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    vars(loop).update(Trainer=FaultyTrainer)
    vars(pretrain).update(train=loop.train)
    sys.exit(pretrain.main(arguments))
