"""Documents that go: where they lie, why, and which one stays instead."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.stage_extract import Part

# Where a document lies, and why it goes.
LOSERS = pa.schema(
    [
        # Ordinal of the documents part.
        pa.field("unit", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        # The document that stays in its place.
        pa.field("kept_key", pa.string(), nullable=False),
    ]
)


def kept_rows(losers: pa.Table, part: Part) -> npt.NDArray[np.bool_]:
    """One flag for each row of ``part``: false for losers. ``losers`` is sorted by (unit, row)."""
    parts = losers["unit"].to_numpy()
    first, last = np.searchsorted(parts, [part.ordinal, part.ordinal + 1])
    kept = np.ones(part.rows, dtype=np.bool_)
    kept[losers["row"].slice(first, last - first).to_numpy()] = False
    return kept
