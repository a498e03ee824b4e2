"""Finds the paragraphs that stand in too many documents, and the documents that are nothing else."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from pipeline.commit import StageFolder
from pipeline.committed_shuffle import CommittedShuffle
from pipeline.dedup.components import node_bucket
from pipeline.dedup.paragraphs import (
    PARAGRAPHS,
    merge_paragraph_counts,
    offsets_of,
    paragraph_counts,
    without_paragraphs,
)
from pipeline.dedup.shingles import U64
from pipeline.losers import LOSERS, chosen_batches, kept_rows
from pipeline.ray_stage import BUCKET, Row
from pipeline.skip_reasons import BOILERPLATE
from pipeline.stage_extract import Part

# Documents whose paragraphs one bucket counts: some 20 paragraphs of 16 bytes each.
DOCUMENTS_PER_BUCKET = 1_000_000
_COLUMNS = ["sentences", "paragraph_sentences"]


def run_paragraphs(
    work_uri: str, inputs: list[str], parts: list[Part], gone: pa.Table, max_documents: int
) -> tuple[U64, pa.Table]:
    """The hashes of the paragraphs to cut, ascending, and LOSERS of the documents left without text."""
    buckets = max(1, -(-sum(part.rows for part in parts) // DOCUMENTS_PER_BUCKET))
    stage = StageFolder.create(work_uri, "dedup-paragraphs", buckets, max_documents, *inputs)
    counted = CommittedShuffle(stage, PARAGRAPHS, buckets)
    kept = ray.put(gone)

    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        for _, table in chosen_batches(part, kept_rows(ray.get(kept), part), _COLUMNS):
            counts = paragraph_counts(table)
            yield counts.append_column(BUCKET, pa.array(node_bucket(counts["paragraph"], buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        counts = merge_paragraph_counts(table.select(PARAGRAPHS.names))
        return counts.filter(pc.greater(counts["documents"], max_documents))

    counted.run([vars(part) for part in parts], emit, reduce, PARAGRAPHS)
    repeated = np.sort(counted.read_all()["paragraph"].to_numpy())
    return repeated, _emptied(work_uri, [*inputs, max_documents], parts, kept, repeated)


def _emptied(
    work_uri: str, inputs: list[Any], parts: list[Part], kept: ray.ObjectRef, repeated: U64
) -> pa.Table:
    """A round with one bucket for each part: the documents of which no paragraph is left."""
    count = max((part.ordinal for part in parts), default=0) + 1
    losers = CommittedShuffle(StageFolder.create(work_uri, "dedup-emptied", *inputs), LOSERS, count)
    if not len(repeated):
        return LOSERS.empty_table()
    shared = ray.put(repeated)

    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        for rows, table in chosen_batches(part, kept_rows(ray.get(kept), part), ["key", "lang", *_COLUMNS]):
            cut = without_paragraphs(table, ray.get(shared))
            before, after = (np.diff(offsets_of(some["sentences"].combine_chunks())) for some in (table, cut))
            empty = np.flatnonzero((after == 0) & (before > 0))
            columns = {
                "part": pa.array(np.full(len(empty), part.ordinal), pa.int32()),
                "row": pa.array(rows[empty], pa.int32()),
                "lang": table["lang"].take(pa.array(empty)),
                "reason": pa.array([BOILERPLATE] * len(empty), pa.string()),
                "key": table["key"].take(pa.array(empty)),
                # No document stays in its place.
                "kept_key": pa.array([""] * len(empty), pa.string()),
            }
            found = pa.table(columns, schema=LOSERS)
            yield found.append_column(BUCKET, pa.array(np.full(len(empty), part.ordinal), pa.int64()))

    losers.run([vars(part) for part in parts], emit, lambda table: table.sort_by("row"), LOSERS)
    return losers.read_all()
