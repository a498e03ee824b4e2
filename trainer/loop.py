"""The training loop: the same code under Ray Train, under torchrun and alone.

A step is: read this rank's micro-batches; exchange a few integers with the other ranks (how many
targets the global batch has, whether to stop, to save, or that somebody failed); run the micro-batches,
reducing gradients with the last one; decide on the device whether the step counts; update. All that a
restart needs is the number of steps done, so the loop has no other position.
"""

import logging
import os
import socket
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cluster import storage
from schemas.errors import BertmillError, CheckpointError, ConfigError
from schemas.randomness import key_from_text
from trainer.batches import StepBatches
from trainer.checkpoint import CheckpointStore, LoadedCheckpoint, open_checkpoint
from trainer.checkpoint_parts import PartWriter
from trainer.config import TrainConfig
from trainer.evaluate import evaluate
from trainer.flops import peak_flops, training_flops
from trainer.hooks import CommitNews, Hooks
from trainer.metrics import Meter, Record, RunLog, figures
from trainer.optim import set_learning_rate, skip_step
from trainer.plan import StepPlan
from trainer.prepare import LearningRates, build_network, check_all_shards, open_data, open_held_out, seed_of
from trainer.ranks import Ranks
from trainer.resume import Position, await_saves, newest_checkpoint, open_store, restore, state_of
from trainer.stability import SpikeGuard, check_ranks_agree
from trainer.start_times import StartTimes

log = logging.getLogger(__name__)

_DROPOUT = key_from_text("trainer.loop", "dropout")
# Of the pairs, those with the rarer label; below it the labels are worth a warning.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Outcome:
    """How a call of ``train`` ended. ``status`` is finished or stopped."""

    status: str
    step: int
    total_steps: int
    first_loss: float | None
    last_loss: float | None
    tokens: int
    seconds: float
    checkpoint: str | None
    run_uri: str
    skipped_steps: int
    resumed_from: int


def run_uri(config: TrainConfig) -> str:
    """The folder of the run."""
    return storage.join(config.run.storage, config.run.name)


def train(config: TrainConfig, ranks: Ranks, hooks: Hooks | None = None) -> Outcome:
    """Trains until the plan or a signal ends; goes on from the run's newest verified checkpoint.

    Raises ConfigError, CorpusError, CheckpointError, StorageError; on every rank when one has failed.
    """
    with ExitStack() as cleanup:
        return Trainer(config, ranks, hooks or Hooks(), cleanup).run()


class Trainer:
    """One rank of one attempt at a run. ``cleanup`` closes what it opens."""

    def __init__(self, config: TrainConfig, ranks: Ranks, hooks: Hooks, cleanup: ExitStack) -> None:
        self.config, self.ranks, self.hooks = config, ranks, hooks
        self.starting, self.run_uri = StartTimes(), run_uri(config)
        self.data = open_data(config, ranks, cleanup)
        self.rates = LearningRates(config, self.data.plan)
        self.network = build_network(config, self.data.corpus, ranks)
        stability = config.stability
        self.guard = SpikeGuard(stability.spike_window, stability.spike_sigma, ranks.device)
        self.store: CheckpointStore | None = None
        self._error: BertmillError | None = None
        self._warned = False
        self._skips: list[tuple[int, list[int], Tensor, Tensor]] = []
        self.position = Position()
        self.held_out = open_held_out(config, self.data.corpus, ranks)
        self._take_over(cleanup)
        if config.data.check_shards and self.position.step == 0:
            check_all_shards(self.data.corpus, self.data.plan.orders, ranks)
        self.resumed_from = self.position.step
        self.module: nn.Module = self.network.loss
        if ranks.world_size > 1:
            self.module = DistributedDataParallel(
                self.module, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        self.starting.mark("load")

    def _take_over(self, cleanup: ExitStack) -> None:
        """Claims the run, loads its newest checkpoint, opens the log and says so there."""
        attempt, error = 0, None
        verified: LoadedCheckpoint | None = None
        changes: list[str] = []
        if self.ranks.rank == 0:
            self.store = open_store(self.run_uri, self.config, self.ranks.world_size)
            cleanup.callback(await_saves, self.store)
            try:
                attempt = self.store.claim()
                verified = newest_checkpoint(self.store, restart=self.config.run.restart)
            except BertmillError as caught:
                error = caught
        self.ranks.fail_together(error)
        suffix = self.store.folder_suffix if self.store else ""
        attempt, suffix, found = self.ranks.from_first((attempt, suffix, verified.uri if verified else None))
        self.saver: CheckpointStore | PartWriter | None = self.store
        if self.store is None and self.config.checkpoints.format == "sharded":
            self.saver = PartWriter(self.run_uri, suffix, self.ranks.rank, self.ranks.world_size)
            cleanup.callback(self.saver.close)
        self.taken_over: str | None = found
        self.news = CommitNews(self.run_uri, suffix, self.store, self.hooks)
        if found is not None:
            # Rank 0 has read every byte of it already.
            checkpoint = verified or open_checkpoint(found)
            self.position, changes = restore(
                checkpoint, self.config, self.data.corpus, self.network, self.guard
            )
            self._check_position()
        for change in changes:
            log.warning("run %s goes on with a changed config: %s", self.config.run.name, change)
        self.log = RunLog(
            self.run_uri,
            attempt,
            self.ranks.rank,
            tensorboard=self.config.logging.tensorboard,
            first_step=self.position.step,
            echo=self.hooks.echo if self.ranks.rank == 0 else None,
        )
        cleanup.callback(self.log.close)
        self._log_start(attempt, found, changes)

    def _check_position(self) -> None:
        done, total = self.position.step, self.data.plan.total_steps
        if done > total:
            raise ConfigError(f"phases: the run has done {done} steps, the config has only {total}")

    def _log_start(self, attempt: int, found: str | None, changes: list[str]) -> None:
        self.log.event(
            "started",
            attempt=attempt,
            rank=self.ranks.rank,
            host=socket.gethostname(),
            process=os.getpid(),
            world_size=self.ranks.world_size,
            device=str(self.ranks.device),
            step=self.position.step,
            total_steps=self.data.plan.total_steps,
            checkpoint=found,
            changes=changes,
            kernel=self.network.kernel._asdict(),
            parameters=sum(parameter.numel() for parameter in self.network.parameters),
            config=self.config.model_dump(mode="json"),
            model=self.network.config.model_dump(mode="json"),
        )

    def run(self) -> Outcome:
        """All steps that are left, or those until a signal."""
        total, every = self.data.plan.total_steps, self.config.logging.every_steps
        self.meter = Meter(len(self.data.corpus.languages), self.ranks.device)
        self.saved_at = begun = time.monotonic()
        tokens, stop = self.position.tokens, False
        self.news.tell(self.taken_over, self.position.step)
        while self.position.step < total and not stop:
            batches = self._read(self.position.step)
            self.starting.mark("seek")
            targets, stop, save = self._agree(batches)
            self._step(batches, targets)
            if self.starting.pending:
                self.log.event("ready", step=self.position.step, **self.starting.finish(self.ranks.device))
            self._compare_ranks()
            last = self.position.step == total
            if last or stop or self.position.step % every == 0:
                self._write_figures(batches)
            self._evaluate(batches.plan, last=last)
            if save or last or stop:
                self._save()
        checkpoint = self._finish(stop)
        return Outcome(
            status="finished" if self.position.step == total else "stopped",
            step=self.position.step,
            total_steps=total,
            first_loss=self.position.first_loss,
            last_loss=self.position.last_loss,
            tokens=self.position.tokens - tokens,
            seconds=time.monotonic() - begun,
            checkpoint=checkpoint,
            run_uri=self.run_uri,
            skipped_steps=int(self.guard.skipped),
            resumed_from=self.resumed_from,
        )

    def _read(self, step: int) -> StepBatches:
        """The part of the step that is this rank's. When reading fails, all ranks learn of it and raise."""
        started = time.monotonic()
        try:
            return self.data.reader.read(step)
        except BertmillError as error:
            self._error = error
            self._agree(None)
            raise
        finally:
            self.meter.waited += time.monotonic() - started

    def _agree(self, batches: StepBatches | None) -> tuple[Tensor, bool, bool]:
        """Of all ranks: targets, labels and tokens of the global batch, whether to stop, whether to save."""
        step, settings = self.position.step + 1, self.config.checkpoints
        drained = step % self.config.logging.every_steps == 0 and self.hooks.drained()
        late = (
            self.store is not None
            and settings.every_seconds is not None
            and time.monotonic() - self.saved_at >= settings.every_seconds
        )
        words = [
            batches.masked if batches else 0,
            batches.labelled if batches else 0,
            int(drained or self.hooks.stop_wanted()),
            int(late),
            int(self._error is not None),
            self.news.word(),
        ]
        masked, labelled, stop, save, failed, committed = self.ranks.sum_on_host(words)
        if failed:
            self.ranks.fail_together(self._error)
        self.news.heard(committed)
        due = settings.every_steps is not None and step % settings.every_steps == 0
        totals = [masked, labelled, batches.global_tokens if batches else 0]
        return self.ranks.to_device(totals), stop > 0, save > 0 or due

    def _step(self, batches: StepBatches, targets: Tensor) -> None:
        step, optimizer, parameters = self.position.step, self.network.optimizer, self.network.parameters
        torch.manual_seed(seed_of(self.config.seed, _DROPOUT, step, self.ranks.rank))
        statistics = self._gradients(batches, targets)
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if batches.plan.step_in_phase == 0:
            self.guard.forget()
        skip = self.ranks.max_on_device(self.guard.is_bad(norm).to(torch.uint8)).bool()
        self.guard.record(norm, skip)
        if self.config.stability.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.stability.clip_norm, norm)
        set_learning_rate(optimizer, self.rates.at(step))
        skip_step(optimizer, skip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.meter.statistics += torch.where(skip, torch.zeros_like(statistics), statistics)
        self._count(batches, norm, skip)

    def _gradients(self, batches: StepBatches, targets: Tensor) -> Tensor:
        """Leaves the gradient of the global batch in the parameters; the statistics of this rank."""
        device, last = self.ranks.device, len(batches.micro_batches) - 1
        statistics = torch.zeros_like(self.meter.statistics)
        for number, micro_batch in enumerate(batches.micro_batches):
            wrapped = self.module if isinstance(self.module, DistributedDataParallel) else None
            with wrapped.no_sync() if wrapped is not None and number < last else nullcontext():
                bf16 = self.network.precision == torch.bfloat16
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    sums = self.module(micro_batch.to(device, non_blocking=True), targets)
                # The wrapper takes the mean over ranks; the loss is a sum over them.
                (sums.loss * self.ranks.world_size).backward()
            statistics += sums.statistics
        return statistics

    def _count(self, batches: StepBatches, norm: Tensor, skip: Tensor) -> None:
        """Moves the position on, only now that the step is done."""
        plan, ranks = batches.plan, self.ranks.world_size
        self.position.step += 1
        self.position.tokens += batches.global_tokens
        self.meter.steps += 1
        self.meter.tokens += batches.global_tokens
        self.meter.squares += batches.global_squares
        self.meter.room += plan.micro_batch_tokens * len(batches.micro_batches) * ranks
        rows = batches.samples.tolist()
        self._skips.append((plan.step, rows, norm, skip))
        if self.config.logging.samples:
            self.log.event("samples", step=plan.step, epoch=batches.epoch, rows=rows)

    def _compare_ranks(self) -> None:
        every = self.config.stability.check_ranks_every
        if every and self.position.step % every == 0:
            check_ranks_agree(self.network.model.named_parameters(), self.ranks, self.position.step)

    def _write_figures(self, batches: StepBatches) -> None:
        """One line of the log; the only place where the loop waits for the device."""
        record = figures(self.ranks.sum_on_device(self.meter.statistics), self.data.corpus.languages)
        norm = float(self._skips[-1][2])
        timing = {**self.meter.timing(), **self._utilisation(record)}
        if record["targets"]:
            self.position.last_loss = record["loss"]
            if self.position.first_loss is None:
                self.position.first_loss = record["loss"]
        progress = {
            "learning_rate": self.rates.at(self.position.step - 1),
            "gradient_norm": norm,
            "phase": batches.plan.phase,
            "max_seq_length": batches.plan.max_seq_length,
            "global_batch": batches.plan.rows,
            "epoch": batches.epoch,
            "tokens": self.position.tokens,
            "skipped_steps": int(self.guard.skipped),
            "failed_saves": self.store.failed_saves if self.store else 0,
            "failed_log_writes": self.log.failed_writes,
            "failed_log_uploads": self.log.failed_uploads,
        }
        self._log_skips()
        self._warn_of_labels(record)
        self.log.figures(self.position.step, {**record, **progress, **timing})
        self.meter.reset()
        in_a_row = int(self.guard.skipped_in_a_row)
        if in_a_row >= self.config.stability.max_skipped:
            raise BertmillError(
                f"{self.run_uri}: {in_a_row} steps in a row were skipped, the last one with a gradient norm"
                f" of {norm:.3g}; lower the learning rate or look at the batches named in the log"
            )

    def _evaluate(self, plan: StepPlan, *, last: bool) -> None:
        """Measures on held-out rows of the length in training, when it is time for it."""
        settings = self.config.evaluation
        if settings is None or not (last or self.position.step % settings.every_steps == 0):
            return
        held_out, network = self.held_out[plan.max_seq_length], self.network
        found = evaluate(network.model, held_out, self.ranks, network.precision)
        self.log.evaluated(self.position.step, found)

    def _utilisation(self, record: Record) -> Record:
        """The share of the devices' peak arithmetic in use, and what the last checkpoint cost."""
        found: Record = {}
        peak = peak_flops(self.ranks.device, self.network.precision)
        if peak is not None:
            meter, targets = self.meter, record.get("masked_tokens", 0)
            used = training_flops(self.network.config, meter.tokens, meter.squares, targets)
            found["mfu"] = used / (meter.seconds * self.ranks.world_size * peak)
        saved = self.store.newest_committed if self.store else None
        if saved is not None:
            found |= {"checkpoint_seconds": saved.seconds, "checkpoint_stall_seconds": saved.stall}
        return found

    def _warn_of_labels(self, record: Record) -> None:
        """Says once that nearly all pairs have one label: their accuracy then means nothing."""
        share = record.get("pair_share_second")
        if share is not None and not _LEAST_SHARE <= share <= 1 - _LEAST_SHARE and not self._warned:
            self._warned = True
            text = f"{share:.1%} of the pairs are random or swapped; pair loss and accuracy mean little"
            self.log.event("warning", step=self.position.step, text=text)

    def _log_skips(self) -> None:
        for step, rows, norm, skip in self._skips:
            if skip:
                self.log.event("skipped", step=step, gradient_norm=float(norm), rows=rows)
        self._skips.clear()

    def _save(self) -> None:
        """Begins a checkpoint, or this rank's part; all ranks learn of rank 0's errors in the next step."""
        self.saved_at = time.monotonic()
        if self.saver is None:
            return
        state = state_of(self.config, self.data.corpus, self.network, self.guard, self.position)
        try:
            self.saver.save_async(self.position.step, state)
        except CheckpointError as error:
            self._error = error
            return
        if self.store is not None:
            self.log.event("saving", step=self.position.step)

    def _finish(self, stopped: bool) -> str | None:
        """Waits on all ranks for the last checkpoint; its URI."""
        committed: str | None = self.taken_over
        step = self.resumed_from
        if self.store is not None:
            try:
                self.store.close()
            except CheckpointError as error:
                self._error = self._error or error
            if self.store.last_committed is not None:
                committed, step = self.store.last_committed.uri, self.store.last_committed.step
        self.ranks.fail_together(self._error)
        committed, step = self.ranks.from_first((committed, step))
        self.news.tell(committed, step)
        self.log.event("stopped" if stopped else "finished", step=self.position.step, checkpoint=committed)
        return committed
