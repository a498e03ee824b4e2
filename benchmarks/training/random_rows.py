"""Corpora of random rows in the real format, for measurements of training speed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.columns.shards import SHARD
from tests.support.manifests import set_entry, write_manifest
from tests.trainer.synthetic import FIRST_WORD, LANGUAGES, manifest, shard_entry, vocabulary

ROWS = {128: 16384, 512: 8192}


def length_range(kind: str, length: int) -> tuple[int, int]:
    """The shortest and the longest row. Lengths are drawn uniformly between them.

    Drawn rows fill padded ones to 63 % (128) and 51 % (512, 1,024).
    """
    if kind == "full":
        return length, length
    if kind == "mean-254":
        return 12, 496
    return length // 4 if length == 128 else 12, length


def lengths_of(kind: str, length: int, rows: int, random: np.random.Generator) -> np.ndarray:
    """The lengths of all rows."""
    shortest, longest = length_range(kind, length)
    return random.integers(shortest, longest + 1, rows)


def write_rows(folder: Path, length: int, vocab: int, kind: str) -> Path:
    """Writes a corpus of random ids with 15 % masked, in the real format. Returns the manifest's path."""
    path = folder / f"{length}-{vocab}-{kind}" / "manifest.json"
    if path.exists():
        return path
    random = np.random.default_rng(length)
    sizes = lengths_of(kind, length, ROWS.get(length, 4096), random)
    inputs, places, targets = [], [], []
    for size in sizes.tolist():
        ids = random.integers(FIRST_WORD, vocab, size)
        chosen = np.sort(random.permutation(np.arange(1, size - 1))[: max(1, round(0.15 * (size - 3)))])
        targets.append(ids[chosen].astype(np.int32))
        ids[chosen], ids[0], ids[[size // 2, size - 1]] = 4, 2, 3
        inputs.append(ids.astype(np.int32))
        places.append(chosen.astype(np.int32))
    languages = [LANGUAGES[i % 3] for i in range(len(sizes))]
    columns = {
        "input_ids": inputs, "segment_a_length": (sizes // 2 + 1).astype(np.int32),
        "masked_positions": places, "masked_ids": targets,
        "next_sentence_label": random.integers(0, 2, len(sizes)).astype(np.int8),
        "length": sizes.astype(np.int32), "lang": languages,
        "document_key": [f"random/en/1/{i}" for i in range(len(sizes))],
    }  # fmt: skip
    shard = path.parent / f"train-{length}" / "shard-00000.parquet"
    shard.parent.mkdir(parents=True)
    table = pa.table([pa.array(columns[field.name], field.type) for field in SHARD], schema=SHARD)
    pq.write_table(table, shard, row_group_size=1024, compression="zstd", write_page_index=True)
    entry = set_entry(f"train-{length}", length, 0, [shard_entry(shard, languages)])
    (path.parent / "tokenizer").mkdir()
    (path.parent / "tokenizer" / "vocab.txt").write_bytes(vocabulary(vocab))
    write_manifest(path, manifest([entry], vocab, "nsp"))
    return path
