"""What must hold in a shard beyond its single rows: of its statistics, its documents, and rows told twice."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.row_checks import Finding, RowColumns
from schemas.arrays import distinct_values
from schemas.masking import MaskUnit
from schemas.randomness import U64, draws, key_from_text

Ints = npt.NDArray[np.int64]

_NUMBERS = ("segment_a_length", "next_sentence_label", "length")
# Targets from which equal masks on equal text are no chance. Spans and n-grams leave too little to chance.
_TELLING: dict[MaskUnit, int] = {"token": 10, "whole_word": 16}


def statistics_problems(file: pq.ParquetFile, group: int, table: pa.Table) -> Iterator[str]:
    """Columns whose least and greatest value in the footer are not those of the rows.

    Readers that filter skip row groups by them, and would miss rows without a word.
    """
    metadata = file.metadata.row_group(group)
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        name, said = column.path_in_schema, column.statistics
        if name not in (*_NUMBERS, "lang") or said is None or not said.has_min_max or not table.num_rows:
            continue
        values = table.column(name)
        found = pc.min_max(values.cast(pa.string()) if name == "lang" else values).as_py()
        if (said.min, said.max) != (found["min"], found["max"]):
            yield f"row group {group}: {name} is said to be from {said.min} to {said.max}, and is from " + (
                f"{found['min']} to {found['max']}"
            )


@dataclass
class ShardDocuments:
    """Gathers the documents of a shard: all, and those of languages that are used once in a pass."""

    once: frozenset[str]
    _all: list[U64] = field(default_factory=list)
    _single: list[U64] = field(default_factory=list)

    def add(self, rows: RowColumns) -> Iterator[Finding]:
        """Rows of a row group. Yields rows whose language is not the one of their document."""
        encoded = rows.keys.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        hashes = np.array([key_from_text(name) for name in names], dtype=np.uint64)
        of_row = np.asarray(encoded.indices, dtype=np.int64)
        languages = rows.languages.cast(pa.string()).dictionary_encode()
        codes = languages.dictionary.to_pylist()
        language = np.asarray(languages.indices, dtype=np.int64)
        wanted = np.array([_named_language(name, codes) for name in names], dtype=np.int64)
        wrong = (wanted[of_row] != language) & (wanted[of_row] != _UNSAID)
        yield wrong, "is of another language than its document"
        self._all.append(hashes)
        single = np.array([code in self.once for code in codes], dtype=np.bool_)
        self._single.append(distinct_values(hashes[of_row[single[language]]]))

    def all(self) -> U64:
        """The documents, ascending."""
        return distinct_values(np.concatenate([np.zeros(0, np.uint64), *self._all]))

    def single(self) -> U64:
        """Those of the languages in ``once``, ascending."""
        return distinct_values(np.concatenate([np.zeros(0, np.uint64), *self._single]))


_UNSAID, _ABSENT = -1, -2


def _named_language(key: str, codes: list[str]) -> int:
    """Place in ``codes`` of the language that the key of a document (source/language/page/revision) names."""
    parts = key.split("/")
    if len(parts) < 4:
        return _UNSAID
    return codes.index(parts[1]) if parts[1] in codes else _ABSENT


@dataclass
class RepeatedRows:
    """Finds rows of a shard that are there twice: same document, same targets at the same places."""

    unit: MaskUnit
    _seen: list[U64] = field(default_factory=list)

    def add(self, rows: RowColumns) -> None:
        """Rows of a row group."""
        least = _TELLING.get(self.unit)
        if least is None:
            return
        targets = draws(rows.positions, rows.labels, rows.ids[rows.offsets[rows.target_row] + rows.positions])
        # Sums of random bits, which may well go round past 2^64.
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(targets, dtype=np.uint64)])
        sums = np.diff(running[rows.position_offsets])
        keys = rows.keys.dictionary_encode()
        names = np.array([key_from_text(name) for name in keys.dictionary.to_pylist()], dtype=np.uint64)
        telling = np.diff(rows.position_offsets) >= least
        row = draws(names[np.asarray(keys.indices)], rows.length, rows.a_length, rows.next_label, sums)
        self._seen.append(row[telling])

    def count(self) -> int:
        """Rows that were there before."""
        seen = np.concatenate([np.zeros(0, np.uint64), *self._seen])
        return int(seen.size - distinct_values(seen).size)


def shared_documents(by_shard: list[U64]) -> list[int]:
    """Numbers of the shards that have a document which an earlier one has too; each names its own once."""
    everything = np.concatenate([np.zeros(0, np.uint64), *by_shard])
    if distinct_values(everything).size == everything.size:
        return []
    shard = np.repeat(np.arange(len(by_shard)), [documents.size for documents in by_shard])
    order = np.argsort(everything, kind="stable")
    again = order[1:][everything[order[1:]] == everything[order[:-1]]]
    return sorted(set(shard[again].tolist()))
