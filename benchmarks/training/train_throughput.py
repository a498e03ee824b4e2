"""Compares the speed of the trainer with transformers on the same rows. Writes a JSON line for each run.

    python -m benchmarks.training.train_throughput --out benchmarks/results/train_throughput.jsonl

A case is a size, a length, a vocabulary and a distribution of row lengths. A variant is a trainer and its
settings. Every run is a separate process with a time limit, so a failure does not affect the others. "ours"
is the trainer itself (trainer/run/loop.py) reading shards. transformers gets the same rows, padded, from
memory. MFU = operations of the model's matrix products for the real tokens (trainer/monitoring/flops.py:
forward and backward, the head at masked positions only, in the last layer nothing but keys and values at
positions that no head reads, for all variants alike) / seconds / the card's dense bf16 peak.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.training.random_rows import length_range, write_rows
from trainer.config import TrainConfig
from trainer.distributed.ranks import join_torchrun, pick_device, single_rank
from trainer.hooks import Hooks
from trainer.model.config import ModelConfig
from trainer.monitoring.flops import peak_flops, training_flops
from trainer.monitoring.records import LogRecord, Ready, Started, StepRecord
from trainer.run.loop import train

if TYPE_CHECKING:
    from transformers import BertConfig

# size, length, vocabulary, kind of rows, tokens of a micro-batch, micro-batches of a step,
# rows of a batch of transformers (as many as fit beside its logits at every position).
CASES: dict[str, tuple[str, int, int, str, int, int, int]] = {
    "base-128": ("base", 128, 30528, "full", 131072, 2, 512),
    "base-512": ("base", 512, 30528, "full", 131072, 2, 128),
    "base-128-drawn": ("base", 128, 30528, "drawn", 131072, 2, 512),
    "base-512-drawn": ("base", 512, 30528, "drawn", 131072, 2, 128),
    "base-128-119k": ("base", 128, 119552, "full", 131072, 2, 256),
    "base-512-119k": ("base", 512, 119552, "full", 131072, 2, 64),
    "large-128": ("large", 128, 30528, "full", 65536, 4, 256),
    "large-512": ("large", 512, 30528, "full", 65536, 4, 64),
    # The shape of MLPerf's BERT: 254 tokens a sequence on average.
    "large-512-drawn": ("large", 512, 30528, "mean-254", 65536, 4, 64),
    "base-1024": ("base", 1024, 30528, "full", 131072, 2, 64),
    "base-1024-drawn": ("base", 1024, 30528, "drawn", 131072, 2, 64),
    # 512 sequences per GPU and step, for comparison with several GPUs.
    "base-128-512-rows": ("base", 128, 30528, "full", 65536, 1, 512),
    "tiny-128": ("tiny", 128, 1024, "full", 2048, 2, 16),
}
# Fields of the config, by variant. The default dropout is 0.1 in hidden states and 0 in attention.
VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {"model": {"activation": "gelu_tanh"}},
    "ours-bf16-gradients": {"gradient_exchange": "bf16", "model": {"activation": "gelu_tanh"}},
    "ours-dropout-0": {"model": {"activation": "gelu_tanh", "hidden_dropout": 0.0}},
    "ours-exact-gelu": {},
    "plain": {"kernels": "plain"},
    "plain-dropout-0": {"kernels": "plain", "model": {"hidden_dropout": 0.0}},
    "plain-max-autotune": {
        "kernels": "plain",
        "compile_mode": "max-autotune-no-cudagraphs",
        "model": {"hidden_dropout": 0.0, "activation": "gelu_tanh"},
    },
    "modern": {"model": {"style": "modern", "max_positions": 1024}},
    "modern-plain": {"kernels": "plain", "model": {"style": "modern", "max_positions": 1024}},
    "albert": {"model": {"style": "albert", "pair_objective": "nsp"}},
    "albert-plain": {"kernels": "plain", "model": {"style": "albert", "pair_objective": "nsp"}},
    "ours-recompute": {"recompute_layers": 99, "model": {"activation": "gelu_tanh"}},
    "ours-chunks": {"loss_chunk": 4096, "model": {"activation": "gelu_tanh"}},
    "plain-uncompiled": {"kernels": "plain", "compile": False, "model": {"hidden_dropout": 0.0}},
    "ours-uncompiled": {"compile": False, "model": {"activation": "gelu_tanh", "hidden_dropout": 0.0}},
    "transformers": {},
    "transformers-compiled": {},
}


class _EnoughError(Exception):
    """The run has been measured."""


class Watch:
    """Follows the log of a run: the lines after the first ``warm`` ones count."""

    def __init__(self, warm: int, lines: int, *, profile: bool, ends: bool) -> None:
        self.warm, self.lines, self.profile, self.ends = warm, lines, profile, ends
        self.records: list[dict[str, Any]] = []
        self.started, self.first_line = time.monotonic(), 0.0
        self.kernel: dict[str, Any] = {}
        self.ready: dict[str, Any] = {}
        self.profiler: Any = None
        self.catcher = warnings.catch_warnings(record=True)
        self.caught: list[warnings.WarningMessage] | None = None

    def __call__(self, record: LogRecord) -> None:
        """Takes a record of the log. Raises _EnoughError after the last."""
        if isinstance(record, Started):
            self.kernel = record.kernel.model_dump()
        if isinstance(record, Ready):
            self.ready = record.to_json()
        if not isinstance(record, StepRecord):
            return
        self.records.append(record.to_json())
        if len(self.records) == 1:
            self.first_line = time.monotonic() - self.started
        if self.profile and len(self.records) == self.warm:
            torch.cuda.set_sync_debug_mode("warn")
            self.caught = self.catcher.__enter__()
            warnings.simplefilter("always")
            self.profiler = torch.profiler.profile()
            self.profiler.__enter__()
        if len(self.records) == self.warm + self.lines:
            if self.profiler is not None:
                torch.cuda.set_sync_debug_mode("default")
                self.catcher.__exit__(None, None, None)
                self.profiler.__exit__(None, None, None)
            if self.ends:
                raise _EnoughError


def config_of(
    case: str, variant: str, corpus: Path, folder: Path, arguments: argparse.Namespace, ranks: int
) -> TrainConfig:
    """The config of a run of ours."""
    size, length, _, kind, tokens, micro_batches, _ = CASES[case]
    if arguments.tokens:
        tokens, micro_batches = arguments.tokens, max(1, round(micro_batches * tokens / arguments.tokens))
    mean = sum(length_range(kind, length)) / 2
    fields = VARIANTS[variant]
    return TrainConfig.model_validate(
        {
            "run": {"name": "run", "storage": str(folder)},
            "data": {"manifest": str(corpus), "check_shards": False, "read_threads": 4, "read_ahead": 4},
            "precision": "bf16",
            "compile": True,
            "phases": [
                {
                    "max_seq_length": length,
                    "global_batch": int(
                        ranks * micro_batches * tokens / mean * (1 if kind == "full" else 0.99)
                    ),
                    "micro_batch_tokens": tokens,
                    "steps": 100000,
                    "learning_rate": 1e-4,
                }
            ],
            "checkpoints": {"every_steps": None, "every_seconds": None},
            "logging": {"every_steps": arguments.every, "trackers": []},
            "workers": {"use_gpu": torch.cuda.is_available(), "num_workers": ranks},
            **{name: value for name, value in fields.items() if name != "model"},
            "model": {"size": size, **fields.get("model", {})},
        }
    )


def ours(case: str, variant: str, corpus: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and measures: figures of the steps after the first ones."""
    ranks = (
        join_torchrun(600, True)
        if arguments.torchrun
        else single_rank(pick_device(torch.cuda.is_available()))
    )
    several = ranks.world_size > 1
    watch = Watch(2, arguments.lines, profile=bool(arguments.profile), ends=not several)
    hooks = Hooks(on_record=watch)
    if several:
        # All ranks must end together, so the run stops as for a signal, with a checkpoint.
        hooks = Hooks(on_record=watch, stop_requested=_after(arguments.every * (2 + arguments.lines)))
    with tempfile.TemporaryDirectory() as folder, suppress(_EnoughError):
        storage = ranks.broadcast_from_rank0(folder)
        config = config_of(case, variant, corpus, Path(storage), arguments, ranks.world_size)
        train(config, ranks, hooks)
        ranks.barrier()
    if ranks.rank:
        return {}
    counted = watch.records[watch.warm : watch.warm + watch.lines]
    seconds = sum(one["step_seconds"] for one in counted) / len(counted)
    rows, wait = config.phases[0].global_batch, sum(one["data_wait_share"] for one in counted)
    if watch.profiler is not None:
        show_profile(watch, arguments.profile)
    return {
        "rows_per_second": rows / seconds,
        "tokens_per_second": sum(one["tokens_per_second"] for one in counted) / len(counted),
        "mfu": sum(one.get("mfu", 0.0) for one in counted) / len(counted),
        "data_wait_share": wait / len(counted),
        "packing_efficiency": counted[-1]["packing_efficiency"],
        "step_seconds": seconds,
        "rows_per_step": rows,
        "first_line_seconds": watch.first_line,
        "start": {name: watch.ready[name] for name in watch.ready if name.endswith("_seconds")},
        "loss": counted[-1]["loss"],
        "ranks": ranks.world_size,
        "kernel": watch.kernel.get("name"),
        "config": {name: VARIANTS[variant].get(name) for name in VARIANTS[variant]},
    }


def _after(steps: int) -> Any:
    """A stop_requested that returns true from the ``steps``-th call on."""
    asked = iter(range(1, 1 << 62))
    return lambda: next(asked) >= steps


def show_profile(watch: Watch, path: str) -> None:
    """Writes the kernels by their time, and every place that waited for the device."""
    found = watch.profiler.key_averages()
    rows = [row for row in found if row.device_type.name == "CUDA"]
    rows.sort(key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    lines = [f"total {total / 1e3:.2f} ms"]
    waits = [f"{one.filename}:{one.lineno}" for one in watch.caught or [] if "synchroniz" in str(one.message)]
    lines += [f"wait {waits.count(place):5d} {place}" for place in sorted(set(waits))]
    for row in rows[:60]:
        spent = row.self_device_time_total
        lines.append(f"{spent / 1e3:9.2f} ms {spent / total:6.1%} {row.count:6d} {row.key[:150]}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _bert_config(shape: ModelConfig) -> "BertConfig":
    """The config in transformers of a model of this shape."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.intermediate_size,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def transformers(case: str, variant: str, corpus: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """BertForPreTraining on the same rows padded, with the same number of rows to an update."""
    from transformers import BertForPreTraining

    size, length, vocab, _, tokens, micro_batches, batch_rows = CASES[case]
    shape = ModelConfig.model_validate({"size": size, "vocab_size": vocab})
    device = pick_device(torch.cuda.is_available())
    model = BertForPreTraining(_bert_config(shape)).to(device)
    if variant.endswith("compiled"):
        model.compile()
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)
    rows = padded_rows(next(corpus.parent.glob("train-*/*.parquet")), length)
    if fused:
        rows = {name: value.pin_memory() for name, value in rows.items()}
    parts = max(1, round(micro_batches * tokens / length / batch_rows))
    available = rows["input_ids"].shape[0] // batch_rows

    def step(number: int) -> torch.Tensor:
        for part in range(parts):
            first = (number * parts + part) % available * batch_rows
            batch = {k: v[first : first + batch_rows].to(device, non_blocking=True) for k, v in rows.items()}
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(**batch).loss / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        detached: Tensor = loss.detach()
        return detached

    started = time.monotonic()
    float(step(0))
    first_line = time.monotonic() - started
    for number in range(1, 4):
        loss = step(number)
    float(loss)
    started, steps = time.monotonic(), max(3, arguments.every * arguments.lines // 2)
    for number in range(steps):
        loss = step(number)
    last = float(loss)
    seconds = (time.monotonic() - started) / steps
    sizes = rows["attention_mask"].sum(1).double()
    count = parts * batch_rows
    real, squares = float(sizes.mean()) * count, float((sizes**2).mean()) * count
    masked = float((rows["labels"] >= 0).sum()) / rows["labels"].shape[0] * count
    peak = peak_flops(device, torch.bfloat16)
    return {
        "rows_per_second": count / seconds,
        "tokens_per_second": real / seconds,
        "mfu": training_flops(shape, real, squares, masked, masked + count) / seconds / peak if peak else 0.0,
        "step_seconds": seconds,
        "rows_per_step": count,
        "first_line_seconds": first_line,
        "loss": last,
        "ranks": 1,
    }


def padded_rows(shard: Path, length: int) -> dict[str, torch.Tensor]:
    """The rows of a shard in the format of transformers."""
    table = pq.read_table(shard)
    count = table.num_rows
    sizes = table["length"].to_numpy()
    inside = np.arange(length)[None, :] < sizes[:, None]
    ids = np.zeros((count, length), np.int64)
    ids[inside] = table["input_ids"].combine_chunks().flatten().to_numpy()
    segments = (np.arange(length)[None, :] >= table["segment_a_length"].to_numpy()[:, None]) & inside
    labels = np.full((count, length), -100)
    places = table["masked_positions"].combine_chunks()
    row = np.repeat(np.arange(count), np.diff(places.offsets.to_numpy()))
    labels[row, places.flatten().to_numpy()] = table["masked_ids"].combine_chunks().flatten().to_numpy()
    arrays = {
        "input_ids": ids, "attention_mask": inside.astype(np.int64),
        "token_type_ids": segments.astype(np.int64), "labels": labels,
        "next_sentence_label": table["next_sentence_label"].to_numpy().astype(np.int64),
    }  # fmt: skip
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def measure(case: str, variant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in this process."""
    _, length, vocab, kind, *_ = CASES[case]
    corpus = write_rows(Path(arguments.corpora), length, vocab, kind)
    run = transformers if variant.startswith("transformers") else ours
    found = run(case, variant, corpus, arguments)
    cuda = torch.cuda.is_available()
    about = {
        "case": case,
        "variant": variant,
        "card": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else 0.0,
    }
    return {**about, **{k: round(v, 5) if isinstance(v, float) else v for k, v in found.items()}}


def run_apart(case: str, variant: str, arguments: argparse.Namespace) -> bool:
    """Measures in a separate process, which may fail or time out. Returns whether it succeeded."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.training.train_throughput"]
    command += ["--here", "--runs", f"{case}:{variant}"]
    for name in ("out", "corpora", "every", "lines", "tokens", "profile"):
        value = getattr(arguments, name)
        command += [f"--{name}", str(value)] if value else []
    try:
        done = subprocess.run(command, timeout=arguments.limit, check=False, capture_output=True, text=True)
        well, text = done.returncode == 0, done.stderr
    except subprocess.TimeoutExpired:
        well, text = False, f"more than {arguments.limit} s"
    shown = Path(arguments.out).read_text(encoding="utf-8").splitlines()[-1] if well else text[-1500:]
    print(f"{case}:{variant} {time.monotonic() - began:.0f} s", shown, flush=True)
    return well


def main() -> int:
    """Runs every case with every variant, or one case and variant in this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", nargs="+", metavar="CASE:VARIANT", help="what to run; default: the table")
    parser.add_argument("--out", default="train_throughput.jsonl", help="JSON lines are added to it")
    parser.add_argument("--corpora", default="/tmp/train_throughput", help="where rows are written or found")
    parser.add_argument("--limit", type=float, default=180, help="seconds for a run")
    parser.add_argument("--every", type=int, default=5, help="steps to a line of the log")
    parser.add_argument("--lines", type=int, default=4, help="measured lines, after two that are not")
    parser.add_argument("--tokens", type=int, help="tokens of a micro-batch, with as many rows to a step")
    parser.add_argument("--profile", help="write the kernels of the measured lines there")
    parser.add_argument("--prepare", action="store_true", help="only write the rows")
    parser.add_argument("--here", action="store_true", help="run in this process, for torchrun and profiles")
    parser.add_argument("--torchrun", action="store_true", help="one rank of several; implies --here")
    arguments = parser.parse_args()
    kinds = ("ours", "ours-dropout-0", "transformers-compiled")
    default = [f"{case}:{kind}" for case in CASES if case != "tiny-128" for kind in kinds]
    runs = [tuple(run.split(":")) for run in arguments.runs or [*default, "base-128:transformers"]]
    if arguments.prepare:
        for case, _ in runs:
            write_rows(Path(arguments.corpora), *CASES[case][1:4])
        return 0
    if arguments.here or arguments.torchrun:
        for case, variant in runs:
            found = measure(case, variant, arguments)
            if "rows_per_second" in found:
                with Path(arguments.out).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
        return 0
    return 1 if sum(not run_apart(case, variant, arguments) for case, variant in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
