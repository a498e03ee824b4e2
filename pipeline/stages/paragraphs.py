"""Finds the paragraphs that occur in too many documents, and the documents without other paragraphs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from pipeline.dedup.components import node_bucket
from pipeline.dedup.paragraphs import (
    PARAGRAPHS,
    merge_paragraph_counts,
    offsets_of,
    paragraph_counts,
    without_paragraphs,
)
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import (
    REMOVALS,
    Removals,
    chosen_batches,
    in_order,
    removals_without_keeper,
)
from pipeline.engine.committed_shuffle import CommittedShuffle
from pipeline.engine.shuffle_files import BUCKET
from schemas.arrays import U64
from schemas.skip_reasons import BOILERPLATE

# Documents whose paragraphs one bucket counts: about 20 paragraphs of 16 bytes each.
DOCUMENTS_PER_BUCKET = 1_000_000
PARTS_PER_BUCKET = 64
_COLUMNS = ["sentences", "paragraph_sentences"]


def run_paragraphs(
    work_uri: str, inputs: list[str], parts: list[Part], removals: Removals, max_documents: int
) -> tuple[U64, list[str]]:
    """Hashes of the paragraphs to cut, ascending, and files of REMOVALS of the documents left empty."""
    buckets = max(1, -(-sum(part.rows for part in parts) // DOCUMENTS_PER_BUCKET))
    shuffle = CommittedShuffle.create(
        work_uri, "dedup-paragraphs", PARAGRAPHS, buckets, max_documents, *inputs
    )

    def emit(part: Part) -> Iterator[pa.Table]:
        for _, table in chosen_batches(part, removals.kept_rows(part), _COLUMNS):
            counts = paragraph_counts(table)
            yield counts.append_column(BUCKET, pa.array(node_bucket(counts["paragraph"], buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        counts = merge_paragraph_counts(table.select(PARAGRAPHS.names))
        return counts.filter(pc.greater(counts["documents"], max_documents))

    shuffle.run(parts, emit, reduce, PARAGRAPHS, part_size)
    repeated = np.sort(shuffle.read_all()["paragraph"].to_numpy())
    return repeated, _emptied(work_uri, [*inputs, max_documents], parts, removals, repeated)


def _emptied(
    work_uri: str, inputs: list[Any], parts: list[Part], removals: Removals, repeated: U64
) -> list[str]:
    """Files of REMOVALS: the documents that lose every paragraph. A bucket has several neighboring parts."""
    if not len(repeated):
        return []
    buckets = max((part.ordinal for part in parts), default=0) // PARTS_PER_BUCKET + 1
    shuffle = CommittedShuffle.create(work_uri, "dedup-emptied", REMOVALS, buckets, *inputs)
    shared = ray.put(repeated)

    def emit(part: Part) -> Iterator[pa.Table]:
        kept = removals.kept_rows(part)
        for rows, table in chosen_batches(part, kept, ["key", "lang", *_COLUMNS]):
            cut = without_paragraphs(table, ray.get(shared))
            before, after = (np.diff(offsets_of(some["sentences"].combine_chunks())) for some in (table, cut))
            empty = np.flatnonzero((after == 0) & (before > 0))
            removed = removals_without_keeper(BOILERPLATE, part, rows[empty], table.take(pa.array(empty)))
            yield removed.append_column(
                BUCKET, pa.array(np.full(len(empty), part.ordinal // PARTS_PER_BUCKET), pa.int64())
            )

    shuffle.run(parts, emit, in_order, REMOVALS, part_size)
    return shuffle.files()
