"""Checks a whole shard: its Parquet statistics, its documents, and duplicate rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.verify.row_checks import Finding, RowColumns
from schemas.arrays import U64, distinct_values
from schemas.masking.targets import MaskUnit
from schemas.randomness import draws, key_from_text

_NUMBERS = ("segment_a_length", "next_sentence_label", "length")
# With this many targets, equal masks on equal text are not due to chance. Spans and n-grams have fewer draws.
_MIN_TARGETS: dict[MaskUnit, int] = {"token": 10, "whole_word": 16}


def statistics_problems(file: pq.ParquetFile, group: int, table: pa.Table) -> Iterator[str]:
    """Columns whose minimum or maximum in the footer differs from the rows.

    Readers that filter rows use these values to skip row groups, and would silently miss rows.
    """
    metadata = file.metadata.row_group(group)
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        name, footer = column.path_in_schema, column.statistics
        if name not in (*_NUMBERS, "lang") or footer is None or not footer.has_min_max or not table.num_rows:
            continue
        column_values = table.column(name)
        values = column_values.cast(pa.string()) if name == "lang" else column_values
        least, greatest = pc.min(values).as_py(), pc.max(values).as_py()
        if (footer.min, footer.max) != (least, greatest):
            yield (
                f"row group {group}: the footer says {name} is from {footer.min} to {footer.max}, but it is "
                f"from {least} to {greatest}"
            )


@dataclass
class ShardDocuments:
    """Collects all documents of a shard, and those of languages whose documents a pass uses once."""

    once: frozenset[str]
    _all: list[U64] = field(default_factory=list)
    _unshared: list[U64] = field(default_factory=list)

    def add(self, rows: RowColumns) -> Iterator[Finding]:
        """Adds the rows of a row group. Yields rows whose language differs from that of their document."""
        encoded = rows.keys.dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        hashes = np.array([key_from_text(key) for key in keys], dtype=np.uint64)
        of_row = np.asarray(encoded.indices, dtype=np.int64)
        languages = rows.languages.cast(pa.string()).dictionary_encode()
        codes = languages.dictionary.to_pylist()
        language = np.asarray(languages.indices, dtype=np.int64)
        expected = np.array([_language_of_key(key, codes) for key in keys], dtype=np.int64)
        wrong = (expected[of_row] != language) & (expected[of_row] != _UNKNOWN)
        yield wrong, "is of another language than its document"
        self._all.append(hashes)
        once = np.array([code in self.once for code in codes], dtype=np.bool_)
        self._unshared.append(distinct_values(hashes[of_row[once[language]]]))

    def all(self) -> U64:
        """The documents, ascending."""
        return distinct_values(np.concatenate([np.zeros(0, np.uint64), *self._all]))

    def unshared(self) -> U64:
        """The documents, ascending, of the languages in ``once``, which no other shard may have."""
        return distinct_values(np.concatenate([np.zeros(0, np.uint64), *self._unshared]))


_UNKNOWN, _ABSENT = -1, -2


def _language_of_key(key: str, codes: list[str]) -> int:
    """Index in ``codes`` of the language in a document key (source/language/page/revision)."""
    parts = key.split("/")
    if len(parts) < 4:
        return _UNKNOWN
    return codes.index(parts[1]) if parts[1] in codes else _ABSENT


@dataclass
class RepeatedRows:
    """Finds duplicate rows of a shard: same document, same targets at the same positions."""

    unit: MaskUnit
    _seen: list[U64] = field(default_factory=list)

    def add(self, rows: RowColumns) -> None:
        """Adds the rows of a row group."""
        least = _MIN_TARGETS.get(self.unit)
        if least is None:
            return
        targets = draws(rows.positions, rows.labels, rows.ids[rows.offsets[rows.target_row] + rows.positions])
        # Sums of random bits, which may wrap around at 2^64.
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(targets, dtype=np.uint64)])
        sums = np.diff(running[rows.position_offsets])
        keys = rows.keys.dictionary_encode()
        documents = np.array([key_from_text(key) for key in keys.dictionary.to_pylist()], dtype=np.uint64)
        enough = np.diff(rows.position_offsets) >= least
        of_row = documents[np.asarray(keys.indices)]
        row = draws(of_row, rows.length, rows.a_length, rows.next_label, sums)
        self._seen.append(row[enough])

    def count(self) -> int:
        """Rows that repeat an earlier row."""
        rows = np.concatenate([np.zeros(0, np.uint64), *self._seen])
        return int(rows.size - distinct_values(rows).size)


def shared_documents(by_shard: list[U64]) -> list[int]:
    """Numbers of the shards with a document that an earlier shard has. Each array has distinct values."""
    everything = np.concatenate([np.zeros(0, np.uint64), *by_shard])
    if distinct_values(everything).size == everything.size:
        return []
    shard = np.repeat(np.arange(len(by_shard)), [documents.size for documents in by_shard])
    order = np.argsort(everything, kind="stable")
    again = order[1:][everything[order[1:]] == everything[order[:-1]]]
    return sorted(set(shard[again].tolist()))
