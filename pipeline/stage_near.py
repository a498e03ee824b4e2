"""Near duplicates on Ray Data: four shuffles of hashes, pairs and sketches, never of text.

    bands    parts -> (band, rank, node) by band -> candidate pairs
    wanted   candidate pairs by part -> which rows of the part are asked for, and by which pairs
    verify   sketches of those rows by pair -> pairs that are alike
    keep     clusters by their smallest node -> all but the smallest key go

A node is a document's place, part ordinal and row in one number. Which documents are held against
each other depends on hashes of their keys, and who stays on the keys themselves, so other parts or
buckets give the same documents. docs/dedup.md has the arithmetic.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray

from cluster import storage
from pipeline.commit import StageFolder
from pipeline.committed_shuffle import CommittedShuffle
from pipeline.dedup.components import (
    EDGES,
    both_ways,
    components,
    distinct,
    downhill,
    is_star,
    large_star,
    node_bucket,
    small_star,
)
from pipeline.dedup.minhash import signatures
from pipeline.dedup.near import (
    BANDS,
    SKETCH_SHINGLES,
    band_table,
    candidate_pairs,
    cluster_losers,
    cluster_members,
    ranks_of,
    sketches,
    verified_pairs,
)
from pipeline.dedup.paragraphs import offsets_of
from pipeline.dedup.shingles import hashed_words, shingles
from pipeline.losers import LOSERS, chosen_batches, kept_rows, losers_for
from pipeline.ray_stage import BUCKET, Row, plain_errors
from pipeline.skip_reasons import NEAR_DUPLICATE
from pipeline.stage_extract import Part
from schemas.arrays import distinct_values
from schemas.documents import DOCUMENTS

# Documents of one bucket of bands: 16 bands of 24 bytes each.
DOCUMENTS_PER_BUCKET = 500_000
# Pairs of one bucket of sketches, of up to 64 kB a pair.
PAIRS_PER_BUCKET = 50_000
# Parts whose asked rows are in one bucket: most parts of a large build have few or none.
PARTS_PER_BUCKET = 64
# Edges that one task clusters by itself; 16 bytes each, about a gigabyte with all it needs.
EDGES_IN_MEMORY = 20_000_000
_ROW_BITS = np.uint64(32)

WANTED = pa.schema([*(pa.field(name, pa.int64(), nullable=False) for name in ("part", "row")), *EDGES])
SKETCHES = pa.schema(
    [*EDGES, pa.field("node", pa.uint64(), nullable=False), pa.field("sketch", pa.list_(pa.uint64()))]
)

MEMBERS = pa.schema(
    [
        *(DOCUMENTS.field(name) for name in ("key", "lang")),
        *(pa.field(name, pa.int32(), nullable=False) for name in ("part", "row")),
        *(pa.field(name, pa.uint64(), nullable=False) for name in ("node", "cluster")),
    ]
)

U64 = npt.NDArray[np.uint64]


def run_near(
    work_uri: str, inputs: list[str], parts: list[Part], gone: pa.Table, threshold: float
) -> pa.Table:
    """LOSERS of the documents that are near duplicates of one with a smaller key.

    ``gone`` are those that are out already; ``inputs`` names all that they depend on.
    """

    def start(name: str, schema: pa.Schema, buckets: int) -> CommittedShuffle:
        folder = StageFolder.create(work_uri, f"dedup-near-{name}", buckets, threshold, *inputs)
        return CommittedShuffle(folder, schema, buckets)

    documents = sum(part.rows for part in parts)
    pairs = start("bands", EDGES, max(1, -(-documents // DOCUMENTS_PER_BUCKET)))
    kept = ray.put(gone)
    _find_pairs(pairs, parts, kept, threshold)
    last = max((part.ordinal for part in parts), default=0)
    wanted = start("wanted", WANTED, last // PARTS_PER_BUCKET + 1)
    _ask_parts(wanted, pairs)
    alike = start("verify", EDGES, max(1, -(-sum(pairs.sizes()) // PAIRS_PER_BUCKET)))
    _verify(alike, wanted, parts, threshold)
    clusters = _cluster(alike, start)
    keep = start("keep", LOSERS, max(1, -(-clusters.num_rows // DOCUMENTS_PER_BUCKET)))
    _keep_smallest(keep, parts, clusters)
    return keep.read_all()


def _nodes(part: Part, rows: npt.NDArray[np.int64]) -> U64:
    return np.asarray((np.uint64(part.ordinal) << _ROW_BITS) | rows.astype(np.uint64))


def _items(parts: list[Part]) -> list[Row]:
    return [vars(part) for part in parts]


def _find_pairs(pairs: CommittedShuffle, parts: list[Part], gone: ray.ObjectRef, threshold: float) -> None:
    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        kept = kept_rows(ray.get(gone), part)
        for rows, table in chosen_batches(part, kept, ["key", "sentences"]):
            hashes, offsets = _shingles(table)
            keys = table["key"].to_pylist()
            bands = band_table(_nodes(part, rows), ranks_of(keys), signatures(hashes, offsets), threshold)
            yield bands.append_column(BUCKET, pa.array(node_bucket(bands["band"], pairs.buckets)))

    pairs.run(_items(parts), emit, lambda table: candidate_pairs(table.select(BANDS.names)), BANDS)


def _shingles(table: pa.Table) -> tuple[U64, npt.NDArray[np.int64]]:
    sentences = table["sentences"].combine_chunks()
    return shingles(hashed_words(sentences.flatten(), offsets_of(sentences)))


def _ask_parts(wanted: CommittedShuffle, pairs: CommittedShuffle) -> None:
    """Tells each part which of its rows take part in which pairs."""

    def emit(row: Row) -> Iterator[pa.Table]:
        table = pairs.read(row["bucket"])
        for side in ("left", "right"):
            nodes = table[side].to_numpy()
            rows = pa.array((nodes & np.uint64(0xFFFFFFFF)).astype(np.int64))
            ordinals = (nodes >> _ROW_BITS).astype(np.int64)
            asked = pa.table([pa.array(ordinals), rows, table["left"], table["right"]], schema=WANTED)
            yield asked.append_column(BUCKET, pa.array(ordinals // PARTS_PER_BUCKET))

    def reduce(table: pa.Table) -> pa.Table:
        # A pair that met in several bands is asked for once.
        asked = table.group_by(WANTED.names).aggregate([])
        return asked.sort_by([(name, "ascending") for name in WANTED.names])

    buckets = [bucket for bucket, size in enumerate(pairs.sizes()) if size]
    wanted.run([{"bucket": bucket} for bucket in buckets], emit, reduce, WANTED)


def _verify(alike: CommittedShuffle, wanted: CommittedShuffle, parts: list[Part], threshold: float) -> None:
    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        asked = _asked(wanted, part.ordinal // PARTS_PER_BUCKET)
        first, last = np.searchsorted(asked["part"].to_numpy(), [part.ordinal, part.ordinal + 1])
        if first == last:
            return
        asked = asked.slice(first, last - first)
        asked_rows = asked["row"].to_numpy()
        chosen = np.zeros(part.rows, bool)
        chosen[asked_rows] = True
        for rows, table in chosen_batches(part, chosen, ["sentences"]):
            begin, end = np.searchsorted(asked_rows, [rows[0], rows[-1] + 1])
            yield from _sketch_rows(part, rows, table, asked.slice(begin, end - begin), alike.buckets)

    def reduce(table: pa.Table) -> pa.Table:
        nodes = table["node"].to_pylist()
        values = table["sketch"].combine_chunks()
        sketch_of = {node: values[place].values.to_numpy() for place, node in enumerate(nodes)}
        return verified_pairs(distinct(table.select(EDGES.names)), sketch_of, threshold)

    asking = {bucket for bucket, size in enumerate(wanted.sizes()) if size}
    alike.run(
        _items([part for part in parts if part.ordinal // PARTS_PER_BUCKET in asking]), emit, reduce, SKETCHES
    )


@lru_cache(maxsize=1)
def _asked(wanted: CommittedShuffle, bucket: int) -> pa.Table:
    """Kept, since a task reads neighbouring parts one after the other."""
    return wanted.read(bucket)


def _sketch_rows(
    part: Part, rows: npt.NDArray[np.int64], table: pa.Table, asked: pa.Table, buckets: int
) -> Iterator[pa.Table]:
    """SKETCHES of the rows, once for each pair that asks; a few megabytes at a time."""
    sketch = pa.array(sketches(*_shingles(table)), pa.list_(pa.uint64()))
    at_once = (8 << 20) // (8 * SKETCH_SHINGLES)
    for begin in range(0, asked.num_rows, at_once):
        some = asked.slice(begin, at_once)
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


def _cluster(alike: CommittedShuffle, start: Callable[[str, pa.Schema, int], CommittedShuffle]) -> pa.Table:
    """EDGES from each document to the smallest node of its cluster."""
    edges = sum(alike.sizes())
    number = 0
    current = alike
    while edges > EDGES_IN_MEMORY:
        buckets = -(-edges // (EDGES_IN_MEMORY // 4))
        for name, spread, star in (("large", both_ways, large_star), ("small", downhill, small_star)):
            following = start(f"{name}-{number:02d}", EDGES, buckets)
            _star_round(current, following, spread, star)
            current = following
        number += 1
        if sum(current.sizes()) == edges and is_star(current.read_all()):
            return current.read_all().sort_by("left")
        edges = sum(current.sizes())

    def cluster_edges() -> pa.Table:
        return components(current.read_all())

    with plain_errors():
        return ray.get(ray.remote(cluster_edges).remote())


def _star_round(
    current: CommittedShuffle,
    following: CommittedShuffle,
    spread: Callable[[pa.Table], pa.Table],
    star: Callable[[pa.Table], pa.Table],
) -> None:
    def emit(row: Row) -> Iterator[pa.Table]:
        edges = spread(current.read(row["bucket"]))
        yield edges.append_column(BUCKET, pa.array(node_bucket(edges["left"], following.buckets)))

    items = [{"bucket": bucket} for bucket, size in enumerate(current.sizes()) if size]
    following.run(items, emit, lambda table: star(table.select(EDGES.names).cast(EDGES)), EDGES)


def _keep_smallest(keep: CommittedShuffle, parts: list[Part], clusters: pa.Table) -> None:
    shared = ray.put(clusters)
    columns = ["key", "lang"]

    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        table = storage.parquet_file(part.uri).read(columns=columns)
        rows = np.arange(part.rows)
        table = table.append_column("part", pa.array(np.full(part.rows, part.ordinal), pa.int32()))
        table = table.append_column("row", pa.array(rows, pa.int32()))
        table = table.append_column("node", pa.array(_nodes(part, rows)))
        members = cluster_members(ray.get(shared), table)
        yield members.append_column(BUCKET, pa.array(node_bucket(members["cluster"], keep.buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        return losers_for(NEAR_DUPLICATE, cluster_losers(table))

    with_members = distinct_values(
        np.concatenate([clusters[side].to_numpy() for side in ("left", "right")]) >> _ROW_BITS
    ).tolist()
    keep.run(_items([part for part in parts if part.ordinal in with_members]), emit, reduce, MEMBERS)
