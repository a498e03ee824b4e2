"""The rounds of near dedup one after another, on documents that fit in memory."""

import numpy as np
import pyarrow as pa

from pipeline.dedup.components import components
from pipeline.dedup.minhash import signatures
from pipeline.dedup.near import (
    band_table,
    candidate_pairs,
    cluster_members,
    cluster_removals,
    ranks_of,
    sketches,
    verified_pairs,
)
from pipeline.dedup.shingles import hashed_words, shingles
from schemas.arrays import I64


def near_removals(keys: list[str], sentences: pa.Array, sentence_offsets: I64, threshold: float) -> pa.Table:
    """The keys to remove, with ``kept_key`` for each.

    Document d has sentences sentence_offsets[d] to [d + 1].
    """
    hashes, offsets = shingles(hashed_words(sentences, sentence_offsets))
    nodes = np.arange(len(keys), dtype=np.uint64)
    bands = band_table(nodes, ranks_of(keys), signatures(hashes, offsets), threshold)
    sketch_of = dict(enumerate(sketches(hashes, offsets)))
    clusters = components(verified_pairs(candidate_pairs(bands), sketch_of, threshold))
    return cluster_removals(cluster_members(clusters, pa.table({"key": keys, "node": nodes})))
