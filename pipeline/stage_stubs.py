"""Caps the pages of one sentence pattern: the smallest keys of each language and skeleton stay.

A round of its own, since a pattern's pages lie in many units: how files are cut must not choose.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from pipeline.commit import StageFolder
from pipeline.committed_shuffle import CommittedShuffle
from pipeline.dedup.bot_stubs import skeletons, stub_losers
from pipeline.dedup.components import node_bucket
from pipeline.losers import LOSERS, chosen_batches, kept_rows, losers_for
from pipeline.ray_stage import BUCKET, Row
from pipeline.skip_reasons import BOT_STUB
from pipeline.stage_extract import Part
from schemas.documents import DOCUMENTS

# About 100 bytes a document.
DOCUMENTS_PER_BUCKET = 2_000_000
SKELETONS = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        *(DOCUMENTS.field(name) for name in ("lang", "key")),
        pa.field("skeleton", pa.uint64(), nullable=False),
    ]
)


def run_stubs(work_uri: str, inputs: list[str], parts: list[Part], gone: pa.Table, limit: int) -> pa.Table:
    """LOSERS of the pages beyond ``limit`` of one pattern, among those that are not ``gone``."""
    buckets = max(1, -(-sum(part.rows for part in parts) // DOCUMENTS_PER_BUCKET))
    losers = CommittedShuffle(
        StageFolder.create(work_uri, "dedup-stubs", buckets, limit, *inputs), LOSERS, buckets
    )
    kept = ray.put(gone)

    def emit(row: Row) -> Iterator[pa.Table]:
        part = Part(**row)
        columns = ["key", "lang", "title", "sentences", "paragraph_sentences"]
        for rows, table in chosen_batches(part, kept_rows(ray.get(kept), part), columns):
            found = pa.table(
                {
                    "part": pa.array(np.full(len(rows), part.ordinal), pa.int32()),
                    "row": pa.array(rows, pa.int32()),
                    "lang": table["lang"],
                    "key": table["key"],
                    "skeleton": pa.array(skeletons(table)),
                },
                schema=SKELETONS,
            )
            found = found.filter(pc.not_equal(found["skeleton"], pa.scalar(0, pa.uint64())))
            yield found.append_column(BUCKET, pa.array(node_bucket(found["skeleton"], buckets)))

    def reduce(table: pa.Table) -> pa.Table:
        return losers_for(BOT_STUB, stub_losers(table, limit))

    losers.run([vars(part) for part in parts], emit, reduce, SKELETONS)
    return losers.read_all()
