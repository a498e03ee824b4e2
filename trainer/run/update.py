"""One optimizer step on a global batch: gradients of all micro-batches, the spike guard, the update."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from schemas.randomness import key_from_text
from trainer.config import TrainConfig
from trainer.data.batches import StepBatches
from trainer.distributed.gradients import GradientSum, data_parallel
from trainer.distributed.ranks import Ranks
from trainer.distributed.seeding import seed_generators
from trainer.distributed.sharding import total_norm
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import STATISTICS, LossSums
from trainer.optim.optimizers import set_learning_rate, skip_step
from trainer.optim.spike_guard import SpikeGuard
from trainer.startup.setup import LearningRates, Network

_DROPOUT = key_from_text("trainer.loop", "dropout")


class UpdateResult(NamedTuple):
    """What a step did. Tensors stay on the device."""

    batches: StepBatches
    """The batches that it trained, in the micro-batches that fit."""
    statistics: Tensor
    """fp32 [languages, len(STATISTICS)] of this rank."""
    norm: Tensor
    """0-d: the norm of the gradient before clipping."""
    skipped: Tensor
    """Bool, 0-d: whether the weights stayed as they were."""


class Update:
    """The update of the weights, the same on all ranks. Only its gradients need collective calls."""

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        network: Network,
        guard: SpikeGuard,
        learning_rates: LearningRates,
    ) -> None:
        self._config, self._ranks, self._network = config, ranks, network
        self._guard, self._learning_rates = guard, learning_rates
        self.module: nn.Module = network.loss
        # DistributedDataParallel takes the mean over ranks, everything else the sum. The loss is a sum.
        self._ranks_in_mean = 1
        self._sum: GradientSum | None = None
        if ranks.world_size > 1 and not network.sharded:
            overlap = config.overlap_gradients
            if overlap is None:
                overlap = not ranks.on_one_host()
            if overlap:
                self.module = data_parallel(network.loss, config.gradient_exchange)
                self._ranks_in_mean = ranks.world_size
            else:
                self._sum = GradientSum(network.parameters, config.gradient_exchange)

    def fits(self, batch: MicroBatch, targets: Tensor) -> bool:
        """Whether ``batch`` fits into memory, forward and backward, with everything else that a step needs.

        Makes no collective call and leaves no gradient. Not for sharded weights, which every rank gathers.
        """
        network, device = self._network, self._ranks.device
        self._use_rotary_base(None)
        wrapped, failed = self.module, False
        try:
            # What the first step will allocate.
            missing = 0 if network.optimizer.state else 2 * sum(p.nbytes for p in network.parameters)
            if isinstance(wrapped, DistributedDataParallel) and self._config.gradient_exchange == "bf16":
                missing += sum(p.nbytes for p in network.parameters)
            reserved = torch.empty(missing, dtype=torch.uint8, device=device)
            local = wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext()
            with local:
                self._backward(batch, targets)
            del reserved
        except torch.OutOfMemoryError:
            failed = True
        self._clear()
        return not failed

    def _clear(self) -> None:
        """Drops gradients and, after an error, the memory that the allocator keeps."""
        self._network.optimizer.zero_grad(set_to_none=True)
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def _use_rotary_base(self, base: float | None) -> None:
        self._network.model.use_rotary_base(base or self._network.config.rotary_base)

    def apply(
        self,
        batches: StepBatches,
        targets: Tensor,
        smaller: Callable[[StepBatches, torch.OutOfMemoryError], StepBatches],
    ) -> UpdateResult:
        """Forward, backward and the update of the weights, unless the gradient norm is out of line.

        ``targets`` are the Targets of the global batch, on the device. ``smaller`` gives the batches in
        smaller micro-batches after an out-of-memory error, or raises.
        """
        network, config, step = self._network, self._config, batches.plan.step
        parameters, optimizer = network.parameters, network.optimizer
        self._use_rotary_base(batches.plan.rotary_base)
        statistics = None
        while statistics is None:
            seed_generators(self._ranks.device, config.seed, _DROPOUT, step, self._ranks.rank)
            try:
                statistics = self.gradients(batches, targets)
            except torch.OutOfMemoryError as error:
                problem = error.with_traceback(None)
            if statistics is None:
                # After the handler, whose traceback would keep the tensors of the failed pass.
                self._clear()
                batches = smaller(batches, problem)
        norm = total_norm([p.grad for p in parameters if p.grad is not None])
        if batches.plan.step_in_phase == 0:
            self._guard.forget()
        skip = self._ranks.max_on_device(self._guard.is_bad(norm).to(torch.uint8)).bool()
        self._guard.record(norm, skip)
        if config.stability.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, config.stability.clip_norm, norm)
        set_learning_rate(optimizer, self._learning_rates.at(step))
        skip_step(optimizer, skip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if network.average is not None:
            network.average.update(step + 1)
        return UpdateResult(batches, statistics, norm, skip)

    def gradients(self, batches: StepBatches, targets: Tensor) -> Tensor:
        """Computes the gradient of the global batch in the parameters, and returns this rank's statistics."""
        device, last = self._ranks.device, len(batches.micro_batches) - 1
        statistics = torch.zeros(self._network.loss.languages, len(STATISTICS), device=device)
        for number, micro_batch in enumerate(batches.micro_batches):
            wrapped = self.module if isinstance(self.module, DistributedDataParallel) else None
            with wrapped.no_sync() if wrapped is not None and number < last else nullcontext():
                statistics += self._backward(micro_batch, targets)
        if self._sum is not None:
            self._sum.replace()
        return statistics

    def _backward(self, micro_batch: MicroBatch, targets: Tensor) -> Tensor:
        """Adds the gradient of a micro-batch and returns its statistics."""
        device = self._ranks.device
        bf16 = self._network.precision == torch.bfloat16
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            sums: LossSums = self.module(micro_batch.to(device, non_blocking=True), targets)
        (sums.loss * self._ranks_in_mean).backward()
        return sums.statistics
