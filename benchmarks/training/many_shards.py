"""What a rank pays for a corpus with very many shards: ``python -m benchmarks.training.many_shards``.

Writes a manifest of two lengths and four passes, whose shards do not exist, and measures in a fresh process:
opening it, the training order of one length (reads no table), the table of the first pass, the places of a
global batch (permutes the row groups of the pass), and the tables of all other passes and lengths.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peak_memory import peak_resident_bytes
from schemas.columns.shard_table import SHARD_TABLE
from schemas.columns.shards import ROW_GROUP_ROWS
from schemas.shard_tables import ShardTable
from tests.support.manifests import language_counts, manifest_body, write_manifest
from tests.trainer.synthetic import SPECIAL_IDS
from trainer.data.corpus import open_corpus

LENGTHS = (128, 512)
PASSES = 4
GLOBAL_BATCH = 4096


def write_corpus(folder: Path, shards: int, rows: int) -> Path:
    """Writes the manifest of ``shards`` shards of ``rows`` rows on average. Returns its path."""
    (folder / "manifest").mkdir(parents=True)
    count = shards // (len(LENGTHS) * PASSES)
    sets = [write_set(folder, length, number, count, rows) for length in LENGTHS for number in range(PASSES)]
    vocabulary = {"size": 30_000, "sha256": "0" * 64, "special_ids": SPECIAL_IDS}
    body = manifest_body(sets, vocabulary, {"en": language_counts()})
    return write_manifest(folder / "manifest.json", body)


def write_set(folder: Path, length: int, number: int, count: int, rows: int) -> dict[str, Any]:
    """Writes the table of one set. Returns the set's entry in the manifest."""
    random = np.random.default_rng([length, number])
    rows_of = random.integers(rows // 2, rows + rows // 2, count)
    tokens = (rows_of * length * random.uniform(0.9, 1, count)).astype(np.int64)
    hashes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(32), count, [None, pa.py_buffer(random.bytes(32 * count))]
    )
    columns = [
        pa.array(np.arange(count), pa.int32()),
        pa.array(rows_of),
        pa.array(tokens),
        pa.array(2 * tokens),
    ]
    prefix, path = (
        f"data/len{length}/train-p{number:02d}-",
        f"manifest/len{length}-train-p{number:02d}.parquet",
    )
    raw = ShardTable(prefix, pa.table([*columns, hashes], schema=SHARD_TABLE)).encode()
    (folder / path).write_bytes(raw)
    return {
        "name": f"len{length}", "split": "train", "max_seq_length": length, "max_predictions": length // 6,
        "pass_number": number, "rows": int(rows_of.sum()), "tokens": int(tokens.sum()),
        "bytes": int(2 * tokens.sum()), "languages": {"en": int(rows_of.sum())},
        "shards": {
            "path": path, "sha256": hashlib.sha256(raw).hexdigest(), "count": count, "prefix": prefix,
            "row_group_rows": ROW_GROUP_ROWS,
        },
    }  # fmt: skip


def measure(uri: str) -> Iterator[str]:
    """Does the steps of a rank's start. Yields the name of each after it."""
    corpus = open_corpus(uri)
    yield "open the manifest"
    order = corpus.order(LENGTHS[0], seed=1, window=8)
    yield "order of one length"
    assert len(corpus.passes(LENGTHS[0])[0].table) == corpus.manifest.sets[0].shards.count
    yield "table of the first pass"
    places = order.locate(np.arange(GLOBAL_BATCH, dtype=np.int64))
    yield "places of the first global batch"
    assert all(corpus.passes(LENGTHS[0])[0][int(number)].size for number in np.unique(places.shard)[:8])
    yield "entries of eight shards"
    for length in LENGTHS:
        for shards in corpus.passes(length):
            assert len(shards.table) == shards.entry.shards.count
    yield "tables of all other passes and lengths"


def report(uri: str) -> None:
    """Prints the measurements of this process."""
    print("| what a rank does | CPU seconds | seconds | peak memory, MB |\n|---|---|---|---|")
    print(f"| imports | | | {peak_resident_bytes() / 1e6:,.0f} |")
    cpu, wall = time.process_time(), time.monotonic()
    for what in measure(uri):
        now = time.process_time(), time.monotonic()
        peak = peak_resident_bytes() / 1e6
        print(f"| {what} | {now[0] - cpu:.2f} | {now[1] - wall:.2f} | {peak:,.0f} |")
        cpu, wall = time.process_time(), time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=20_000, help="mean rows of a shard")
    parser.add_argument("--manifest", help="measure with this manifest, in this process")
    arguments = parser.parse_args()
    if arguments.manifest:
        report(arguments.manifest)
        return
    with tempfile.TemporaryDirectory(prefix="bertmill-shards-") as folder:
        path = write_corpus(Path(folder) / "corpus", arguments.shards, arguments.rows)
        files = sorted((path.parent / "manifest").iterdir())
        size = sum(file.stat().st_size for file in files)
        each = f"{size / len(files) / 1e6:.1f} MB each, {size / arguments.shards:.1f} bytes a shard"
        print(f"{arguments.shards:,} shards: {len(files)} tables of {each}\n", flush=True)
        command = [sys.executable, "-m", "benchmarks.training.many_shards", "--manifest", str(path)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
