"""Near duplicates: candidate pairs, verified pairs, and the documents to remove.

1. Documents that agree in a band of their MinHash signatures are candidate pairs (`candidate_pairs`).
2. A candidate pair is verified when the Jaccard similarity of its two sets of shingles reaches the threshold
   (`verified_pairs`). The sets are exact for documents of up to SKETCH_SHINGLES distinct shingles. For longer
   documents the smallest hashes represent all, with an error below 0.007 (one sigma).
3. Documents that are connected by verified pairs form a cluster. The smallest key stays.

The result does not depend on the order of documents or files. A hash of the keys orders the documents of a
band, and clusters do not depend on the order of pairs.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.dedup.components import distinct, edge_table
from pipeline.dedup.exact import all_but_first
from pipeline.dedup.minhash import band_hashes, rows_per_band
from schemas.arrays import I64, U64, Flags, distinct_values
from schemas.randomness import key_from_text

# In a band with at most this many documents, all pairs are candidates. In a larger band, each document is
# paired with the first one and with the one before it.
FULL_GROUP = 12
# About 30 kB of hashes: exact for an article of 4,000 words.
SKETCH_SHINGLES = 4096

# ``node`` is the number of a document. ``rank`` is a hash of its key, which orders the documents of a band.
BANDS = pa.schema(
    [
        pa.field("band", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("node", pa.uint64(), nullable=False),
    ]
)


def sketches(hashes: U64, offsets: I64) -> list[U64]:
    """The smallest SKETCH_SHINGLES distinct shingles of each document, ascending."""
    bounds = offsets.tolist()
    return [distinct_values(hashes[begin:end])[:SKETCH_SHINGLES] for begin, end in pairwise(bounds)]


def similarity(left: U64, right: U64) -> float:
    """The Jaccard similarity of two documents by their sketches.

    If a sketch is cut off, the comparison ends at the smaller of the two ends. Below it the sketches have all
    hashes of both documents, which are a fair sample.
    """
    ends = [sketch[-1] for sketch in (left, right) if len(sketch) == SKETCH_SHINGLES]
    if ends:
        end = min(ends)
        left, right = left[left <= end], right[right <= end]
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / max(len(left) + len(right) - both, 1)


def ranks_of(keys: list[str]) -> U64:
    """A hash of each key."""
    return np.array([key_from_text(key) for key in keys], np.uint64)


def band_table(nodes: U64, ranks: U64, signature: npt.NDArray[np.uint32], threshold: float) -> pa.Table:
    """BANDS, with a row for each band of each document that has words."""
    return table_of_bands(nodes, ranks, *bands_of(signature, threshold))


def bands_of(signature: npt.NDArray[np.uint32], threshold: float) -> tuple[U64, Flags]:
    """Band hashes [documents, bands], and which documents have words. The hashes of others mean nothing."""
    return band_hashes(signature, rows_per_band(threshold)), signature.min(axis=1) < 0xFFFFFFFF


def table_of_bands(nodes: U64, ranks: U64, bands: U64, worded: Flags) -> pa.Table:
    """BANDS of the documents that have words."""
    count = bands.shape[1]
    columns = (bands[worded].ravel(), np.repeat(ranks[worded], count), np.repeat(nodes[worded], count))
    return pa.table([pa.array(column, pa.uint64()) for column in columns], schema=BANDS)


def candidate_pairs(bands: pa.Table) -> pa.Table:
    """EDGES between documents that share a band, distinct and sorted. ``bands`` has all rows of its bands.

    The left end is the smaller number.
    """
    columns = {name: bands[name].to_numpy() for name in BANDS.names}
    order = np.lexsort((columns["node"], columns["rank"], columns["band"]))
    band, node = columns["band"][order], columns["node"][order]
    opens = np.ones(len(band), bool)
    opens[1:] = band[1:] != band[:-1]
    starts = np.append(np.flatnonzero(opens), len(band))
    left, right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sizes = np.diff(starts)
    for size in np.unique(sizes[sizes > 1]).tolist():
        begins = starts[:-1][sizes == size]
        first, second = _pairs_of_group(size)
        left.append((begins[:, None] + first).ravel())
        right.append((begins[:, None] + second).ravel())
    ends = node[np.concatenate(left)], node[np.concatenate(right)]
    return distinct(edge_table(np.minimum(*ends), np.maximum(*ends)))


def _pairs_of_group(size: int) -> tuple[I64, I64]:
    """The positions of the pairs within a group of ``size`` documents."""
    if size <= FULL_GROUP:
        first, second = np.triu_indices(size, 1)
        return first, second
    later = np.arange(1, size)
    return np.concatenate((np.zeros(size - 1, np.int64), later[:-1])), np.concatenate((later, later[1:]))


def verified_pairs(pairs: pa.Table, sketch_of: Mapping[int, U64], threshold: float) -> pa.Table:
    """The pairs whose similarity reaches the threshold."""
    left, right = pairs["left"].to_pylist(), pairs["right"].to_pylist()
    alike = [
        similarity(sketch_of[first], sketch_of[second]) >= threshold
        for first, second in zip(left, right, strict=True)
    ]
    return pairs.filter(pa.array(alike, pa.bool_()))


def cluster_removals(members: pa.Table) -> pa.Table:
    """The rows to remove from whole clusters: all except the smallest key of each.

    Columns used: key, cluster. The result is sorted by cluster and key and has ``kept_key``.
    """
    return all_but_first(members, ["cluster"], [("key", "ascending")])


def cluster_members(clusters: pa.Table, documents: pa.Table) -> pa.Table:
    """The rows of ``documents`` (column node) that are in a cluster, with the column ``cluster``.

    ``clusters`` is a result of `components`, which maps nodes to the smallest node of their component.
    """
    roots = distinct_values(clusters["right"].to_numpy())
    nodes = np.concatenate((clusters["left"].to_numpy(), roots))
    labels = np.concatenate((clusters["right"].to_numpy(), roots))
    order = np.argsort(nodes)
    nodes, labels = nodes[order], labels[order]
    wanted = documents["node"].to_numpy()
    places = np.searchsorted(nodes, wanted)
    inside = places < len(nodes)
    inside[inside] = nodes[places[inside]] == wanted[inside]
    chosen = documents.filter(pa.array(inside))
    return chosen.append_column("cluster", pa.array(labels[places[inside]], pa.uint64()))
