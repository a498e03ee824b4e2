"""Finds near duplicates on Ray Data by shuffling hashes, pairs and sketches, but never text.

    bands    parts -> (band, rank, node) by band -> candidate pairs
    wanted   candidate pairs by part -> which rows of a part belong to which pairs
    verify   sketches of those rows by pair -> pairs that are similar enough
    cluster  pairs -> each node with the smallest node of its cluster
    members  nodes of clusters by part
    keep     clusters by their smallest node -> all but the smallest key are removed

A node is the location of a document: part ordinal and row in one number. Hashes of the keys decide which
documents are compared, and the keys decide which one stays, so a different division into parts or buckets
keeps the same documents. docs/concepts/dedup.md has the arithmetic.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster import storage
from pipeline.dedup.components import (
    EDGES,
    both_ways,
    components,
    distinct,
    downhill,
    large_star,
    node_bucket,
    small_star,
)
from pipeline.dedup.near import (
    BANDS,
    SKETCH_SHINGLES,
    candidate_pairs,
    cluster_removals,
    ranks_of,
    sketches,
    table_of_bands,
    verified_pairs,
)
from pipeline.dedup.paragraphs import offsets_of
from pipeline.dedup.shingles import hashed_words, shingles
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import REMOVALS, Removals, chosen_batches, removals_for
from pipeline.engine.committed_shuffle import CommittedShuffle
from pipeline.engine.shuffle_files import BUCKET
from pipeline.stages.signatures import SignatureStage
from schemas.arrays import I64, U64
from schemas.columns.documents import DOCUMENTS
from schemas.skip_reasons import NEAR_DUPLICATE

# Documents in one bucket of bands: 16 bands of 24 bytes each.
DOCUMENTS_PER_BUCKET = 500_000
# Pairs in one bucket of sketches: up to 64 kB for each pair.
PAIRS_PER_BUCKET = 50_000
# Parts whose rows of pairs share a bucket. Most parts of a large build have few or no such rows.
PARTS_PER_BUCKET = 64
# Edges that one task clusters in memory: 16 bytes each, about a gigabyte with all working memory.
EDGES_IN_MEMORY = 20_000_000
_ROW_BITS = np.uint64(32)
_ROW_MASK = np.uint64(0xFFFFFFFF)

PAIR_ROWS = pa.schema([*(pa.field(name, pa.int64(), nullable=False) for name in ("part", "row")), *EDGES])
SKETCHES = pa.schema(
    [*EDGES, pa.field("node", pa.uint64(), nullable=False), pa.field("sketch", pa.list_(pa.uint64()))]
)

MEMBERS = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in ("node", "cluster")])
KEYED_MEMBERS = pa.schema(
    [
        *(DOCUMENTS.field(name) for name in ("key", "lang")),
        *(pa.field(name, pa.int32(), nullable=False) for name in ("part", "row")),
        MEMBERS.field("cluster"),
    ]
)


def run_near(
    work_uri: str,
    inputs: list[str],
    parts: list[Part],
    removals: Removals,
    threshold: float,
    signatures: SignatureStage | None = None,
) -> list[str]:
    """Files of REMOVALS: the near duplicates of documents with a smaller key.

    The round compares the documents not in ``removals``. ``inputs`` is everything that ``removals`` depends
    on. ``signatures`` computes the band hashes of this round, by default without an earlier build.
    """

    def start(name: str, schema: pa.Schema, buckets: int) -> CommittedShuffle:
        return CommittedShuffle.create(work_uri, f"dedup-near-{name}", schema, buckets, threshold, *inputs)

    documents = sum(part.rows for part in parts)
    pairs = start("bands", EDGES, max(1, -(-documents // DOCUMENTS_PER_BUCKET)))
    if signatures is None:
        signatures = SignatureStage.create(work_uri, inputs, threshold)
    _find_pairs(pairs, parts, removals, signatures)
    last = max((part.ordinal for part in parts), default=0)
    rows_of_pairs = start("pair-rows", PAIR_ROWS, last // PARTS_PER_BUCKET + 1)
    _rows_of_pairs(rows_of_pairs, pairs)
    verified = start("verify", EDGES, max(1, -(-sum(pairs.sizes()) // PAIRS_PER_BUCKET)))
    _verify(verified, rows_of_pairs, parts, threshold)
    clusters = _cluster(verified, start)
    members = start("members", MEMBERS, rows_of_pairs.buckets)
    _members_by_part(members, clusters)
    keep = start("keep", REMOVALS, max(1, -(-sum(clusters.sizes()) // DOCUMENTS_PER_BUCKET)))
    _keep_smallest(keep, parts, members)
    return keep.files()


def _nodes(part: Part, rows: I64) -> U64:
    return np.asarray((np.uint64(part.ordinal) << _ROW_BITS) | rows.astype(np.uint64))


def _find_pairs(
    pairs: CommittedShuffle, parts: list[Part], removals: Removals, signatures: SignatureStage
) -> None:
    def emit(part: Part) -> Iterator[pa.Table]:
        kept = removals.kept_rows(part)
        with signatures.part(part) as part_bands:
            for rows, table in chosen_batches(part, kept, ["key", "content_hash", "sentences"]):
                ranks = ranks_of(table["key"].to_pylist())
                bands = table_of_bands(_nodes(part, rows), ranks, *part_bands.of(table))
                yield bands.append_column(BUCKET, pa.array(node_bucket(bands["band"], pairs.buckets)))

    pairs.run(parts, emit, lambda table: candidate_pairs(table.select(BANDS.names)), BANDS, part_size)


def _shingles(table: pa.Table) -> tuple[U64, I64]:
    sentences = table["sentences"].combine_chunks()
    return shingles(hashed_words(sentences.flatten(), offsets_of(sentences)))


def _rows_of_pairs(rows_of_pairs: CommittedShuffle, pairs: CommittedShuffle) -> None:
    """For each part, which of its rows belong to which pairs."""

    def emit(bucket: int) -> Iterator[pa.Table]:
        table = pairs.read(bucket)
        for side in ("left", "right"):
            nodes = table[side].to_numpy()
            rows = pa.array((nodes & _ROW_MASK).astype(np.int64))
            ordinals = (nodes >> _ROW_BITS).astype(np.int64)
            of_side = pa.table([pa.array(ordinals), rows, table["left"], table["right"]], schema=PAIR_ROWS)
            yield of_side.append_column(BUCKET, pa.array(ordinals // PARTS_PER_BUCKET))

    def reduce(table: pa.Table) -> pa.Table:
        # Keep one copy of a pair that shares several bands.
        once = table.group_by(PAIR_ROWS.names).aggregate([])
        return once.sort_by([(name, "ascending") for name in PAIR_ROWS.names])

    rows_of_pairs.run(_filled(pairs), emit, reduce, PAIR_ROWS)


def _verify(
    verified: CommittedShuffle, rows_of_pairs: CommittedShuffle, parts: list[Part], threshold: float
) -> None:
    def emit(part: Part) -> Iterator[pa.Table]:
        in_bucket = _of_neighbors(rows_of_pairs, part.ordinal // PARTS_PER_BUCKET)
        first, last = np.searchsorted(in_bucket["part"].to_numpy(), [part.ordinal, part.ordinal + 1])
        if first == last:
            return
        of_part = in_bucket.slice(first, last - first)
        pair_rows = of_part["row"].to_numpy()
        chosen = np.zeros(part.rows, bool)
        chosen[pair_rows] = True
        for rows, table in chosen_batches(part, chosen, ["sentences"]):
            begin, end = np.searchsorted(pair_rows, [rows[0], rows[-1] + 1])
            yield from _sketch_rows(part, rows, table, of_part.slice(begin, end - begin), verified.buckets)

    def reduce(table: pa.Table) -> pa.Table:
        nodes = table["node"].to_pylist()
        values = table["sketch"].combine_chunks()
        sketch_of = {node: values[place].values.to_numpy() for place, node in enumerate(nodes)}
        return verified_pairs(distinct(table.select(EDGES.names)), sketch_of, threshold)

    verified.run(_with_rows(parts, rows_of_pairs), emit, reduce, SKETCHES, part_size)


def _with_rows(parts: list[Part], by_part: CommittedShuffle) -> list[Part]:
    """The parts whose bucket of neighbors has rows."""
    filled = set(_filled(by_part))
    return [part for part in parts if part.ordinal // PARTS_PER_BUCKET in filled]


@lru_cache(maxsize=1)
def _of_neighbors(shuffle: CommittedShuffle, bucket: int) -> pa.Table:
    """The rows of PARTS_PER_BUCKET parts. Cached, because a task reads neighboring parts consecutively."""
    return shuffle.read(bucket)


def _sketch_rows(
    part: Part, rows: I64, table: pa.Table, rows_of_pairs: pa.Table, buckets: int
) -> Iterator[pa.Table]:
    """SKETCHES of the rows, once for each of their pairs, a few megabytes at a time."""
    sketch = pa.array(sketches(*_shingles(table)), pa.list_(pa.uint64()))
    at_once = (8 << 20) // (8 * SKETCH_SHINGLES)
    for begin in range(0, rows_of_pairs.num_rows, at_once):
        some = rows_of_pairs.slice(begin, at_once)
        place = np.searchsorted(rows, some["row"].to_numpy())
        pair = some["left"].to_numpy() ^ (some["right"].to_numpy() * np.uint64(0x9E3779B97F4A7C15))
        columns = [
            some["left"],
            some["right"],
            pa.array(_nodes(part, rows[place])),
            sketch.take(pa.array(place)),
        ]
        filled = pa.table(columns, schema=SKETCHES)
        yield filled.append_column(BUCKET, pa.array(node_bucket(pa.array(pair), buckets)))


def _cluster(
    verified: CommittedShuffle, start: Callable[[str, pa.Schema, int], CommittedShuffle]
) -> CommittedShuffle:
    """EDGES from each document to the smallest node of its cluster."""
    edges = sum(verified.sizes())
    buckets = max(1, -(-edges // (EDGES_IN_MEMORY // 4)))
    current, number, before = verified, 0, [""]
    while sum(current.sizes()) > EDGES_IN_MEMORY:
        for name, spread, star in (("large", both_ways, large_star), ("small", downhill, small_star)):
            following = start(f"{name}-{number:02d}", EDGES, buckets)
            _star_round(current, following, spread, star)
            current = following
        # If a round changes nothing, every cluster is a star around its smallest node.
        if current.digests() == before:
            return current
        before, number = current.digests(), number + 1
    clusters = start("clusters", EDGES, 1)
    _cluster_in_memory(current, clusters)
    return clusters


def _cluster_in_memory(edges: CommittedShuffle, clusters: CommittedShuffle) -> None:
    """Clusters all edges in one bucket with one task."""

    def emit(bucket: int) -> Iterator[pa.Table]:
        table = edges.read(bucket)
        yield table.append_column(BUCKET, pa.array(np.zeros(table.num_rows, np.int64)))

    clusters.run(_filled(edges), emit, components, EDGES)


def _filled(shuffle: CommittedShuffle) -> list[int]:
    return [bucket for bucket, size in enumerate(shuffle.sizes()) if size]


def _star_round(
    current: CommittedShuffle,
    following: CommittedShuffle,
    spread: Callable[[pa.Table], pa.Table],
    star: Callable[[pa.Table], pa.Table],
) -> None:
    def emit(bucket: int) -> Iterator[pa.Table]:
        edges = spread(current.read(bucket))
        yield edges.append_column(BUCKET, pa.array(node_bucket(edges["left"], following.buckets)))

    following.run(_filled(current), emit, lambda table: star(table.select(EDGES.names).cast(EDGES)), EDGES)


def _members_by_part(members: CommittedShuffle, clusters: CommittedShuffle) -> None:
    """The nodes of each part that are in a cluster, with the smallest node of the cluster."""

    def emit(bucket: int) -> Iterator[pa.Table]:
        edges = clusters.read(bucket)
        roots = pc.unique(edges["right"])
        nodes = np.concatenate((edges["left"].to_numpy(), roots.to_numpy()))
        labels = np.concatenate((edges["right"].to_numpy(), roots.to_numpy()))
        neighbors = ((nodes >> _ROW_BITS) // np.uint64(PARTS_PER_BUCKET)).astype(np.int64)
        columns = [pa.array(nodes), pa.array(labels), pa.array(neighbors)]
        yield pa.table(columns, names=[*MEMBERS.names, BUCKET])

    def reduce(table: pa.Table) -> pa.Table:
        # Each bucket with an edge to the root of a cluster emits the root.
        return table.group_by(MEMBERS.names).aggregate([]).sort_by("node")

    members.run(_filled(clusters), emit, reduce, MEMBERS)


def _keep_smallest(keep: CommittedShuffle, parts: list[Part], members: CommittedShuffle) -> None:
    def emit(part: Part) -> Iterator[pa.Table]:
        in_bucket = _of_neighbors(members, part.ordinal // PARTS_PER_BUCKET)
        bounds = np.array([part.ordinal, part.ordinal + 1], np.uint64) << _ROW_BITS
        first, last = np.searchsorted(in_bucket["node"].to_numpy(), bounds)
        if first == last:
            return
        of_part = in_bucket.slice(first, last - first)
        rows = (of_part["node"].to_numpy() & _ROW_MASK).astype(np.int32)
        named = storage.parquet_file(part.uri).read(columns=["key", "lang"]).take(pa.array(rows))
        places = [pa.array(np.full(len(rows), part.ordinal), pa.int32()), pa.array(rows)]
        table = pa.table([*named.columns, *places, of_part["cluster"]], schema=KEYED_MEMBERS)
        yield table.append_column(BUCKET, pa.array(node_bucket(table["cluster"], keep.buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        return removals_for(NEAR_DUPLICATE, cluster_removals(table))

    keep.run(_with_rows(parts, members), emit, reduce, KEYED_MEMBERS, part_size)
