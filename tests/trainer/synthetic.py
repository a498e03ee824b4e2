"""A small corpus of synthetic rows in the real format, for tests of the trainer.

The text has a few frequent words and fixed successors, so that a model learns it within a few steps.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.columns.shards import SHARD
from schemas.labels import NO_LABEL
from tests.support.manifests import language_counts, manifest_body, set_entry, write_manifest

SPECIAL_IDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
FIRST_WORD = 5
LANGUAGES = ("de", "el", "en")


def invented_rows(
    rows: int, max_seq_length: int, vocab_size: int, objective: str, seed: int, full: bool = False
) -> dict[str, list[Any]]:
    """Columns of SHARD: about 15 % masked. A random next segment has other successors."""
    random = np.random.default_rng(seed)
    words = vocab_size - FIRST_WORD
    columns: dict[str, list[Any]] = {name: [] for name in SHARD.names}
    for row in range(rows):
        length = (
            max_seq_length if full else int(random.integers(max(12, max_seq_length // 4), max_seq_length + 1))
        )
        label = int(random.integers(0, 2)) if objective != "none" else NO_LABEL
        inside = length - (3 if objective != "none" else 2)
        first = inside // 2 if objective != "none" else inside
        a = _walk(random, first, words, 1)
        b = _walk(random, inside - first, words, 3 if label == 1 else 1)
        ids = [2, *a, 3, *b, 3] if objective != "none" else [2, *a, 3]
        places = [i for i, token in enumerate(ids) if token >= FIRST_WORD]
        chosen = sorted(random.choice(places, max(1, round(0.15 * len(places))), replace=False).tolist())
        columns["masked_ids"].append([ids[i] for i in chosen])
        for i in chosen:
            ids[i] = SPECIAL_IDS["[MASK]"]
        columns["input_ids"].append(ids)
        columns["segment_a_length"].append(first + 2)
        columns["masked_positions"].append(chosen)
        columns["next_sentence_label"].append(label)
        columns["length"].append(length)
        columns["lang"].append(LANGUAGES[int(random.integers(0, len(LANGUAGES)))])
        columns["document_key"].append(f"invented/{LANGUAGES[0]}/{seed}/{row}")
    return columns


def _walk(random: np.random.Generator, length: int, words: int, stride: int) -> list[int]:
    """Words with very different frequencies, where every second word follows from the one before."""
    drawn = np.minimum(random.pareto(1.0, size=length) * 3, words - 1).astype(int)
    return [FIRST_WORD + int((drawn[i - i % 2] + stride * (i % 2)) % words) for i in range(length)]


def write_shard(path: Path, columns: dict[str, list[Any]], group_rows: int) -> dict[str, Any]:
    """Writes the shard. Returns its manifest entry, with the path as given below the corpus folder."""
    table = pa.table([pa.array(columns[f.name], f.type) for f in SHARD], schema=SHARD)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group_rows, compression="zstd", write_page_index=True)
    return shard_entry(path, columns["lang"])


def shard_entry(path: Path, langs: Sequence[str]) -> dict[str, Any]:
    raw = path.read_bytes()
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    lengths = pq.read_table(path, columns=["length"])["length"].to_pylist()
    return {
        "path": f"{path.parent.name}/{path.name}",
        "rows": metadata.num_rows,
        "tokens": sum(lengths),
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "row_groups": groups if metadata.num_rows else [],
        "languages": {lang: list(langs).count(lang) for lang in sorted(set(langs))},
    }


def write_corpus(
    folder: Path,
    *,
    shard_rows: Sequence[int] = (40, 33, 27),
    lengths: Sequence[int] = (32,),
    passes: int = 1,
    group_rows: int = 16,
    vocab_size: int = 200,
    objective: str = "nsp",
    seed: int = 1,
    full: bool = False,
    validation_rows: Sequence[int] = (),
) -> Path:
    """Writes a corpus with one set for each length and pass, and returns the path of its manifest.

    ``validation_rows`` are the rows of the shards of a validation set for each length.
    """

    def shards(name: str, sizes: Sequence[int], length: int, *seeds: object) -> list[dict[str, Any]]:
        return [
            write_shard(
                folder / name / f"shard-{i:05d}.parquet",
                invented_rows(rows, length, vocab_size, objective, hash_seed(seed, *seeds, i), full),
                group_rows,
            )
            for i, rows in enumerate(sizes)
        ]

    sets = []
    for length in lengths:
        for number in range(passes):
            name = f"train-{length}-{number}"
            sets.append(set_entry(name, length, number, shards(name, shard_rows, length, length, number)))
    for length in lengths if validation_rows else ():
        name = f"validation-{length}"
        held_out = shards(name, validation_rows, length, name)
        sets.append(set_entry(name, length, 0, held_out) | {"split": "validation"})
    path = folder / "manifest.json"
    pieces = vocabulary(vocab_size)
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "vocab.txt").write_bytes(pieces)
    return write_manifest(path, manifest(sets, vocab_size, objective))


def vocabulary(size: int) -> bytes:
    """vocab.txt: every fourth word has a continuation after it."""
    words = [f"##w{i}" if i % 4 == 3 else f"w{i}" for i in range(size - FIRST_WORD)]
    return "".join(f"{piece}\n" for piece in [*SPECIAL_IDS, *words]).encode()


def hash_seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "little")


def manifest(sets: list[dict[str, Any]], vocab_size: int, objective: str) -> dict[str, Any]:
    about = {
        "size": vocab_size,
        "sha256": hashlib.sha256(vocabulary(vocab_size)).hexdigest(),
        "special_ids": SPECIAL_IDS,
    }
    return manifest_body(sets, about, {lang: language_counts() for lang in LANGUAGES}, objective)
