"""Trains one seed: epochs, validation, the best epoch, test sets, and a state from which it resumes.

The state is a pure function of the seed and the steps done: dropout and the order of the examples are
drawn by (seed, step), so a resumed run has the bits of one that was never interrupted.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from schemas.randomness import key_from_text, permutation
from trainer.distributed.ranks import Ranks
from trainer.distributed.seeding import seed_generators
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.heads.inference import head_outputs
from trainer.finetuning.heads.model import TaskModel, freeze, reinitialize, with_dropout
from trainer.finetuning.inputs.encoding import Encoded, pack_encoded
from trainer.finetuning.progress import Clock, EpochDone, Event, StepDone
from trainer.finetuning.records import SeedResult
from trainer.finetuning.results import RunFolder
from trainer.finetuning.tasks.kinds import EncodedSet, Metrics, TaskKind
from trainer.model.pretraining import BertPretraining
from trainer.optim.optimizers import build_optimizer, set_learning_rate
from trainer.optim.schedule import LRSchedule, steps_of

_HEAD = key_from_text("trainer.finetune", "head")
_ORDER = key_from_text("trainer.finetune", "order")
_DROPOUT = key_from_text("trainer.finetune", "dropout")


class Stopped(Exception):  # noqa: N818 - it is an outcome, not an error
    """A stop was requested, and the state is saved."""


class _StopRequestedError(Exception):
    """All ranks have agreed to stop."""


def steps_per_epoch(config: FinetuneConfig, train: EncodedSet) -> int:
    """Optimizer steps of an epoch. The last one may have fewer examples."""
    return -(-len(train.inputs) // config.batch_size)


class SeedTraining:
    """The training of one seed on all ``ranks``."""

    def __init__(
        self,
        config: FinetuneConfig,
        pretrained: BertPretraining,
        task: TaskKind,
        sets: Mapping[str, EncodedSet],
        seed: int,
        ranks: Ranks,
    ) -> None:
        self.config, self.task, self.sets, self.seed, self.ranks = config, task, sets, seed, ranks
        self.dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        seed_generators(ranks.device, seed, _HEAD)
        base = with_dropout(pretrained, config.dropout)
        reinitialize(base, config.reinitialize_layers)
        freeze(base, embeddings=config.freeze_embeddings, layers=config.freeze_layers)
        self.model = TaskModel(base, task.head, task.outputs, config.dropout, config.features).to(
            ranks.device
        )
        base.use_kernel(ranks.device, self.dtype)
        self.module: nn.Module = self.model
        if ranks.world_size > 1:
            # A task leaves the heads of pretraining unused.
            self.module = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.optimizer = build_optimizer(
            self.model, "adamw", learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        self.per_epoch = steps_per_epoch(config, sets["train"])
        total = config.epochs * self.per_epoch
        self.schedule = LRSchedule("linear", total, warmup=steps_of(config.warmup, total))
        self.epoch = self.step = 0
        self.epoch_losses: list[Tensor] = []
        self.losses: list[float] = []
        self.metrics: list[Metrics] = []
        self.best = 0
        self.best_weights: dict[str, Tensor] = {}

    @property
    def trained(self) -> bool:
        """Whether all epochs are done, or early stopping has ended them."""
        early = self.config.early_stop
        last = len(self.metrics) - 1
        return self.epoch == self.config.epochs or (
            early is not None and last >= 0 and last - self.best >= early
        )

    @property
    def steps_done(self) -> int:
        """Optimizer steps so far."""
        return self.epoch * self.per_epoch + self.step

    def run(
        self,
        folder: RunFolder,
        clock: Clock,
        stop_requested: Callable[[], bool],
        report: Callable[[Event], None],
    ) -> SeedResult:
        """Trains to the end and measures all sets. Raises Stopped after it has saved the state."""

        def check_stop() -> None:
            if any(self.ranks.sum_on_host([int(stop_requested())])):
                raise _StopRequestedError

        try:
            while not self.trained:
                self._train_epoch(clock, check_stop, report)
                self._end_epoch(self._measure("validation", check_stop), report)
                due = self.config.save_every is not None and self.epoch % self.config.save_every == 0
                if due and not self.trained:
                    self._save(folder)
            self.model.load_state_dict(self.best_weights)
            tests = [name for name in self.sets if name.startswith("test/")]
            test = {name.removeprefix("test/"): self._measure(name, check_stop) for name in tests}
        except _StopRequestedError as stop:
            self._save(folder)
            raise Stopped from stop
        return SeedResult(
            seed=self.seed,
            best_epoch=self.best + 1,
            validation=self.metrics[self.best],
            test=test,
            epochs=tuple(self.metrics),
            losses=tuple(self.losses),
        )

    def _measure(self, name: str, check_stop: Callable[[], None]) -> Metrics:
        data = self.sets[name]
        outputs = head_outputs(self.model, data.inputs, self.ranks, self.dtype, check_stop)
        return self.task.measure(data, outputs)

    def _train_epoch(
        self, clock: Clock, check_stop: Callable[[], None], report: Callable[[Event], None]
    ) -> None:
        """Trains the steps of this epoch that are not done yet."""
        inputs = self.sets["train"].inputs
        order = permutation(len(inputs), self.seed, _ORDER, self.epoch).tolist()
        self.module.train()
        while self.step < self.per_epoch:
            check_stop()
            start = self.step * self.config.batch_size
            batch = [inputs[place] for place in order[start : start + self.config.batch_size]]
            lr = self.config.learning_rate * self.schedule.factor(self.steps_done)
            self.epoch_losses.append(self._update(batch, lr))
            self.step += 1
            clock.count(len(batch))
            if self.steps_done % self.config.log_every == 0:
                rate, eta = clock.lap()
                loss = float(torch.stack(self.epoch_losses[-self.config.log_every :]).mean())
                report(
                    StepDone(
                        self.seed, self.epoch + 1, self.steps_done, self.config.epochs * self.per_epoch,
                        loss, lr, rate, eta,
                    )
                )  # fmt: skip

    def _update(self, batch: Sequence[Encoded], lr: float) -> Tensor:
        """Does a step on the global ``batch``, of which each rank computes a part. Returns the mean loss."""
        ranks = self.ranks
        seed_generators(ranks.device, self.seed, _DROPOUT, self.steps_done, ranks.rank)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.zero_grad()
        mine = batch[ranks.rank :: ranks.world_size]
        # A rank without an example takes part with a loss of zero, because all must join the reduction.
        inputs = mine or batch[:1]
        with torch.autocast(ranks.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.module(pack_encoded(inputs).to(ranks.device))
        loss = self.task.loss(output, inputs) * (bool(mine) / self.task.weight(batch))
        # DistributedDataParallel takes the mean over ranks. The gradient is a sum over them.
        (loss * ranks.world_size).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        return ranks.sum_on_device(loss.detach())

    def _end_epoch(self, metrics: Metrics, report: Callable[[Event], None]) -> None:
        """Keeps the metrics of the epoch, and its weights if they are the best so far."""
        metric = self.task.metric
        self.losses.append(float(torch.stack(self.epoch_losses).mean()))
        self.metrics.append(metrics)
        if self.epoch == 0 or metrics[metric] > self.metrics[self.best][metric]:
            self.best, self.best_weights = self.epoch, copy.deepcopy(self.model.state_dict())
        self.epoch, self.step, self.epoch_losses = self.epoch + 1, 0, []
        report(EpochDone(self.seed, self.epoch, self.config.epochs, self.losses[-1], metrics))

    def _save(self, folder: RunFolder) -> None:
        if self.ranks.rank == 0:
            folder.save_state(
                self.seed,
                {
                    "epoch": self.epoch,
                    "step": self.step,
                    "epoch_losses": [float(loss) for loss in self.epoch_losses],
                    "losses": self.losses,
                    "figures": self.metrics,
                    "best": self.best,
                    "best_weights": self.best_weights,
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                },
            )
        self.ranks.barrier()

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved ``state``, on any device and any number of ranks."""
        device = self.ranks.device
        self.epoch, self.step, self.best = state["epoch"], state["step"], state["best"]
        self.losses, self.metrics = list(state["losses"]), list(state["figures"])
        self.epoch_losses = [torch.tensor(loss, device=device) for loss in state["epoch_losses"]]
        self.best_weights = {name: value.to(device) for name, value in state["best_weights"].items()}
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
