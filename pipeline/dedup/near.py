"""Near duplicates: who may be alike, who is, and who goes.

1. Documents that agree in one band of their MinHash signatures are candidates (`candidate_pairs`).
2. A candidate counts when the Jaccard similarity of the two sets of shingles reaches the threshold
   (`verified_pairs`). The sets are exact for documents of up to SKETCH_SHINGLES distinct shingles; of
   longer ones the smallest hashes stand for all, which is off by less than 0.007 (one sigma).
3. Documents that hang together by verified pairs are a cluster; the smallest key stays.

Nothing depends on the order of documents or on how they lie in files: a band's documents are ordered
by a hash of their keys, and clusters do not depend on the order of pairs.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.components import EDGES, components
from pipeline.dedup.minhash import band_hashes, rows_per_band, signatures
from pipeline.dedup.shingles import hashed_words, shingles

U64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

# A band with so many documents at most has all its pairs looked at; of a larger one each document is
# held against the first and the one before.
FULL_GROUP = 12
# About 30 kB of hashes: an article of 4,000 words, exactly.
SKETCH_SHINGLES = 4096

BANDS = pa.schema(
    [
        pa.field("band", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
    ]
)


def sketches(hashes: U64, offsets: Int64) -> list[U64]:
    """The distinct shingles of each document, ascending; of a long one the smallest SKETCH_SHINGLES."""
    bounds = offsets.tolist()
    return [
        np.unique(hashes[begin:end])[:SKETCH_SHINGLES] for begin, end in pairwise(bounds)
    ]


def similarity(left: U64, right: U64) -> float:
    """The Jaccard similarity of two documents by their sketches.

    Where either is cut off, both are looked at up to the smaller of the two ends: below it the
    sketches hold all hashes of both, and hashes are a fair sample.
    """
    ends = [sketch[-1] for sketch in (left, right) if len(sketch) == SKETCH_SHINGLES]
    if ends:
        end = min(ends)
        left, right = left[left <= end], right[right <= end]
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / max(len(left) + len(right) - both, 1)


def band_table(nodes: list[str], ranks: U64, signature: npt.NDArray[np.uint32], threshold: float) -> pa.Table:
    """BANDS: a row for each band of each document that has words."""
    worded = np.flatnonzero(signature.min(axis=1) < 0xFFFFFFFF)
    bands = band_hashes(signature[worded], rows_per_band(threshold))
    count = bands.shape[1]
    names = pa.array(nodes, pa.string()).take(pa.array(np.repeat(worded, count)))
    return pa.table([pa.array(bands.ravel()), pa.array(np.repeat(ranks[worded], count)), names], schema=BANDS)


def candidate_pairs(bands: pa.Table) -> pa.Table:
    """EDGES of the documents that share a band, from the rows of whole bands; distinct, sorted."""
    bands = bands.sort_by([("band", "ascending"), ("rank", "ascending"), ("node", "ascending")])
    band = bands["band"].to_numpy()
    opens = np.ones(len(band), bool)
    opens[1:] = band[1:] != band[:-1]
    starts = np.append(np.flatnonzero(opens), len(band))
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sizes = np.diff(starts)
    for size in np.unique(sizes[sizes > 1]).tolist():
        begins = starts[:-1][sizes == size]
        one, other = _pairs_of_group(size)
        left.append((begins[:, None] + one).ravel())
        right.append((begins[:, None] + other).ravel())
    nodes = bands["node"].combine_chunks()
    ends = [nodes.take(pa.array(np.concatenate(side))) for side in (left, right)]
    low, high = pc.min_element_wise(*ends), pc.max_element_wise(*ends)
    pairs = pa.table([low, high], schema=EDGES).group_by(["left", "right"]).aggregate([])
    return pairs.sort_by([("left", "ascending"), ("right", "ascending")])


def _pairs_of_group(size: int) -> tuple[Int64, Int64]:
    """The places in a group whose documents are held against each other."""
    if size <= FULL_GROUP:
        one, other = np.triu_indices(size, 1)
        return one, other
    later = np.arange(2, size)
    return np.concatenate(([0], np.zeros(size - 2, np.int64), later - 1)), np.concatenate(([1], later, later))


def verified_pairs(pairs: pa.Table, sketch_of: Mapping[str, U64], threshold: float) -> pa.Table:
    """Those of the pairs whose similarity reaches the threshold."""
    left, right = pairs["left"].to_pylist(), pairs["right"].to_pylist()
    alike = [
        similarity(sketch_of[one], sketch_of[other]) >= threshold
        for one, other in zip(left, right, strict=True)
    ]
    return pairs.filter(pa.array(alike, pa.bool_()))


def near_losers(
    keys: list[str], ranks: U64, sentences: pa.Array, sentence_offsets: Int64, threshold: float
) -> pa.Table:
    """All steps on documents that fit in memory: STARS of the keys that go and those kept for them.

    ``ranks`` are hashes of the keys; document d has sentences sentence_offsets[d] to [d + 1].
    """
    hashes, offsets = shingles(hashed_words(sentences, sentence_offsets))
    bands = band_table(keys, ranks, signatures(hashes, offsets), threshold)
    sketch_of = dict(zip(keys, sketches(hashes, offsets), strict=True))
    return components(verified_pairs(candidate_pairs(bands), sketch_of, threshold))
