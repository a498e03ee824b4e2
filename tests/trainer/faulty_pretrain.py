"""The job's entry point with a fault at one step: "kind:rank:step", rank "all" for every rank. For tests."""

import os
import signal
import sys

import torch

from trainer import checkpoint_parts, loop, pretrain


class FaultyTrainer(loop.Trainer):
    """A trainer to which ``FAULT`` in the environment happens in the middle of a step."""

    def _gradients(self, batches, targets):
        kind, rank, step = os.environ.get("FAULT", "none:0:0").split(":")
        here = rank in ("all", str(self.ranks.rank)) and batches.plan.step == int(step)
        if here and kind == "kill":
            self.module.register_full_backward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if here and kind == "kill-forward":
            layer = self.network.model.token_head.dense  # the model as a whole is not called by its loss
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
            self.log.event("stream", step=batches.plan.step, draws=torch.rand(4).tolist())
            torch.set_rng_state(state)
        if here and kind == "nan":
            layer = self.network.model.token_head.dense
            hook = layer.register_forward_hook(lambda *args: args[2] * torch.nan)
            try:
                return super()._gradients(batches, targets)
            finally:
                hook.remove()
        return super()._gradients(batches, targets)

    def _save(self):
        kind, rank, step = os.environ.get("FAULT", "none:0:0").split(":")
        if (kind, rank, step) == ("kill-save", str(self.ranks.rank), str(self.position.step)):
            checkpoint_parts.write_share = half_a_share
        super()._save()
        if (kind, rank, step) == ("term-save", str(self.ranks.rank), str(self.position.step)):
            os.kill(os.getpid(), signal.SIGTERM)

    def _finish(self, stopped):
        found = super()._finish(stopped)
        reads = sum(stream.rows.lengths_read for stream in self.data.streams.values())
        self.log.event("reads", rank=self.ranks.rank, lengths=reads)
        self.log.event("weights", sums=[float(p.double().sum()) for p in self.network.parameters])
        return found


def half_a_share(folder, share, rank, world_size):
    """Writes a part that ends too early, and is gone."""
    (folder / checkpoint_parts.part_name(rank, world_size)).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def run_rank(arguments, environment, output):
    """The body of a forked process: its streams go to the file ``output``."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    loop.Trainer = FaultyTrainer
    pretrain.train = loop.train
    sys.exit(pretrain.main(arguments))
