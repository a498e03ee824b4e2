"""What a run prints: lines for records of its log, the plan, and the closing table."""

from collections.abc import Callable

import torch

from cluster import storage
from trainer.config import TrainConfig
from trainer.model.pretraining import BertPretraining, parameter_count
from trainer.monitoring.records import Ended, LogRecord, Profiled, Ready, Skipped, Started, StepRecord, Warned
from trainer.run.loop import Outcome
from trainer.startup.setup import preflight

PrintLine = Callable[[str], None]


class ConsoleLog:
    """Prints records of the log as readable lines."""

    def __init__(self, print_line: PrintLine) -> None:
        self._print_line = print_line
        self._total_steps = 0

    def __call__(self, record: LogRecord) -> None:
        """Prints a line for the kinds of records that have one."""
        if isinstance(record, StepRecord):
            self._print_line(_step_line(record, self._total_steps))
        elif isinstance(record, Started):
            self._total_steps = record.total_steps
            self._print_line(_start_line(record))
        elif isinstance(record, Ready):
            self._print_line(_ready_line(record))
        elif isinstance(record, Skipped):
            self._print_line(f"step {record.step} skipped: gradient norm {record.grad_norm:.3g}")
        elif isinstance(record, Warned):
            self._print_line(f"warning: {record.text}")
        elif isinstance(record, Profiled):
            self._print_line(f"profiler trace up to step {record.step}: {record.trace}")
        elif isinstance(record, Ended) and record.event == "stopped":
            self._print_line(f"stopped after step {record.step}; rerun the same command to resume")


def _step_line(record: StepRecord, total_steps: int) -> str:
    parts = [
        f"step {record.step}/{total_steps}",
        f"length {record.max_seq_length}",
        f"loss {record.loss:.3f}",
    ]
    if record.mlm_accuracy is not None:
        parts.append(f"MLM accuracy {record.mlm_accuracy:.3f}")
    if record.nsp_accuracy is not None:
        parts.append(f"NSP accuracy {record.nsp_accuracy:.3f}")
    if record.objective_loss is not None:
        parts.append(f"objective loss {record.objective_loss:.3f}")
    parts += [f"lr {record.lr:.2e}", f"{record.tokens_per_second:,.0f} tokens/s"]
    if record.mfu is not None:
        parts.append(f"MFU {record.mfu:.1%}")
    parts.append(f"ETA {_duration((total_steps - record.step) * record.step_seconds)}")
    return "  ".join(parts)


def _start_line(record: Started) -> str:
    origin = f"resumes after step {record.step} from {record.checkpoint}" if record.step else "starts"
    way = f" ({record.data_parallel})" if record.data_parallel else ""
    changes = "".join(f"\n  changed: {change}" for change in record.changes)
    return (
        f"attempt {record.attempt} {origin}: {record.world_size} ranks{way} on {record.device},"
        f" {record.parameters:,} parameters, attention {record.kernel.name} ({record.kernel.reason}){changes}"
    )


def _ready_line(record: Ready) -> str:
    parts = (
        f"process {record.process_seconds:.1f} s, load {record.load_seconds:.1f} s,"
        f" seek {record.seek_seconds:.1f} s, compile {record.compile_seconds:.1f} s,"
        f" first step {record.first_step_seconds:.1f} s"
    )
    compiled, cached = record.graphs_compiled, record.graphs_from_cache
    graphs = f"; {compiled} graphs compiled, {cached} from the cache" if compiled or cached else ""
    return f"first step after {record.total_seconds:.1f} s: {parts}{graphs}"


def show_plan(config: TrainConfig, print_line: PrintLine) -> None:
    """Prints what the run would do. Raises ConfigError, CorpusError."""
    plan = preflight(config)
    corpus, model, steps = plan.corpus, plan.model, plan.steps
    with torch.device("meta"):
        parameters = parameter_count(BertPretraining(model))
    print_line(
        f"corpus   {corpus.uri}: {corpus.objective}, vocabulary of {corpus.vocab_size:,},"
        f" {len(corpus.languages)} languages"
    )
    print_line(f"model    {model.style} {model.size}: {parameters:,} parameters")
    workers = config.workers
    ranks = str(workers.most) if workers.least == workers.most else f"{workers.least} to {workers.most}"
    print_line(f"run      {config.run.uri}: {steps.total_steps:,} steps, {ranks} ranks")
    for number, phase in enumerate(steps.phases):
        order = steps.orders[phase.phase.max_seq_length]
        last = phase.first_step + phase.steps - 1
        epochs = phase.samples / (order.cycle_rows / order.passes)
        first_lr, last_lr = plan.learning_rates.at(phase.first_step), plan.learning_rates.at(last)
        print_line(
            f"phase {number}  length {phase.phase.max_seq_length}: steps {phase.first_step:,} to {last:,},"
            f" {phase.samples:,} sequences in batches of {phase.phase.global_batch:,} ({epochs:.2f} epochs),"
            f" lr {first_lr:.2e} to {last_lr:.2e}"
        )


def show_outcome(outcome: Outcome, print_line: PrintLine) -> None:
    """Prints how the run ended and where its files are."""
    first, last = outcome.first_loss, outcome.last_loss
    loss = f"{first:.4f} (first), {last:.4f} (last)" if first is not None else "no targets"
    rows = [
        ("status", outcome.status),
        ("steps", f"{outcome.resumed_from} to {outcome.step} of {outcome.total_steps}"),
        ("loss", loss),
        ("tokens", f"{outcome.tokens:,} in {_duration(outcome.seconds)}"),
        ("tokens/s", f"{outcome.tokens / max(outcome.seconds, 1e-9):,.0f}"),
        ("skipped steps", str(outcome.skipped_steps)),
        ("checkpoint", outcome.checkpoint or "none"),
        ("metrics", storage.join(outcome.run_uri, "metrics")),
        ("TensorBoard", storage.join(outcome.run_uri, "tensorboard")),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print_line(f"{name:<{width}}  {value}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
