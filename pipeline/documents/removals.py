"""The documents that deduplication removes, with the reason and the document that stays instead."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from cluster import storage
from pipeline.documents.part import Part
from schemas.arrays import I32, I64, U64, Flags

_ROWS_AT_ONCE = 1024
_READERS = 16

# Where a removed document is, and why it is removed.
REMOVALS = pa.schema(
    [
        # Ordinal of the documents part.
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        # The document that stays instead. Empty if none does.
        pa.field("kept_key", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Removals:
    """All removals so far, as files that tasks read. The driver holds only their names."""

    files: tuple[str, ...]
    """Parquet files of REMOVALS, each sorted by (part, row), with rows of any parts."""
    of_part: Mapping[int, str]
    """Ordinal of a part -> Parquet file of REMOVALS with rows of this part alone."""
    paragraphs: U64
    """Hashes of the paragraphs that are cut out of the remaining documents, ascending."""

    @staticmethod
    def none() -> "Removals":
        """Nothing is removed."""
        return Removals((), {}, np.zeros(0, np.uint64))

    def plus(self, files: Iterable[str]) -> "Removals":
        """With more files."""
        return replace(self, files=(*self.files, *files))

    def kept_rows(self, part: Part) -> Flags:
        """[rows of ``part``] whether the document stays."""
        kept = np.ones(part.rows, dtype=np.bool_)
        own = self.of_part.get(part.ordinal)
        for uri in (*self.files, *(() if own is None else (own,))):
            kept[_rows_in(uri, part.ordinal)] = False
        return kept

    def counts(self) -> dict[str, dict[str, int]]:
        """Language -> reason -> removed documents. Reads each file in 16 threads."""
        total: dict[str, Counter[str]] = {}
        with ThreadPoolExecutor(_READERS) as pool:
            for counted in pool.map(_counts_in, (*self.files, *self.of_part.values())):
                for (lang, reason), count in counted.items():
                    total.setdefault(lang, Counter())[reason] += count
        return {lang: dict(sorted(by_reason.items())) for lang, by_reason in sorted(total.items())}


def _rows_in(uri: str, ordinal: int) -> I64:
    """The rows of one part in a file, read from the row groups that may hold the part."""
    rows = [np.zeros(0, np.int64)]
    for group, (least, most) in enumerate(_parts_of_groups(uri)):
        if least <= ordinal <= most:
            parts, places = _places_in(uri, group)
            first, last = np.searchsorted(parts, [ordinal, ordinal + 1])
            rows.append(places[first:last].astype(np.int64))
    return np.concatenate(rows)


@lru_cache(maxsize=4096)
def _parts_of_groups(uri: str) -> list[tuple[int, int]]:
    """The smallest and the largest part of each row group, from the statistics of the file."""
    metadata = storage.parquet_file(uri).metadata
    statistics = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
    return [(one.min, one.max) for one in statistics]


@lru_cache(maxsize=256)
def _places_in(uri: str, group: int) -> tuple[I32, I32]:
    """Part and row of each document in a row group. Each takes 8 bytes, so the cache holds at most 134 MB."""
    table = storage.parquet_file(uri).read_row_group(group, columns=["part", "row"])
    return table["part"].to_numpy(), table["row"].to_numpy()


def _counts_in(uri: str) -> dict[tuple[str, str], int]:
    table = storage.parquet_file(uri).read(columns=["lang", "reason"])
    counted = table.group_by(["lang", "reason"]).aggregate([([], "count_all")])
    columns = (counted[name].to_pylist() for name in ("lang", "reason", "count_all"))
    return {(lang, reason): count for lang, reason, count in zip(*columns, strict=True)}


def in_order(documents: pa.Table) -> pa.Table:
    """REMOVALS sorted by (part, row)."""
    return documents.sort_by([("part", "ascending"), ("row", "ascending")])


def removals_for(reason: str, documents: pa.Table) -> pa.Table:
    """REMOVALS, sorted by (part, row), from rows that have all its columns except the reason."""
    reasons = pa.array([reason] * documents.num_rows, pa.string())
    return in_order(documents.append_column("reason", reasons).select(REMOVALS.names))


def removals_without_keeper(reason: str, part: Part, rows: I64, documents: pa.Table) -> pa.Table:
    """REMOVALS of ``rows`` of a part, for which no other document stays.

    ``documents`` has the columns key and lang of these rows.
    """
    columns = {
        "part": pa.array(np.full(len(rows), part.ordinal), pa.int32()),
        "row": pa.array(rows, pa.int32()),
        "lang": documents["lang"],
        "reason": pa.array([reason] * len(rows), pa.string()),
        "key": documents["key"],
        "kept_key": pa.array([""] * len(rows), pa.string()),
    }
    return pa.table(columns, schema=REMOVALS)


def chosen_batches(
    part: Part, chosen: Flags, columns: list[str], *, rows_at_once: int = _ROWS_AT_ONCE
) -> Iterator[tuple[I64, pa.Table]]:
    """Row numbers and columns of the chosen rows of a part. Each batch comes from ``rows_at_once`` rows."""
    start = 0
    for batch in storage.parquet_file(part.uri).iter_batches(batch_size=rows_at_once, columns=columns):
        flags = chosen[start : start + batch.num_rows]
        if flags.any():
            yield start + np.flatnonzero(flags), _flagged(batch, flags)
        start += batch.num_rows


def _flagged(batch: pa.RecordBatch, flags: Flags) -> pa.Table:
    """The flagged rows. Most batches keep all their rows and are not copied."""
    table = pa.Table.from_batches([batch])
    return table if flags.all() else table.filter(pa.array(flags))
