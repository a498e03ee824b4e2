"""Reads the rows of a documents part that deduplication keeps."""

from collections.abc import Iterator

import pyarrow as pa

from pipeline.dedup.paragraphs import without_paragraphs
from pipeline.documents.part import Part
from pipeline.documents.removals import Removals, chosen_batches

_ROWS_AT_ONCE = 2048


def read_kept(part: Part, removals: Removals, columns: list[str]) -> Iterator[pa.Table]:
    """The remaining rows of a part, a few thousand at a time, without the removed paragraphs."""
    cutting = len(removals.paragraphs) > 0 and {"sentences", "text_bytes"} & set(columns)
    read = sorted({*columns, "sentences", "paragraph_sentences"}) if cutting else columns
    for _, table in chosen_batches(part, removals.kept_rows(part), read, rows_at_once=_ROWS_AT_ONCE):
        yield without_paragraphs(table, removals.paragraphs).select(columns) if cutting else table
