"""Measures data parallelism on the GPUs of one host. Writes a JSON line for each measurement.

    torchrun --standalone --nproc-per-node 4 -m benchmarks.training.several_cards --out several_cards.jsonl

rates: base with 512 sequences per card and step, each card alone (all at the same time) and then together,
with DDP and with sharded weights, gradients in fp32 and in bf16. overlap: the same with DDP, gradients
exchanged beside the backward pass and after it. losses: a small BERT on real text, with gradients sent in
fp32 and in bf16. large, billions: rate and memory of BERT-large and of a model of 2.5 billion parameters,
with DDP and with sharded weights.
One process per card makes all measurements, because imports and compilation take longer than most of them.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.training.random_rows import write_rows
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks, join_torchrun, leave, single_rank
from trainer.hooks import Hooks
from trainer.monitoring.records import LogRecord, Started, StepRecord
from trainer.run.loop import train

BLOCK = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model on random rows of 128 tokens, all of one length."""

    model: dict[str, Any]
    tokens: int
    """Tokens of a card's only micro-batch of a step."""
    steps: int = 40
    vocab: int = 30528
    fields: dict[str, Any] = field(default_factory=dict)


BASE = Case({"size": "base", "activation": "gelu_tanh"}, 512 * 128)
LARGE = Case({"size": "large", "activation": "gelu_tanh"}, 512 * 128, 24)
BILLIONS = Case(
    {
        "size": "custom", "layers": 48, "hidden_size": 2048, "heads": 32, "intermediate_size": 8192,
        "activation": "gelu_tanh",
    },
    128 * 128, 10,
)  # fmt: skip
TINY = Case(
    {"size": "custom", "layers": 2, "hidden_size": 64, "heads": 1, "intermediate_size": 128}, 512, 10, 1024
)
FP32, BF16 = {"gradient_exchange": "fp32"}, {"gradient_exchange": "bf16"}
FSDP = {"data_parallel": "fsdp"}
OVERLAP = {
    f"{name}-{when}": {**fields, "overlap_gradients": when == "beside"}
    for name, fields in (("fp32", FP32), ("bf16", BF16))
    for when in ("beside", "after")
}
WAYS = {"ddp-fp32": FP32, "ddp-bf16": BF16, "fsdp-fp32": {**FSDP, **FP32}, "fsdp-bf16": {**FSDP, **BF16}}


class _EnoughError(Exception):
    """The run has been measured."""


class Watch:
    """The log of rank 0, and the end of a run on all ranks after the same number of steps, without a save."""

    def __init__(self, steps: int) -> None:
        self.lines: list[StepRecord] = []
        self.start: Started | None = None
        self._calls, self._steps = 0, steps

    def keep(self, record: LogRecord) -> None:
        """Keeps a record."""
        if isinstance(record, Started):
            self.start = record
        if isinstance(record, StepRecord):
            self.lines.append(record)

    def stop(self) -> bool:
        """Called once before each step."""
        self._calls += 1
        if self._calls > self._steps:
            raise _EnoughError
        return False


@contextmanager
def quick_weights() -> Iterator[None]:
    """Initial weights that repeat a small random block: drawing billions of them takes a minute."""
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))  # the same on all ranks

    def fill(weight: Tensor, deviation: float) -> None:
        with torch.no_grad():
            flat = weight.view(-1)
            for first in range(0, flat.numel(), BLOCK):
                part = flat[first : first + BLOCK]
                part.copy_(block[: part.numel()]).mul_(deviation)

    with ExitStack() as patches:
        patches.enter_context(mock.patch("trainer.model.encoder.truncated_normal", fill))
        for kind in (nn.Linear, nn.Embedding):
            patches.enter_context(mock.patch.object(kind, "reset_parameters"))
        yield


def measured(config: TrainConfig, ranks: Ranks, steps: int) -> tuple[Watch, float]:
    """Trains ``steps`` steps. Returns what rank 0 logged, and the most GiB that a card allocated."""
    watch, cuda = Watch(steps), ranks.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(_EnoughError):
        train(config, ranks, Hooks(watch.stop, on_record=watch.keep))
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return watch, max(ranks.gather(peak))


def config_of(
    case: dict[str, Any], manifest: Path, folder: str, ranks: Ranks, fields: dict[str, Any]
) -> TrainConfig:
    """The config of a measurement."""
    cuda = ranks.device.type == "cuda"
    return TrainConfig.model_validate(
        {
            "run": {"name": "run", "storage": folder},
            "data": {"manifest": str(manifest), "check_shards": False, "read_threads": 4, "read_ahead": 4},
            "precision": "bf16",
            "compile": cuda,
            "checkpoints": {"every_steps": None, "every_seconds": None},
            "workers": {"use_gpu": cuda, "num_workers": ranks.world_size},
            "fit_micro_batch": False,
            **case,
            **fields,
        }
    )


def rate(case: Case, fields: dict[str, Any], ranks: Ranks, folder: str, corpora: Path) -> dict[str, Any]:
    """Sequences per second and card, from the second half of the steps."""
    every, rows = case.steps // 4, case.tokens // 128
    manifest = write_rows(corpora, 128, case.vocab, "full")
    phase = {
        "max_seq_length": 128, "global_batch": rows * ranks.world_size, "micro_batch_tokens": case.tokens,
        "steps": 100000, "learning_rate": 1e-4,
    }  # fmt: skip
    about = {"model": case.model, "phases": [phase], "logging": {"every_steps": every, "trackers": []}}
    config = config_of(about, manifest, folder, ranks, fields)
    with quick_weights():
        watch, peak = measured(config, ranks, case.steps)
    if not watch.lines or watch.start is None:
        return {}
    seconds = sum(line.step_seconds for line in watch.lines[2:]) / len(watch.lines[2:])
    return {
        "cards": ranks.world_size,
        "rows_per_second_and_card": rows / seconds,
        "step_seconds": seconds,
        "mfu": watch.lines[-1].mfu,
        "peak_memory_gib": peak,
        "parameters": watch.start.parameters,
        "kernel": watch.start.kernel.name,
        "loss": watch.lines[-1].loss,
    }


def losses(
    steps: int,
    size: str,
    rows: int,
    seed: int,
    fields: dict[str, Any],
    ranks: Ranks,
    folder: str,
    manifest: Path,
) -> dict[str, Any]:
    """The losses of a small BERT on real text, with new masks in every epoch."""
    phase = {
        "max_seq_length": 128, "global_batch": rows, "micro_batch_tokens": 8192, "steps": 100000,
        "learning_rate": 1e-3,
    }  # fmt: skip
    about = {
        "model": {"size": size}, "phases": [phase], "seed": seed,
        "schedule": {"shape": "wsd", "warmup": 30},
        "logging": {"every_steps": max(1, steps // 40), "trackers": []},
    }  # fmt: skip
    config = config_of(about, manifest, folder, ranks, fields)
    config = config.model_copy(update={"data": config.data.model_copy(update={"masking": "dynamic"})})
    watch, _ = measured(config, ranks, steps)
    found = [line.loss for line in watch.lines]
    if not found:
        return {}
    tail = found[-10:]
    return {"cards": ranks.world_size, "seed": seed, "steps": steps, "losses": found,
            "mean_of_last": sum(tail) / len(tail)}  # fmt: skip


class Bench:
    """All measurements on the ranks of this job, until the time is over."""

    def __init__(self, arguments: argparse.Namespace, ranks: Ranks) -> None:
        self.arguments, self.ranks = arguments, ranks
        self.began = time.monotonic()

    def measure(self, name: str, function: Any, *parameters: Any, alone: bool = False) -> None:
        """Writes the line of one measurement, by all ranks together or by each one ``alone``."""
        ranks, began = self.ranks, time.monotonic()
        spent = ranks.broadcast_from_rank0(began - self.began)
        if spent > self.arguments.seconds:
            if ranks.rank == 0:
                print(f"{name}: left out after {spent:.0f} s", flush=True)
            return
        with tempfile.TemporaryDirectory() as folder:
            storage = folder if alone else ranks.broadcast_from_rank0(folder)
            chosen = single_rank(ranks.device) if alone else ranks
            found = function(*parameters, chosen, storage, Path(self.arguments.corpora))
            if alone:
                found["each"] = ranks.gather(found.get("rows_per_second_and_card"))
            ranks.barrier()
        if ranks.rank == 0:
            cuda = ranks.device.type == "cuda"
            about = {
                "measurement": name,
                "card": torch.cuda.get_device_name() if cuda else "cpu",
                "torch": torch.__version__,
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "seconds": round(time.monotonic() - began, 1),
            }
            line = json.dumps({**about, **found})
            print(line[:400], flush=True)
            with Path(self.arguments.out).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def rates(self) -> None:
        """512 sequences a card, and BERT-large."""
        base = TINY if self.arguments.tiny else BASE
        self.measure("base each card alone", rate, base, FP32, alone=True)
        for way, fields in WAYS.items():
            self.measure(f"base {way}", rate, base, fields)

    def overlap(self) -> None:
        """512 sequences a card, twice and longer than others: a card gets slower as it gets warmer."""
        base = TINY if self.arguments.tiny else replace(BASE, steps=100)
        for _ in range(2):
            self.measure("base each card alone", rate, base, FP32, alone=True)
            for way, fields in OVERLAP.items():
                self.measure(f"base {way}", rate, base, fields)
        self.measure("base each card alone", rate, base, FP32, alone=True)

    def losses(self) -> None:
        """fp32 against bf16, two seeds each."""
        manifest, steps = Path(self.arguments.sample), 20 if self.arguments.tiny else 400
        size, rows = ("tiny", 8) if self.arguments.tiny else ("mini", 128)

        def one(seed: int, fields: dict[str, Any], ranks: Ranks, folder: str, _: Path) -> dict[str, Any]:
            return losses(steps, size, rows, seed, fields, ranks, folder, manifest)

        for seed in (1, 2):
            for way in ("ddp-fp32", "ddp-bf16"):
                self.measure(f"losses {way}", one, seed, WAYS[way])
        self.measure("losses fsdp-bf16", one, 1, WAYS["fsdp-bf16"])

    def large(self) -> None:
        """BERT-large."""
        for way in ("ddp-fp32", "fsdp-fp32", "fsdp-bf16"):
            self.measure(f"large {way}", rate, TINY if self.arguments.tiny else LARGE, WAYS[way])

    def billions(self) -> None:
        """A model that takes most of a card's memory with DDP."""
        for way in ("fsdp-fp32", "fsdp-bf16", "ddp-fp32"):
            self.measure(f"billions {way}", rate, TINY if self.arguments.tiny else BILLIONS, WAYS[way])


def main() -> int:
    """Runs the chosen groups of measurements."""
    groups = ("rates", "overlap", "losses", "large", "billions")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", nargs="+", choices=groups, default=list(groups))
    parser.add_argument("--out", default="several_cards.jsonl", help="JSON lines are added to it")
    parser.add_argument(
        "--corpora", default="/tmp/several_cards", help="where random rows are written or found"
    )
    parser.add_argument("--sample", help="manifest of a corpus of real text, for losses")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no measurement after this time")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script on the CPU")
    arguments = parser.parse_args()
    if "losses" in arguments.groups and not arguments.sample:
        parser.error("losses need --sample")
    ranks = join_torchrun(120, use_gpu=torch.cuda.is_available())
    if ranks.rank == 0:
        for vocab in {1024 if arguments.tiny else 30528}:
            write_rows(Path(arguments.corpora), 128, vocab, "full")
    ranks.barrier()
    bench = Bench(arguments, ranks)
    for group in arguments.groups:
        getattr(bench, group)()
    leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
