"""Which rows of a documents part are used, and on which side of the held-out split each one falls."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.dedup.paragraphs import without_paragraphs
from pipeline.losers import Gone, chosen_batches, kept_rows
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


def read_kept(part: Part, gone: Gone, columns: list[str]) -> Iterator[pa.Table]:
    """The kept rows of a part, a few thousand at a time, without the paragraphs that are cut out."""
    kept = kept_rows(gone.losers, part)
    cutting = len(gone.paragraphs) > 0 and {"sentences", "text_bytes"} & set(columns)
    read = sorted({*columns, "sentences", "paragraph_sentences"}) if cutting else columns
    for _, table in chosen_batches(part, kept, read, rows_at_once=_ROWS_AT_ONCE):
        yield without_paragraphs(table, gone.paragraphs).select(columns) if cutting else table
