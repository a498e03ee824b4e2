"""Finds random pairs whose B comes from the document of A, though a shard names A's document only.

All rows of a document lie in one shard of a set. So the segments that are known to be a document's
(every A, and B where it follows A) give most of its text as a set of n-grams, and a B that is taken
from the same document is found among them. Documents may share phrases; therefore the same is asked
of another document of the language, and only what goes beyond that counts.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.row_checks import RowColumns
from schemas.arrays import are_among, distinct_values
from schemas.randomness import U64, draws, key_from_text

Ints = npt.NDArray[np.int64]

_WORDS = 8
# One n-gram in this many is looked at, the same ones everywhere.
_SAMPLE = np.uint64(8)
# A segment is judged by at least this many of them, and taken for found when half of them are.
_LEAST = 3


@dataclass
class SelfPairs:
    """Gathers the rows of one shard, then counts."""

    _known: list[U64] = field(default_factory=list)
    _asked: list[tuple[U64, Ints]] = field(default_factory=list)
    _documents: list[U64] = field(default_factory=list)
    _languages: list[U64] = field(default_factory=list)
    _rows: int = 0

    def add(self, rows: RowColumns, random_label: int) -> None:
        """Rows of a row group, in which ``random_label`` marks the pairs that are to be random."""
        documents = _hashes(rows.keys)
        grams, gram_row, in_b = _sampled_grams(rows)
        random = rows.next_label == random_label
        asked = in_b & random[gram_row]
        self._known.append(draws(documents[gram_row[~asked]], grams[~asked]))
        number = np.cumsum(random) - 1 + self._rows
        self._asked.append((grams[asked], number[gram_row[asked]]))
        self._documents.append(documents[random])
        self._languages.append(_hashes(rows.languages.cast(pa.string()))[random])
        self._rows += int(random.sum())

    def excess(self) -> tuple[int, int]:
        """Random pairs found to be from one document, less those expected by chance; and pairs judged."""
        if self._rows == 0:
            return 0, 0
        known = distinct_values(np.concatenate(self._known))
        grams = np.concatenate([each[0] for each in self._asked])
        pair = np.concatenate([each[1] for each in self._asked])
        documents, languages = np.concatenate(self._documents), np.concatenate(self._languages)
        judged = np.bincount(pair, minlength=self._rows) >= _LEAST
        others = _other_documents(documents, languages)
        own = _found(known, grams, pair, documents) & judged
        by_chance = _found(known, grams, pair, others) & judged & (others != documents)
        return int(own.sum()) - int(by_chance.sum()), int(judged.sum())


def _hashes(texts: pa.Array) -> U64:
    encoded = texts.dictionary_encode()
    words = np.array([key_from_text(text) for text in encoded.dictionary.to_pylist()], dtype=np.uint64)
    hashes: U64 = words[np.asarray(encoded.indices)]
    return hashes


def _sampled_grams(rows: RowColumns) -> tuple[U64, Ints, npt.NDArray[np.bool_]]:
    """Hashes of the sampled n-grams inside segments, their rows, and whether they are in segment B."""
    ids = rows.originals()
    count = ids.size - _WORDS + 1
    if count <= 0:
        nothing = np.zeros(0, np.int64)
        return nothing.astype(np.uint64), nothing, nothing.astype(np.bool_)
    grams = draws(*(ids[shift : shift + count] for shift in range(_WORDS)))
    row = np.repeat(np.arange(rows.sizes.size), rows.sizes)[:count]
    place = np.arange(count) - rows.offsets[row]
    in_b = place >= rows.a_length[row]
    end = np.where(in_b, rows.sizes[row], rows.a_length[row]) - 1
    taken = (place > 0) & (place + _WORDS <= end) & (grams % _SAMPLE == 0)
    return grams[taken], row[taken], in_b[taken]


def _found(known: U64, grams: U64, pair: Ints, documents: U64) -> npt.NDArray[np.bool_]:
    """[pairs] whether at least half of a pair's n-grams are known of the document given for it."""
    hit = are_among(draws(documents[pair], grams), known)
    found = np.bincount(pair, weights=hit, minlength=documents.size)
    return 2 * found >= np.maximum(np.bincount(pair, minlength=documents.size), 1)


def _other_documents(documents: U64, languages: U64) -> U64:
    """For each pair a document of another pair of the same language (its own if there is no other)."""
    order = np.lexsort((documents, languages))
    ordered = documents[order]
    _, starts, counts = np.unique(languages[order], return_index=True, return_counts=True)
    place = np.arange(order.size)
    start, size = np.repeat(starts, counts), np.repeat(counts, counts)
    other = np.empty_like(documents)
    # Half a turn away in the order of documents, which is another document unless one has half of all pairs.
    other[order] = ordered[start + (place - start + size // 2) % size]
    return other
