"""What the loop writes to the log of a run: metrics, skipped steps, warnings, held-out metrics."""

import os
import socket
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from schemas.errors import BertmillError
from schemas.versions import CODE_VERSION
from trainer.checkpoint.manifest import FORMAT, Position
from trainer.config import TrainConfig
from trainer.data.batches import StepBatches
from trainer.distributed.ranks import Ranks
from trainer.monitoring.flops import peak_flops, training_flops
from trainer.monitoring.metrics import Meter, metrics_by_language, total_metrics
from trainer.monitoring.records import (
    Kernel,
    PretrainingMetrics,
    Samples,
    Skipped,
    Started,
    StepRecord,
    Warned,
)
from trainer.monitoring.run_log import RunLog
from trainer.optim.spike_guard import SpikeGuard
from trainer.run.saving import Saver
from trainer.startup.resume import Attempt
from trainer.startup.setup import Network, TrainingData

# Below this share of the rarer label, NSP loss and accuracy mean little.
_LEAST_LABEL_SHARE = 0.05


@dataclass(frozen=True)
class _StepOutcome:
    """What happened to one step. ``skipped`` is read only when the log is written."""

    step: int
    row_ids: list[int]
    norm: Tensor
    skipped: Tensor


class Reporter:
    """Collects the metrics of steps and writes them to the log."""

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        data: TrainingData,
        network: Network,
        guard: SpikeGuard,
        saver: Saver,
        log: RunLog,
    ) -> None:
        self._config, self._ranks, self._data = config, ranks, data
        self._network, self._guard, self._saver, self._log = network, guard, saver, log
        self.meter = Meter(len(data.corpus.languages), ranks.device)
        self._outcomes: list[_StepOutcome] = []
        self._warned_of_labels = False

    def started(self, attempt: Attempt, position: Position, changes: list[str]) -> None:
        """Logs the start of the attempt."""
        network = self._network
        self._log.write(
            Started(
                code_version=CODE_VERSION,
                checkpoint_format=FORMAT,
                attempt=attempt.number,
                rank=self._ranks.rank,
                host=socket.gethostname(),
                process=os.getpid(),
                world_size=self._ranks.world_size,
                data_parallel=self._config.data_parallel if self._ranks.world_size > 1 else None,
                device=str(self._ranks.device),
                step=position.step,
                total_steps=self._data.plan.total_steps,
                checkpoint=attempt.checkpoint_uri,
                changes=changes,
                kernel=Kernel(name=network.kernel.name, reason=network.kernel.reason),
                parameters=sum(parameter.numel() for parameter in network.parameters),
                config=self._config.model_dump(mode="json"),
                model=network.config.model_dump(mode="json"),
            )
        )

    def count_step(self, batches: StepBatches, statistics: Tensor, norm: Tensor, skipped: Tensor) -> None:
        """Adds a step to the metrics, without waiting for the device."""
        meter, plan = self.meter, batches.plan
        meter.statistics += torch.where(skipped, torch.zeros_like(statistics), statistics)
        meter.steps += 1
        meter.tokens += batches.global_tokens
        meter.squared_lengths += batches.global_squares
        meter.token_slots += plan.micro_batch_tokens * len(batches.micro_batches) * self._ranks.world_size
        row_ids = batches.row_ids.tolist()
        self._outcomes.append(_StepOutcome(plan.step, row_ids, norm, skipped))
        if self._config.logging.samples:
            self._log.write(Samples(step=plan.step, epoch=batches.epoch, row_ids=row_ids))

    def write_metrics(self, position: Position, batches: StepBatches, lr: float) -> StepRecord:
        """Writes the metrics since the last call. This is the only place where the loop waits for the device.

        Raises BertmillError when too many steps in a row were skipped.
        """
        statistics = self._ranks.sum_on_device(self.meter.statistics)
        totals = total_metrics(statistics)
        norm = float(self._outcomes[-1].norm)
        checkpoint = self._saver.newest
        record = StepRecord(
            **totals.model_dump(),
            **asdict(self.meter.throughput()),
            step=position.step,
            languages=metrics_by_language(statistics, self._data.corpus.languages),
            lr=lr,
            grad_norm=norm,
            phase=batches.plan.phase,
            max_seq_length=batches.plan.max_seq_length,
            global_batch=batches.plan.rows,
            epoch=batches.epoch,
            tokens=position.tokens,
            skipped_steps=int(self._guard.skipped),
            consecutive_failed_saves=self._saver.consecutive_failures,
            failed_log_writes=self._log.failed_writes,
            failed_log_uploads=self._log.failed_uploads,
            failed_tracker_writes=self._log.failed_tracker_writes,
            mfu=self._mfu(totals),
            checkpoint_seconds=checkpoint.seconds if checkpoint else None,
            checkpoint_stall_seconds=checkpoint.stall if checkpoint else None,
        )
        self._log_skipped_steps()
        self._warn_of_labels(position.step, totals)
        self._log.write(record)
        self.meter.reset()
        self._check_skips(norm)
        return record

    def _mfu(self, metrics: PretrainingMetrics) -> float | None:
        """Model FLOP/s utilization: the used share of the devices' peak FLOP/s, or None if it is unknown."""
        peak = peak_flops(self._ranks.device, self._network.precision)
        if peak is None:
            return None
        meter, model, masked = self.meter, self._network.config, metrics.masked_tokens
        used: int | None = masked + (metrics.sequences if model.pair_objective != "none" else 0)
        if self._config.objective is not None or self._config.distillation is not None:
            used = None
        flops = training_flops(model, meter.tokens, meter.squared_lengths, masked, used)
        return flops / (meter.seconds * self._ranks.world_size * peak)

    def _warn_of_labels(self, step: int, metrics: PretrainingMetrics) -> None:
        """Warns once when nearly all pairs have one label, because NSP accuracy then means nothing."""
        share = metrics.nsp_label_1_share
        if share is None or self._warned_of_labels:
            return
        if not _LEAST_LABEL_SHARE <= share <= 1 - _LEAST_LABEL_SHARE:
            self._warned_of_labels = True
            text = f"{share:.1%} of the pairs have label 1 (random or swapped); NSP metrics mean little"
            self._log.write(Warned(step=step, text=text))

    def _log_skipped_steps(self) -> None:
        for outcome in self._outcomes:
            if outcome.skipped:
                self._log.write(
                    Skipped(step=outcome.step, grad_norm=float(outcome.norm), row_ids=outcome.row_ids)
                )
        self._outcomes.clear()

    def _check_skips(self, norm: float) -> None:
        if bool(self._guard.too_many):
            run, stability = self._config.run, self._config.stability
            raise BertmillError(
                f"run {run.name}: {int(self._guard.consecutive_skips)} steps in a row were skipped"
                f" (stability.max_skipped {stability.max_skipped}), the last one with a gradient norm"
                f" of {norm:.3g}. Lower the learning rate, or inspect the batches of these steps in the log"
            )

    def fail_for_skips(self) -> None:
        """Logs the skipped steps and raises the error of too many in a row."""
        norm = float(self._outcomes[-1].norm) if self._outcomes else float("nan")
        self._log_skipped_steps()
        self._check_skips(norm)
