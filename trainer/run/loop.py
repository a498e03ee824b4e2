"""The training loop: the same code under Ray Train, under torchrun and in a single process.

A step reads this rank's micro-batches and agrees with the other ranks on a few integers: how many targets
the global batch has, whether to stop or save, and whether a rank failed. Then it runs the micro-batches,
all-reduces the gradients with the last one, decides on the device whether to skip the update, and updates
the weights. A restart needs only the number of steps done, so the loop keeps no other position.
"""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

from cluster import storage
from cluster.jobs.lease import FencedError
from schemas.errors import BertmillError
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.manifest import Trend
from trainer.checkpoint.store import CheckpointStore
from trainer.config import TrainConfig
from trainer.data.batches import StepBatches
from trainer.data.step_plan import StepPlan
from trainer.distributed.ranks import Ranks
from trainer.distributed.sharding import unsharded
from trainer.evaluation.held_out import ALL, evaluate_until
from trainer.hooks import CommitAnnouncer, Hooks
from trainer.model.attention import Kernel
from trainer.model.objectives import Targets, objective_error
from trainer.monitoring.records import Ended, Evaluated, Profiled, Saving, Warned
from trainer.monitoring.run_log import RunLog
from trainer.monitoring.start_times import StartTimes
from trainer.monitoring.trackers import check_trackers, open_trackers
from trainer.optim.spike_guard import DelayedFlag, SpikeGuard, check_ranks_agree
from trainer.run.agreement import Agreement
from trainer.run.loss_trend import add_held_out, add_line, add_save, alarm_error, problem
from trainer.run.memory import MemoryFit
from trainer.run.profiling import ProfileWindow
from trainer.run.reporting import Reporter
from trainer.run.saving import Saver
from trainer.run.update import Update
from trainer.startup.checkpoint_size import check_room, is_sharded, state_bytes
from trainer.startup.handshake import compare_ranks, open_common_corpus
from trainer.startup.kernels import choose_kernels
from trainer.startup.node_copy import shared_checkpoint
from trainer.startup.resume import Source, check_position, claim, find_source, open_store, resume, state_of
from trainer.startup.setup import (
    LearningRates,
    build_network,
    check_all_shards,
    model_config,
    open_data,
    open_held_out,
)

STEP_NOTE = re.compile(r"in optimizer step (\d+)")
"""The note on an error that a step raised."""


@dataclass(frozen=True)
class Outcome:
    """How a call of ``train`` ended. ``status`` is finished or stopped."""

    status: str
    step: int
    total_steps: int
    first_loss: float | None
    last_loss: float | None
    tokens: int
    """Real tokens trained on in this call."""
    seconds: float
    checkpoint: str | None
    run_uri: str
    skipped_steps: int
    resumed_from: int


def train(config: TrainConfig, ranks: Ranks, hooks: Hooks | None = None) -> Outcome:
    """Trains until the last planned step or a signal. Resumes from the run's newest verified checkpoint.

    Raises ConfigError, CorpusError, CheckpointError or StorageError on all ranks when one fails.
    """
    hooks = hooks or Hooks()
    with ExitStack() as cleanup:
        with hooks.interruptible():
            trainer = Trainer(config, ranks, hooks, cleanup)
        return trainer.run()


class Trainer:
    """One rank of one attempt at a run. ``cleanup`` closes what it opens."""

    def __init__(self, config: TrainConfig, ranks: Ranks, hooks: Hooks, cleanup: ExitStack) -> None:
        self.config, self.ranks, self.hooks = config, ranks, hooks
        self.start_times, self.run_uri = StartTimes(), config.run.uri
        corpus = open_common_corpus(config, ranks)
        store = open_store(config, ranks, hooks, cleanup)
        with ranks.together():
            self.tokenizer = corpus.tokenizer_files() if ranks.rank == 0 else {}
        kernel = choose_kernels(config, model_config(config, corpus), self.run_uri, ranks)
        self.data = open_data(config, ranks, cleanup, kernel)
        with ranks.together():
            self.learning_rates = LearningRates(config, self.data.plan)
            self.network = build_network(config, self.data.corpus, ranks, kernel)
        stability = config.stability
        self.guard = SpikeGuard(
            stability.spike_window, stability.spike_sigma, ranks.device, stability.max_skipped
        )
        self.skips = DelayedFlag(ranks.device)
        self.held_out = open_held_out(config, self.data.corpus, ranks)
        source = find_source(store, config, ranks)
        self._resume(source)
        self._check_before_claim(store, kernel)
        self.update = Update(config, ranks, self.network, self.guard, self.learning_rates)
        self._error: BertmillError | None = None
        self._alarmed = False
        self._open_run(store, source, cleanup)
        self.start_times.mark("load")

    def _resume(self, source: Source) -> None:
        """Loads the checkpoint. Raises on all ranks when one cannot load it or its config has changed."""
        with shared_checkpoint(source, self.ranks) as checkpoint, self.ranks.together():
            self.position, self.changes = resume(
                checkpoint, self.config, self.data.corpus, self.network, self.guard
            )
            check_position(self.position, self.data.plan.total_steps)
            self.data.plan.leave_out((skip.step, skip.batches) for skip in self.position.skips)

    def _check_before_claim(self, store: CheckpointStore | None, kernel: Kernel) -> None:
        """Makes every check that can refuse this start, because a claim ends the attempt before it."""
        config, ranks, network = self.config, self.ranks, self.network
        facts = {
            "kernel": kernel.name,
            **{f"{name} (SHA-256)": digest for name, digest in sorted(network.digests.items())},
        }
        compare_ranks(facts, ranks)
        checkpoint_format = "sharded" if network.sharded else config.checkpoints.format
        size = state_bytes(network)
        self.sharded = is_sharded(checkpoint_format, size, ranks.world_size)
        check_trackers(config.logging.trackers, ranks)
        if config.data.check_shards and self.position.step == 0:
            check_all_shards(self.data.corpus, self.data.plan.orders, ranks)
        with ranks.together():
            if not self.finished:
                # Read again in the first step, mostly from the cache.
                self.data.reader.read(self.position.step)
            if store is not None:
                check_room(self.run_uri, size, checkpoint_format, ranks.world_size)
                storage.check_writable(storage.join(self.run_uri, "attempts"))

    def _open_run(self, store: CheckpointStore | None, source: Source, cleanup: ExitStack) -> None:
        """Claims the run and opens its log."""
        config, ranks = self.config, self.ranks
        self.attempt, now = claim(store, source, config, ranks)
        if now.uri != source.uri:
            self._resume(now)
        self.saver = Saver(config, ranks, self.attempt, cleanup, sharded=self.sharded)
        self.announcer = CommitAnnouncer(
            self.run_uri, self.attempt.folder_suffix, self.attempt.store, self.hooks
        )
        self.resumed_from = self.position.step
        settings, name = config.logging, config.run.name
        self.log = RunLog(
            self.run_uri,
            self.attempt.number,
            ranks.rank,
            tensorboard="tensorboard" in settings.trackers,
            first_step=self.position.step,
            on_record=self.hooks.on_record if ranks.rank == 0 else None,
            trackers=open_trackers(settings.trackers, self.run_uri, name, settings.project)
            if ranks.rank == 0
            else (),
        )
        cleanup.callback(self.log.close)
        self.memory = MemoryFit(config, ranks, self.data.reader, self.position, self.log)
        self.reporter = Reporter(config, ranks, self.data, self.network, self.guard, self.saver, self.log)
        self.reporter.started(self.attempt, self.position, self.changes)
        window = config.profile if ranks.rank == 0 else None
        self.profiler = ProfileWindow(window, self.run_uri, self.attempt.number)

    @property
    def finished(self) -> bool:
        """Whether all planned steps are done."""
        return self.position.step == self.data.plan.total_steps

    def run(self) -> Outcome:
        """Trains the remaining steps, or until a signal."""
        started, tokens_before = time.monotonic(), self.position.tokens
        self.saver.restart_clock()
        self.reporter.meter.reset()
        self.announcer.announce(self.attempt.checkpoint_uri, self.position.step)
        stop = False
        while not self.finished and not stop:
            # The first step may compile for minutes, and before it there is nothing to save.
            compiles = self.start_times.pending and (self.config.compile or self.network.model.encoder.fused)
            with self.hooks.interruptible() if compiles else nullcontext():
                stop = self._noted_step()
        checkpoint = self._finish()
        return Outcome(
            status="finished" if self.finished else "stopped",
            step=self.position.step,
            total_steps=self.data.plan.total_steps,
            first_loss=self.position.first_loss,
            last_loss=self.position.last_loss,
            tokens=self.position.tokens - tokens_before,
            seconds=time.monotonic() - started,
            checkpoint=checkpoint,
            run_uri=self.run_uri,
            skipped_steps=int(self.guard.skipped),
            resumed_from=self.resumed_from,
        )

    def _noted_step(self) -> bool:
        """Like `step`, but adds the number of the step to an error as a note."""
        number = self.position.step + 1
        try:
            return self.step()
        except Exception as error:
            section = self.config.objective
            failure = objective_error(section.use, error) if section else error
            failure.add_note(f"in optimizer step {number}")
            if failure is error:
                raise
            raise failure from error

    def step(self) -> bool:
        """Does one optimizer step. Returns true when the ranks agreed to stop after it."""
        self.profiler.start_step(self.position.step + 1)
        batches = self._read()
        self.start_times.mark("seek")
        agreed = self._agree(batches)
        targets = Targets(agreed.masked_tokens, agreed.pairs, batches.global_tokens, agreed.objective_targets)
        on_device = self.ranks.to_device(targets)
        batches = self.memory.fitting(batches, on_device, self.update)
        batches, statistics, norm, skip = self.update.apply(batches, on_device, self.memory.after_error)
        self.reporter.count_step(batches, statistics, norm, skip)
        self.skips.post(self.guard.too_many)
        self.position.step += 1
        self.position.tokens += batches.global_tokens
        if self.start_times.pending:
            self.log.write(self.start_times.finish(self.position.step, self.ranks.device))
        self._log_trace(self.profiler.end_step())
        last = self.finished or agreed.stop > 0
        due = last or agreed.save > 0 or self.saver.due_by_step(self.position.step)
        self._compare_ranks(saves=due)
        if last or self.position.step % self.config.logging.every_steps == 0:
            self._write_metrics(batches)
        stop = agreed.stop > 0
        if self.finished or not stop:
            stop = not self._evaluate(batches.plan) or stop
        if due or stop or self.position.trend.best_step == self.position.step:
            self._save()
        return stop

    def _read(self) -> StepBatches:
        """Reads this rank's part of the step. If reading fails, all ranks learn of it and raise."""
        started = time.monotonic()
        try:
            return self.data.reader.read(self.position.step)
        except BertmillError as error:
            self._error = error
            self._agree(None)
            raise
        finally:
            self.reporter.meter.waited += time.monotonic() - started

    def _agree(self, batches: StepBatches | None) -> Agreement:
        """Exchanges with the other ranks what the step depends on. Raises on all ranks if one failed."""
        next_step = self.position.step + 1
        node_leaving = next_step % self.config.logging.every_steps == 0 and self.hooks.node_leaving()
        error = self._error or self.saver.error or self.saver.displaced
        agreed = Agreement(
            masked_tokens=batches.masked_tokens if batches else 0,
            pairs=batches.pairs if batches else 0,
            objective_targets=self.network.count_objective_targets(batches.micro_batches) if batches else 0,
            stop=int(node_leaving or self.hooks.stop_requested()),
            save=int(self.saver.due_by_time()),
            failed=int(error is not None),
            committed_step=self.announcer.pending_step(),
            too_many_skips=int(self.skips.is_set()),
        ).sum_over(self.ranks)
        if agreed.failed:
            self.ranks.fail_together(self._set_aside(error))
        if agreed.too_many_skips:
            self.reporter.fail_for_skips()
        self.announcer.announce_step(agreed.committed_step)
        return agreed

    def _set_aside(self, error: BertmillError | None) -> BertmillError | None:
        """Keeps the state of a run that has a new owner, and names its place. Other errors stay unchanged."""
        store, step = self.saver.store, self.position.step
        newest = store.newest_committed if store else None
        if store is None or not isinstance(error, FencedError):
            return error
        if step == (newest.step if newest else self.resumed_from):
            return FencedError(f"{error}; every step up to {step} is in a checkpoint")
        if self.network.sharded:
            return FencedError(f"{error}; no rank has all weights after step {step}, so they are not kept")
        try:
            uri = store.set_aside(step, self._state())
        except (BertmillError, OSError, RuntimeError) as problem:
            return FencedError(f"{error}; its state after step {step} could not be kept: {problem}")
        return FencedError(f"{error}; its state after step {step} is in {uri}, for start_from or export")

    def _state(self) -> TrainingState:
        return state_of(
            self.config, self.data.corpus, self.network, self.guard, self.position, self.tokenizer
        )

    def _compare_ranks(self, *, saves: bool) -> None:
        every = self.config.stability.check_ranks_every
        if self.network.sharded:
            return  # each rank holds other rows, so nothing can be compared
        if saves if every is None else every and self.position.step % every == 0:
            check_ranks_agree(self.network.model.named_parameters(), self.ranks, self.position.step)

    def _write_metrics(self, batches: StepBatches) -> None:
        lr = self.learning_rates.at(self.position.step - 1)
        record = self.reporter.write_metrics(self.position, batches, lr)
        if record.masked_tokens or record.pairs:
            self._follow(add_line, step=record.step, phase=record.phase, loss=record.loss)
            self.position.last_loss = record.loss
            if self.position.first_loss is None:
                self.position.first_loss = record.loss

    def _evaluate(self, plan: StepPlan) -> bool:
        """Measures held-out sequences of the length in training, when it is due.

        Returns false when a stop request on any rank has ended the measurement on all ranks.
        """
        settings = self.config.evaluation
        if settings is None or not (self.finished or self.position.step % settings.every_steps == 0):
            return True
        network = self.network
        measure = partial(
            evaluate_until, network.model, self.held_out[plan.max_seq_length], self.ranks, network.precision,
            stop=self.hooks.stop_requested,
        )  # fmt: skip
        with unsharded(network.loss):
            metrics = measure()
        if metrics is None:
            return False
        of_average = None
        if settings.ema and network.average is not None:
            with network.average.in_model(), unsharded(network.loss):
                of_average = measure()
            if of_average is None:
                return False
        self.log.write(Evaluated(step=self.position.step, held_out=metrics, held_out_ema=of_average))
        self._follow(add_held_out, step=self.position.step, loss=metrics[ALL].loss)
        return True

    def _log_trace(self, trace: str | None) -> None:
        if trace is not None:
            self.log.write(Profiled(step=self.position.step, trace=trace))

    def _follow(self, add: Callable[..., Trend], **facts: float) -> None:
        """Updates the trend of the losses. If the loss stays high, warns or raises on all ranks."""
        alarm, before = self.config.stability.alarm, self.position.trend
        self.position.trend = add(before, alarm, **facts)
        text = problem(self.position.trend, alarm)
        if text is None or alarm.action == "off":
            self._alarmed = False
            return
        error = alarm_error(self.run_uri, self.position.trend, text)
        if alarm.action == "stop":
            raise error
        if not self._alarmed:
            self._alarmed = True
            self.log.write(Warned(step=self.position.step, text=str(error)))

    def _save(self) -> None:
        """Starts a checkpoint, or this rank's part of it."""
        self.saver.restart_clock()
        self.position.trend = add_save(self.position.trend, self.config.stability.alarm, self.position.step)
        if not self.saver.writes:
            return
        if self.saver.save(self.position.step, self._state()) and self.saver.store is not None:
            self.log.write(Saving(step=self.position.step))

    def _finish(self) -> str | None:
        """Waits on all ranks for the last checkpoint, and returns its URI."""
        self._log_trace(self.profiler.close())
        checkpoint, step = self.saver.finish(self.resumed_from, self._set_aside)
        self.announcer.announce(checkpoint, step)
        self.log.write(
            Ended(
                event="finished" if self.finished else "stopped",
                step=self.position.step,
                checkpoint=checkpoint,
            )
        )
        return checkpoint
