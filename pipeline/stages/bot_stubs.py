"""Limits the number of pages of one sentence pattern. The smallest keys of each language and pattern stay.

This needs a separate round, since the pages of a pattern are spread over many units. The way files are cut
must not affect which pages stay.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.bot_stubs import skeletons, stub_removals
from pipeline.dedup.components import node_bucket
from pipeline.documents.part import Part, part_size
from pipeline.documents.removals import REMOVALS, Removals, chosen_batches, removals_for
from pipeline.engine.committed_shuffle import CommittedShuffle
from pipeline.engine.shuffle_files import BUCKET
from schemas.columns.documents import DOCUMENTS
from schemas.skip_reasons import BOT_STUB

# About 100 bytes for each document.
DOCUMENTS_PER_BUCKET = 2_000_000
SKELETONS = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        *(DOCUMENTS.field(name) for name in ("lang", "key")),
        pa.field("skeleton", pa.uint64(), nullable=False),
    ]
)


def run_stubs(
    work_uri: str, inputs: list[str], parts: list[Part], removals: Removals, limit: int
) -> list[str]:
    """Files of REMOVALS: the pages beyond ``limit`` of one pattern, without those already in ``removals``."""
    buckets = max(1, -(-sum(part.rows for part in parts) // DOCUMENTS_PER_BUCKET))
    shuffle = CommittedShuffle.create(work_uri, "dedup-stubs", REMOVALS, buckets, limit, *inputs)

    def emit(part: Part) -> Iterator[pa.Table]:
        columns = ["key", "lang", "title", "sentences", "paragraph_sentences"]
        for rows, batch in chosen_batches(part, removals.kept_rows(part), columns):
            table = pa.table(
                {
                    "part": pa.array(np.full(len(rows), part.ordinal), pa.int32()),
                    "row": pa.array(rows, pa.int32()),
                    "lang": batch["lang"],
                    "key": batch["key"],
                    "skeleton": pa.array(skeletons(batch)),
                },
                schema=SKELETONS,
            )
            table = table.filter(pc.not_equal(table["skeleton"], pa.scalar(0, pa.uint64())))
            yield table.append_column(BUCKET, pa.array(node_bucket(table["skeleton"], buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        return removals_for(BOT_STUB, stub_removals(table, limit))

    shuffle.run(parts, emit, reduce, SKELETONS, part_size)
    return shuffle.files()
