"""Selects the rows of a documents part, and assigns each one to a side of the held-out split."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.dedup.paragraphs import without_paragraphs
from pipeline.documents.part import Part
from pipeline.documents.removals import Removals, chosen_batches
from schemas.arrays import Flags
from schemas.randomness import key_from_text, uniform

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Split:
    """The held-out share and the seed that chooses it."""

    seed: int
    validation_share: float

    def is_validation(self, content_hashes: list[bytes]) -> Flags:
        """[documents] whether each is held out, by text and seed, so equal texts fall on the same side."""
        keys = np.array([int.from_bytes(value[8:], "little") for value in content_hashes], dtype=np.uint64)
        return uniform(self.seed, key_from_text("split"), keys) < self.validation_share


def read_kept(part: Part, removals: Removals, columns: list[str]) -> Iterator[pa.Table]:
    """The remaining rows of a part, a few thousand at a time, without the removed paragraphs."""
    cutting = len(removals.paragraphs) > 0 and {"sentences", "text_bytes"} & set(columns)
    read = sorted({*columns, "sentences", "paragraph_sentences"}) if cutting else columns
    for _, table in chosen_batches(part, removals.kept_rows(part), read, rows_at_once=_ROWS_AT_ONCE):
        yield without_paragraphs(table, removals.paragraphs).select(columns) if cutting else table
