"""Which rows of a documents part are used, and on which side of the held-out split each one falls."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster import storage
from pipeline.losers import kept_rows
from pipeline.stage_extract import Part
from schemas.randomness import key_from_text, uniform

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Split:
    """The held-out share and the seed that chooses it."""

    seed: int
    validation_share: float

    def is_validation(self, content_hashes: list[bytes]) -> npt.NDArray[np.bool_]:
        """True for held-out documents: a function of text and seed, so that equal texts never part."""
        words = np.array([int.from_bytes(value[8:], "little") for value in content_hashes], dtype=np.uint64)
        return uniform(self.seed, key_from_text("split"), words) < self.validation_share


def read_kept(part: Part, losers: pa.Table, columns: list[str]) -> Iterator[pa.Table]:
    """The kept rows of a part, a few thousand at a time."""
    kept = kept_rows(losers, part)
    file = storage.parquet_file(part.uri)
    start = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
        chosen = kept[start : start + batch.num_rows]
        start += batch.num_rows
        table = pa.Table.from_batches([batch]).filter(pa.array(chosen))
        if table.num_rows:
            yield table
