"""Compares near-duplicate search with all pairs, on real documents with planted and real duplicates.

    python -m benchmarks.corpus.dedup DATA_FOLDER [--documents 3000] [--threshold 0.8]

The documents are the two snapshots of Wikipedia articles in neardup/, the editions of books cut into pieces
of 500 words, articles in 13 languages, and edited copies of some of those at known rates. The truth is the
exact Jaccard similarity of all pairs that share a shingle. A pair is found when both documents are in one
cluster. Recall counts pairs of at least 0.85. Precision counts the verified pairs, and the removed documents
by their similarity with their nearest neighbor in the cluster.
"""

import argparse
import json
import lzma
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.texts import records, texts
from pipeline.dedup.components import components
from pipeline.dedup.minhash import jaccard, signatures
from pipeline.dedup.near import band_table, candidate_pairs, ranks_of, sketches, verified_pairs
from pipeline.dedup.shingles import hashed_words, shingles

RATES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)
LEAST = 0.85


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=3000, help="ordinary articles")
    parser.add_argument("--threshold", type=float, default=0.8)
    arguments = parser.parse_args()
    documents = collect(arguments.data, arguments.documents)
    keys, bodies = list(documents), list(documents.values())
    print(f"{len(keys)} documents, {sum(map(len, bodies)) / 1e6:.1f} M characters")
    begin = time.process_time()
    hashes, offsets = shingles(hashed_words(pa.array(bodies, pa.large_string()), np.arange(len(keys) + 1)))
    signature = signatures(hashes, offsets)
    nodes = np.arange(len(keys), dtype=np.uint64)
    bands = band_table(nodes, ranks_of(keys), signature, arguments.threshold)
    size = sum(len(body.encode()) for body in bodies) / 1e6
    print(f"signatures and bands: {size / (time.process_time() - begin):.1f} MB/s")
    candidates = candidate_pairs(bands)
    found = verified_pairs(candidates, dict(enumerate(sketches(hashes, offsets))), arguments.threshold)
    stars = components(found)
    bounds = offsets.tolist()
    sets = [np.unique(hashes[low:high]) for low, high in pairwise(bounds)]
    truth = all_pairs(sets)
    print(f"{candidates.num_rows} candidates, {found.num_rows} verified, {stars.num_rows} documents go")
    judge(truth, found, stars, arguments.threshold, sets)


def collect(folder: Path, limit: int) -> dict[str, str]:
    """Key -> text."""
    out: dict[str, str] = {}
    for name in ("enwiki_snapshots.jsonl.xz", "simplewiki_2018_2022_pairs.jsonl.xz"):
        for number, record in enumerate(records(folder / "neardup" / name)):
            out[f"{name[:6]}/{number:06}"] = record["text"]
    for group in json.loads((folder / "neardup" / "books_groups.json").read_text()):
        for file in group["files"]:
            path = folder / "neardup" / "books" / group["group"] / file
            words = lzma.decompress(path.read_bytes()).decode("utf-8", "replace").split()
            for begin in range(0, min(len(words), 20_000), 500):
                out[f"books/{file}/{begin:07}"] = " ".join(words[begin : begin + 500])
    ordinary = [text for lang, text in texts(folder, ("text",)) if 400 < len(text) < 30_000]
    random.Random(1).shuffle(ordinary)
    for number, text in enumerate(ordinary[:limit]):
        out[f"plain/{number:06}"] = text
    chance = random.Random(2)
    for number, text in enumerate(ordinary[: limit // 4]):
        rate = RATES[number % len(RATES)]
        words = text.split(" ")
        out[f"edited/{number:06}"] = " ".join(
            chance.choice(words) if chance.random() < rate else word for word in words
        )
    return out


def all_pairs(sets: list[np.ndarray]) -> dict[tuple[int, int], float]:
    """The similarity of every pair that shares a shingle and has at least 0.3, in two passes."""
    holders: dict[int, list[int]] = defaultdict(list)
    for number, shingle_set in enumerate(sets):
        for value in shingle_set.tolist():
            holders[value].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for numbers in holders.values():
        for place, one in enumerate(numbers):
            for other in numbers[place + 1 :]:
                shared[one, other] += 1
    out = {}
    for (one, other), both in shared.items():
        similarity = both / (len(sets[one]) + len(sets[other]) - both)
        if similarity >= 0.3:
            out[one, other] = similarity
    return out


def judge(
    truth: dict[tuple[int, int], float],
    found: pa.Table,
    stars: pa.Table,
    threshold: float,
    sets: list[np.ndarray],
) -> None:
    """Prints recall by similarity, and precision."""
    cluster = dict(zip(stars["left"].to_pylist(), stars["right"].to_pylist(), strict=True))
    met: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for (one, other), similarity in truth.items():
        step = int(similarity * 20)
        total[step] += 1
        met[step] += cluster.get(one, one) == cluster.get(other, other)
    for step in sorted(total):
        bounds = f"{step / 20:.2f}-{(step + 1) / 20:.2f}"
        print(f"  similarity {bounds}: {met[step]} of {total[step]} pairs in one cluster")
    high = [pair for pair, similarity in truth.items() if similarity >= LEAST]
    hit = sum(cluster.get(one, one) == cluster.get(other, other) for one, other in high)
    print(f"recall at {LEAST}: {hit / max(len(high), 1):.4f} of {len(high)} pairs")
    pairs = list(zip(found["left"].to_pylist(), found["right"].to_pylist(), strict=True))
    right = sum(jaccard(sets[one], sets[other]) >= threshold for one, other in pairs)
    print(f"precision of verified pairs at {threshold}: {right / max(len(pairs), 1):.4f} of {len(pairs)}")
    nearest: dict[int, float] = defaultdict(float)
    for (one, other), similarity in truth.items():
        if cluster.get(one, one) == cluster.get(other, other):
            for key in (one, other):
                nearest[key] = max(nearest[key], similarity)
    good = sum(nearest[key] >= threshold for key in cluster)
    direct = sum(jaccard(sets[key], sets[kept]) >= threshold for key, kept in cluster.items())
    count = max(len(cluster), 1)
    print(f"documents that go and have a fellow of {threshold}: {good / count:.4f} of {len(cluster)}; "
          f"as near to the one kept itself: {direct / count:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
