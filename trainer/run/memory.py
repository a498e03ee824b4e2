"""Micro-batches that fit into the memory of every rank: halved after an out-of-memory error.

Before the first step of a phase each rank tries its largest micro-batch, forward and backward, without any
collective call, and then the ranks agree. No rank therefore waits in a sum of gradients for one that ran out
of memory. The global batch stays as it is, with more micro-batches. Their gradients are summed in another
order, so last bits may differ from those of a run with larger ones. Checkpoints keep the size that was found,
so a resume has equal bits.
"""

import torch
from torch import Tensor

from schemas.errors import BertmillError, ConfigError
from trainer.checkpoint.manifest import MicroBatchLimit, Position
from trainer.config import TrainConfig
from trainer.data.batches import BatchReader, StepBatches
from trainer.distributed.ranks import Ranks
from trainer.monitoring.records import Warned
from trainer.monitoring.run_log import RunLog
from trainer.run.update import Update


class MemoryFit:
    """The sizes of micro-batches of one attempt. ``position`` keeps those that were halved."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, reader: BatchReader, position: Position, log: RunLog
    ) -> None:
        self._config, self._ranks, self._reader = config, ranks, reader
        self._position, self._log = position, log
        # Not with sharded weights, which the ranks gather together in every forward pass.
        by_default = ranks.device.type == "cuda" and config.data_parallel == "ddp"
        self._tries = by_default if config.fit_micro_batch is None else config.fit_micro_batch
        self._tried: set[int] = set()
        for limit in position.micro_batches:
            if (
                limit.phase < len(config.phases)
                and limit.configured == config.phases[limit.phase].micro_batch_tokens
            ):
                reader.limit_micro_batches(limit.phase, limit.tokens)

    def fitting(self, batches: StepBatches, targets: Tensor, update: Update) -> StepBatches:
        """``batches`` in micro-batches that fit, tried on all ranks before the first step of a phase.

        Raises ConfigError when not even one sequence fits, CorpusError on all ranks.
        """
        phase = batches.plan.phase
        if not self._tries or phase in self._tried:
            return batches
        self._tried.add(phase)
        while True:
            largest = max(batches.micro_batches, key=lambda batch: batch.tokens)
            failed = self._ranks.sum_on_host([int(not update.fits(largest, targets))])[0]
            if not failed:
                return batches
            batches = self.halved(batches, f"{failed} of {self._ranks.world_size} ranks ran out of memory")

    def halved(self, batches: StepBatches, reason: str) -> StepBatches:
        """The same rows in micro-batches of half the tokens. All ranks must call it together."""
        plan = batches.plan
        configured = self._config.phases[plan.phase].micro_batch_tokens
        tokens = plan.micro_batch_tokens // 2
        if tokens < plan.max_seq_length:
            raise ConfigError(
                f"phases.{plan.phase}.micro_batch_tokens: {reason} with {plan.micro_batch_tokens} tokens, and"
                f" half of that does not hold a sequence of {plan.max_seq_length}; set recompute_layers or"
                " loss_chunk, or use larger GPUs"
            )
        text = (
            f"{reason} with micro-batches of {plan.micro_batch_tokens} tokens; phase {plan.phase} continues"
            f" with {tokens} tokens and the same global batch"
        )
        self._log.write(Warned(step=plan.step, text=text))
        self._reader.limit_micro_batches(plan.phase, tokens)
        kept = [limit for limit in self._position.micro_batches if limit.phase != plan.phase]
        limit = MicroBatchLimit(phase=plan.phase, configured=configured, tokens=tokens)
        self._position.micro_batches = [*kept, limit]
        with self._ranks.together():
            return self._reader.read(plan.step)

    def after_error(self, batches: StepBatches, error: torch.OutOfMemoryError) -> StepBatches:
        """Smaller micro-batches for a step that ran out of memory, if the run has one rank.

        Raises BertmillError with several ranks, because the others are already in a sum of gradients.
        """
        plan = batches.plan
        if self._ranks.world_size > 1:
            first = str(error).partition("\n")[0]
            raise BertmillError(
                f"rank {self._ranks.rank}: out of memory in phase {plan.phase} with micro-batches of"
                f" {plan.micro_batch_tokens} tokens ({first}); set phases.{plan.phase}.micro_batch_tokens to"
                f" {plan.micro_batch_tokens // 2} and resume"
            )
        return self.halved(batches, "the device ran out of memory")
