"""Finds random pairs whose B comes from the document of A, although a shard names only A's document.

All rows of a document are in one shard of a set. The segments that certainly belong to a document (every A,
and each B that follows its A) give most of its text as a set of n-grams. A B from the same document has its
n-grams in this set. Documents may share phrases, so each B is also compared with another document of the
language, and only the excess counts.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline.verify.row_checks import RowColumns
from schemas.arrays import I64, U64, Flags, are_among, distinct_values
from schemas.randomness import draws, key_from_text

_GRAM_TOKENS = 8
# One n-gram in this many is used, with the same selection in all segments.
_SAMPLE = np.uint64(8)
# A segment needs at least this many n-grams. It belongs to a document that contains half of them.
_MIN_GRAMS = 3


@dataclass
class SelfPairs:
    """Collects the rows of one shard, then counts."""

    _known: list[U64] = field(default_factory=list)
    """Hashes of (document, n-gram)."""
    _candidates: list[tuple[U64, I64]] = field(default_factory=list)
    """N-grams of random Bs and the numbers of their pairs."""
    _documents: list[U64] = field(default_factory=list)
    _languages: list[U64] = field(default_factory=list)
    _pairs: int = 0

    def add(self, rows: RowColumns, random_label: int) -> None:
        """Adds the rows of a row group. ``random_label`` marks the pairs that should be random."""
        documents = _hashes(rows.keys)
        grams, gram_row, in_b = _sampled_grams(rows)
        random = rows.next_label == random_label
        candidate = in_b & random[gram_row]
        self._known.append(draws(documents[gram_row[~candidate]], grams[~candidate]))
        number = np.cumsum(random) - 1 + self._pairs
        self._candidates.append((grams[candidate], number[gram_row[candidate]]))
        self._documents.append(documents[random])
        self._languages.append(_hashes(rows.languages.cast(pa.string()))[random])
        self._pairs += int(random.sum())

    def excess(self) -> tuple[int, int]:
        """Random pairs from one document minus those expected by chance, and the number of judged pairs."""
        if self._pairs == 0:
            return 0, 0
        known_grams = distinct_values(np.concatenate(self._known))
        grams = np.concatenate([grams for grams, _ in self._candidates])
        pair = np.concatenate([pair for _, pair in self._candidates])
        documents, languages = np.concatenate(self._documents), np.concatenate(self._languages)
        judged = np.bincount(pair, minlength=self._pairs) >= _MIN_GRAMS
        others = _other_documents(documents, languages)
        own = _belongs(known_grams, grams, pair, documents) & judged
        by_chance = _belongs(known_grams, grams, pair, others) & judged & (others != documents)
        return int(own.sum()) - int(by_chance.sum()), int(judged.sum())


def _hashes(texts: pa.Array) -> U64:
    encoded = texts.dictionary_encode()
    distinct = np.array([key_from_text(text) for text in encoded.dictionary.to_pylist()], dtype=np.uint64)
    hashes: U64 = distinct[np.asarray(encoded.indices)]
    return hashes


def _sampled_grams(rows: RowColumns) -> tuple[U64, I64, Flags]:
    """Hashes of the sampled n-grams inside segments, their rows, and whether they are in segment B."""
    ids = rows.originals()
    count = ids.size - _GRAM_TOKENS + 1
    if count <= 0:
        nothing = np.zeros(0, np.int64)
        return nothing.astype(np.uint64), nothing, nothing.astype(np.bool_)
    grams = draws(*(ids[shift : shift + count] for shift in range(_GRAM_TOKENS)))
    row = np.repeat(np.arange(rows.sizes.size), rows.sizes)[:count]
    place = np.arange(count) - rows.offsets[row]
    in_b = place >= rows.a_length[row]
    end = np.where(in_b, rows.sizes[row], rows.a_length[row]) - 1
    sampled = (place > 0) & (place + _GRAM_TOKENS <= end) & (grams % _SAMPLE == 0)
    return grams[sampled], row[sampled], in_b[sampled]


def _belongs(known_grams: U64, grams: U64, pair: I64, documents: U64) -> Flags:
    """[pairs] whether the document given for a pair has at least half of the pair's n-grams."""
    hit = are_among(draws(documents[pair], grams), known_grams)
    hits = np.bincount(pair, weights=hit, minlength=documents.size)
    return 2 * hits >= np.maximum(np.bincount(pair, minlength=documents.size), 1)


def _other_documents(documents: U64, languages: U64) -> U64:
    """For each pair, a document of another pair of the same language, or its own if there is no other."""
    order = np.lexsort((documents, languages))
    ordered = documents[order]
    _, starts, counts = np.unique(languages[order], return_index=True, return_counts=True)
    place = np.arange(order.size)
    start, size = np.repeat(starts, counts), np.repeat(counts, counts)
    other = np.empty_like(documents)
    # Half of the documents further on. This is another document unless one document has half of all pairs.
    other[order] = ordered[start + (place - start + size // 2) % size]
    return other
