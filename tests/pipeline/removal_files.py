"""Reads files of removals as one table, and writes a table as a file."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents.removals import REMOVALS, Removals, in_order


def read_removals(files: Iterable[str]) -> pa.Table:
    """All rows of the files, sorted by (part, row)."""
    return in_order(pa.concat_tables([REMOVALS.empty_table(), *(pq.read_table(file) for file in files)]))


def all_removals(removals: Removals) -> pa.Table:
    """All documents that are removed."""
    return read_removals((*removals.files, *removals.of_part.values()))


def write_removals(path: Path, table: pa.Table) -> str:
    """Writes REMOVALS and returns the name of the file."""
    pq.write_table(table.cast(REMOVALS), path)
    return str(path)
