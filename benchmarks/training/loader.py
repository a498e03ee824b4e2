"""Measures how fast the loader reads and packs, and how fast it seeks to any place in a run.

    python -m benchmarks.training.loader [--manifest corpus/manifest.json] [--steps 30] [--folder /tmp/x]

Rates are tokens per second of CPU time of one process, so they also hold on a busy machine. Without a
manifest it writes its own corpus and, for the seek, a manifest of 10^9 rows that repeats the shards of this
corpus. Prints a Markdown table.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from schemas.columns.shards import ROW_GROUP_ROWS, SHARD
from tests.support.manifests import set_entry, write_manifest
from tests.trainer.synthetic import manifest, shard_entry, vocabulary
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.startup.setup import open_data

VOCABULARY = 30_522
GROUPS = 40
BILLION_SHARDS = 24_415
# An upper limit for BERT-base on one H100, above all measured rates: tokens per second.
GPU_TOKENS = 1_000_000


def write_shard(path: Path, length: int, groups: int, seed: int) -> dict[str, Any]:
    """Writes a shard of random rows, nine of ten full, with 15 % targets. Returns its manifest entry."""
    random = np.random.default_rng(seed)
    rows = groups * ROW_GROUP_ROWS
    lengths = np.where(random.random(rows) < 0.9, length, random.integers(16, length, rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    masked = np.maximum(1, (lengths * 0.15).astype(int))
    positions = np.concatenate(
        [np.sort(random.permutation(n - 2)[:m] + 1) for n, m in zip(lengths, masked, strict=True)]
    )
    masked_offsets = np.concatenate([[0], np.cumsum(masked)])
    ids = random.integers(1000, VOCABULARY, int(offsets[-1]))
    ids[np.repeat(offsets[:-1], masked) + positions] = 4

    def lists(starts: Any, values: Any) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(values, pa.int32()))

    columns = {
        "input_ids": lists(offsets, ids),
        "segment_a_length": pa.array(lengths // 2, pa.int32()),
        "masked_positions": lists(masked_offsets, positions),
        "masked_ids": lists(masked_offsets, random.integers(1000, VOCABULARY, positions.size)),
        "next_sentence_label": pa.array(random.integers(0, 2, rows), pa.int8()),
        "length": pa.array(lengths, pa.int32()),
        "lang": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows), pa.int32()), pa.array(["en"])),
        "document_key": pa.array([f"invented/en/{row}" for row in range(rows)]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=SHARD), path, row_group_size=ROW_GROUP_ROWS, compression="zstd")
    return shard_entry(path, ["en"] * rows)


def write_corpus(folder: Path, name: str, shards_of_length: dict[int, list[dict[str, Any]]]) -> Path:
    """Writes a manifest of these shards, with a vocabulary beside it."""
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "vocab.txt").write_bytes(vocabulary(VOCABULARY))
    sets = [set_entry(f"len{length}", length, 0, shards) for length, shards in shards_of_length.items()]
    path = folder / name
    write_manifest(path, manifest(sets, VOCABULARY, "nsp"))
    return path


def links(folder: Path, file: Path, shard: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The entries of ``count`` shards in ``folder`` that are links to one file."""
    (folder / "len128").mkdir(parents=True, exist_ok=True)
    paths = [f"len128/shard-{number:05d}.parquet" for number in range(count)]
    for path in paths:
        (folder / path).unlink(missing_ok=True)
        (folder / path).hardlink_to(file)
    return [{**shard, "path": path} for path in paths]


def config_of(manifest: Path, length: int, batch: int, steps: int, **data: Any) -> TrainConfig:
    """A run of one phase."""
    phase = {
        "max_seq_length": length,
        "global_batch": batch,
        "micro_batch_tokens": 32_768,
        "steps": steps,
        "learning_rate": 1e-4,
    }
    return TrainConfig.model_validate(
        {
            "run": {"name": "benchmark", "storage": "unused"},
            "data": {"manifest": str(manifest), "read_threads": 1, "read_ahead": 1, **data},
            "phases": [phase],
        }
    )


def rate(config: TrainConfig, world_size: int) -> tuple[float, float]:
    """(Tokens of this rank per second of CPU time, used share of the micro-batches)."""
    with ExitStack() as cleanup:
        data = open_data(config, Ranks(0, world_size, torch.device("cpu"), None), cleanup)
        data.reader.read(0)
        begin, tokens, room = time.process_time(), 0, 0
        for step in range(1, data.plan.total_steps):
            batches = data.reader.read(step)
            tokens += batches.tokens
            room += len(batches.micro_batches) * batches.plan.micro_batch_tokens
        return tokens / (time.process_time() - begin), tokens / room


def seek(config: TrainConfig) -> list[tuple[str, float, float]]:
    """(Position, CPU seconds, wall seconds) from a cold start to the first batch."""
    found = []
    for share in (0.0, 0.5, 0.9, 0.999):
        begin, wall = time.process_time(), time.monotonic()
        with ExitStack() as cleanup:
            data = open_data(config, Ranks(0, 8, torch.device("cpu"), None), cleanup)
            data.reader.read(int(data.plan.total_steps * share))
        found.append((f"{share:.1%} of the run", time.process_time() - begin, time.monotonic() - wall))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="bertmill-loader-"))
    folder.mkdir(parents=True, exist_ok=True)
    shards = {
        length: [
            write_shard(folder / f"len{length}" / f"shard-{i:05d}.parquet", length, groups, i)
            for i in range(2)
        ]
        for length, groups in ((128, GROUPS), (512, GROUPS // 4))
    }
    corpus = arguments.manifest or write_corpus(folder, "manifest.json", shards)
    print("| length | ranks | global batch | masks | window | tokens/s of a core | packing | GPUs per core |")
    print("|---|---|---|---|---|---|---|---|")
    lengths = sorted({one["max_seq_length"] for one in json.loads(corpus.read_bytes())["sets"]})
    for length in lengths:
        for world, masking, window in (
            (1, "static", 1),
            (1, "static", 8),
            (8, "static", 8),
            (8, "dynamic", 8),
        ):
            batch = 512 * world if length <= 128 else 128 * world
            config = config_of(corpus, length, batch, arguments.steps, masking=masking, shuffle_window=window)
            tokens, packed = rate(config, world)
            row = (length, world, batch, masking, window, f"{tokens:,.0f}", f"{packed:.3f}")
            print("|", *(f"{cell} |" for cell in (*row, f"{tokens / GPU_TOKENS:.1f}")))
    repeated = links(folder / "billion", folder / shards[128][0]["path"], shards[128][0], BILLION_SHARDS)
    billion = write_corpus(folder / "billion", "manifest.json", {128: repeated})
    rows = sum(shard["rows"] for shard in repeated)
    config = config_of(billion, 128, 4096, 2 * rows // 4096, shuffle_window=8)
    print(f"\n{rows:,} rows in {len(repeated):,} shards\n")
    print("| position | CPU seconds | wall seconds |\n|---|---|---|")
    for position, cpu, wall in seek(config):
        print(f"| {position} | {cpu:.2f} | {wall:.2f} |")


if __name__ == "__main__":
    main()
