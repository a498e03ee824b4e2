"""What a run says to people: a line for every record worth one, the plan, and the closing table."""

from collections.abc import Callable
from typing import Any

import torch

from cluster import storage
from trainer.config import TrainConfig
from trainer.loop import run_uri
from trainer.model import BertPretraining, parameter_count
from trainer.prepare import preflight

Say = Callable[[str], None]


class Progress:
    """Turns the records of the log into lines for people."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._total = 0

    def __call__(self, record: dict[str, Any]) -> None:
        """Says what is worth a line."""
        event = record.get("event")
        if event is None:
            self._say(self._figures(record))
        elif event == "started":
            self._total = record["total_steps"]
            self._say(_started(record))
        elif event == "ready":
            self._say(_ready(record))
        elif event == "skipped":
            self._say(f"step {record['step']} skipped: gradient norm {record['gradient_norm']:.3g}")
        elif event == "warning":
            self._say(f"warning: {record['text']}")
        elif event == "stopped":
            self._say(f"stopped after step {record['step']}; the same command goes on from there")

    def _figures(self, record: dict[str, Any]) -> str:
        left = (self._total - record["step"]) * record["step_seconds"]
        parts = [
            f"step {record['step']}/{self._total}",
            f"length {record['max_seq_length']}",
            f"loss {record['loss']:.3f}",
        ]
        if "token_accuracy" in record:
            parts.append(f"token accuracy {record['token_accuracy']:.3f}")
        if "pair_accuracy" in record:
            parts.append(f"pair accuracy {record['pair_accuracy']:.3f}")
        parts += [
            f"rate {record['learning_rate']:.2e}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"left {_duration(left)}",
        ]
        return "  ".join(parts)


def _started(record: dict[str, Any]) -> str:
    kernel = record["kernel"]
    begin = (
        "begins" if record["step"] == 0 else f"goes on after step {record['step']} ({record['checkpoint']})"
    )
    changes = "".join(f"\n  changed: {change}" for change in record["changes"])
    return (
        f"attempt {record['attempt']} {begin}: {record['world_size']} ranks on {record['device']},"
        f" {record['parameters']:,} parameters, attention {kernel['name']} ({kernel['reason']}){changes}"
    )


def _ready(record: dict[str, Any]) -> str:
    names = ("process", "load", "seek", "compile", "first_step")
    parts = ", ".join(f"{name.replace('_', ' ')} {record[f'{name}_seconds']:.1f} s" for name in names)
    compiled, cached = record["graphs_compiled"], record["graphs_from_cache"]
    graphs = f"; {compiled} graphs compiled, {cached} from the cache" if compiled or cached else ""
    return f"first step after {record['total_seconds']:.1f} s: {parts}{graphs}"


def show_plan(config: TrainConfig, say: Say) -> None:
    """Says what the run would do. Raises ConfigError, CorpusError."""
    corpus, shape, plan, rates = preflight(config)
    with torch.device("meta"):
        parameters = parameter_count(BertPretraining(shape))
    say(
        f"corpus   {corpus.uri}: {corpus.objective}, {corpus.vocab_size:,} pieces,"
        f" {len(corpus.languages)} languages"
    )
    say(f"model    {shape.style} {shape.size}: {parameters:,} parameters")
    say(f"run      {run_uri(config)}: {plan.total_steps:,} steps, {config.workers.num_workers} ranks")
    for number, phase in enumerate(plan.phases):
        order = plan.orders[phase.phase.max_seq_length]
        last = phase.first_step + phase.steps - 1
        epochs = phase.samples / (order.cycle_rows / order.passes)
        say(
            f"phase {number}  length {phase.phase.max_seq_length}: steps {phase.first_step:,} to {last:,},"
            f" {phase.samples:,} rows in batches of {phase.phase.global_batch:,} ({epochs:.2f} epochs),"
            f" rate {rates.at(phase.first_step):.2e} to {rates.at(last):.2e}"
        )


def show_outcome(outcome: dict[str, Any], say: Say) -> None:
    """Says how the run ended and where its files lie."""
    first, last = outcome["first_loss"], outcome["last_loss"]
    rows = [
        ("status", outcome["status"]),
        ("steps", f"{outcome['resumed_from']} to {outcome['step']} of {outcome['total_steps']}"),
        ("loss", f"{first:.4f} at first, {last:.4f} at last" if first is not None else "no target seen"),
        ("tokens", f"{outcome['tokens']:,} in {_duration(outcome['seconds'])}"),
        ("tokens/s", f"{outcome['tokens'] / max(outcome['seconds'], 1e-9):,.0f}"),
        ("skipped steps", str(outcome["skipped_steps"])),
        ("checkpoint", outcome["checkpoint"] or "none written"),
        ("metrics", storage.join(outcome["run_uri"], "metrics")),
        ("TensorBoard", storage.join(outcome["run_uri"], "tensorboard")),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:<{width}}  {value}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
