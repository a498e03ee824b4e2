"""Documents that go: where they lie, why, and which one stays instead."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster import storage
from pipeline.stage_extract import Part

_ROWS_AT_ONCE = 1024

# Where a document lies, and why it goes.
LOSERS = pa.schema(
    [
        # Ordinal of the documents part.
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        # The document that stays in its place.
        pa.field("kept_key", pa.string(), nullable=False),
    ]
)


def in_order(losers: pa.Table) -> pa.Table:
    """Sorted by (part, row), as everybody who reads losers takes them to be."""
    return losers.sort_by([("part", "ascending"), ("row", "ascending")])


def losers_for(reason: str, found: pa.Table) -> pa.Table:
    """LOSERS of the rows of ``found``, which has all columns but the reason, in order."""
    reasons = pa.array([reason] * found.num_rows, pa.string())
    return in_order(found.append_column("reason", reasons).select(LOSERS.names))


def kept_rows(losers: pa.Table, part: Part) -> npt.NDArray[np.bool_]:
    """One flag for each row of ``part``: false for losers. ``losers`` is sorted by (part, row)."""
    parts = losers["part"].to_numpy()
    first, last = np.searchsorted(parts, [part.ordinal, part.ordinal + 1])
    kept = np.ones(part.rows, dtype=np.bool_)
    kept[losers["row"].slice(first, last - first).to_numpy()] = False
    return kept


@dataclass(frozen=True)
class Gone:
    """All that dedup takes out: whole documents, and paragraphs by hash (ascending)."""

    losers: pa.Table
    paragraphs: npt.NDArray[np.uint64]


def chosen_batches(
    part: Part, chosen: npt.NDArray[np.bool_], columns: list[str], *, rows_at_once: int = _ROWS_AT_ONCE
) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
    """Row numbers and columns of the chosen rows of a part, from ``rows_at_once`` of its rows at a time."""
    start = 0
    for batch in storage.parquet_file(part.uri).iter_batches(batch_size=rows_at_once, columns=columns):
        flags = chosen[start : start + batch.num_rows]
        if flags.any():
            yield start + np.flatnonzero(flags), _flagged(batch, flags)
        start += batch.num_rows


def _flagged(batch: pa.RecordBatch, flags: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows with a flag; a batch of which all stay, as most do, is not copied."""
    table = pa.Table.from_batches([batch])
    return table if flags.all() else table.filter(pa.array(flags))
