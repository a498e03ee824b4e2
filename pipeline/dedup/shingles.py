"""Hashes runs of words to 64 bits, to find near duplicates and contamination.

Words are lowercased and lose punctuation and Latin, Greek and Cyrillic diacritics. In scripts without spaces
every character counts as a word. NumPy processes whole batches.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.wordpiece.basic_tokenization import SLICE_BYTES, Spans, chunks, word_spans
from pipeline.wordpiece.character_table import prose_table
from schemas.arrays import I64, U64, Flags
from schemas.randomness import draws

SHINGLE_WORDS = 5
_SEED = 0x5EED
# Odd multipliers of the two polynomial hashes, over the letters of a word and the words of a run.
_LETTER_BASE = 0x9E3779B97F4A7C15
_WORD_BASE = 0xD1342543DE82EF95
_INVERSE_BASE = pow(_LETTER_BASE, -1, 1 << 64)
# After this many letters of a word the powers start again.
_PERIOD = 4096
# Code points whose hashes are cached: the basic plane.
_COMMON = 1 << 16


@dataclass(frozen=True)
class HashedWords:
    """The words of consecutive documents as hashes. Document d has words offsets[d] to offsets[d + 1]."""

    hashes: U64
    # Characters of scripts without spaces between words, and ideographs.
    is_sign: Flags
    offsets: I64


def hashed_words(sentences: pa.Array, sentence_offsets: I64) -> HashedWords:
    """Hashes the words of documents. Document d has sentences sentence_offsets[d] to [d + 1]."""
    hashes, signs = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]
    ends = [np.zeros(1, np.int64)]
    for part in chunks(sentences, SLICE_BYTES):
        spans = word_spans(part, prose_table())
        hashes.append(_word_hashes(spans))
        signs.append(spans.is_char)
        ends.append(spans.sentence_offsets[1:] + ends[-1][-1])
    return HashedWords(np.concatenate(hashes), np.concatenate(signs), np.concatenate(ends)[sentence_offsets])


def _word_hashes(spans: Spans) -> U64:
    """The hash of each word, drawn from the sum of (hash of a letter) * base^(place of the letter).

    Multiplies each letter of the slice by base^(its place in the slice) and takes the running sum. The
    difference of this sum between the start of a word and that of the next is the word's sum times
    base^(start of the word). The base is odd, so it has an inverse modulo 2^64.
    """
    starts, count = spans.starts, len(spans.codes)
    if not len(starts):
        return np.zeros(0, np.uint64)
    sums = _letter_hashes(spans.codes)
    with np.errstate(over="ignore"):
        sums *= _powers(_LETTER_BASE, count)
        np.cumsum(sums, out=sums)
        # NULs precede the first word and separate words. They add nothing.
        until = sums.take(np.append(starts[1:], count) - 1)
        words = np.diff(until, prepend=np.uint64(0))
        words *= _powers(_INVERSE_BASE, count).take(starts)
    sizes = np.diff(starts, append=count)
    for word in np.flatnonzero(sizes > _PERIOD).tolist():
        words[word] = _long_sum(spans.codes[starts[word] : starts[word] + sizes[word]])
    return draws(_SEED, words)


def _long_sum(codes: npt.NDArray[np.uint32]) -> np.uint64:
    """The sum of one word. Its places start again at 0 after _PERIOD letters."""
    factors = powers(_LETTER_BASE)[np.arange(len(codes)) % _PERIOD]
    with np.errstate(over="ignore"):
        return np.uint64((_letter_hashes(codes) * factors).sum())


def _letter_hashes(codes: npt.NDArray[np.uint32]) -> U64:
    """draws(_SEED, code) of each code point, from a table for common ones. 0 for NUL."""
    hashes = _common_letters().take(codes.astype(np.intp), mode="clip")
    if codes.max() >= _COMMON:
        rare = np.flatnonzero(codes >= _COMMON)
        hashes[rare] = draws(_SEED, codes[rare].astype(np.uint64))
    return hashes


@lru_cache(maxsize=1)
def _common_letters() -> U64:
    hashes = draws(_SEED, np.arange(_COMMON))
    hashes[0] = 0
    return hashes


def powers(base: int) -> U64:
    """base^0, base^1, ... base^4095 modulo 2^64."""
    return _powers(base, _PERIOD)


def _powers(base: int, count: int) -> U64:
    """The first ``count`` powers. Caches those for a slice of text."""
    return _slice_powers(base)[:count] if count <= SLICE_BYTES else _make_powers(base, count)


@lru_cache(maxsize=3)
def _slice_powers(base: int) -> U64:
    return _make_powers(base, SLICE_BYTES)


def _make_powers(base: int, count: int) -> U64:
    table = np.full(count, base, np.uint64)
    table[0] = 1
    return np.cumprod(table, dtype=np.uint64)


def word_runs(words: HashedWords, length: int) -> tuple[U64, I64]:
    """The hash of every run of ``length`` words inside a document, and the index of its first word."""
    count = len(words.hashes) - length + 1
    if count <= 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    total = words.hashes[:count].copy()
    with np.errstate(over="ignore"):
        for number in range(1, length):
            total *= np.uint64(_WORD_BASE)
            total += words.hashes[number : number + count]
    # A run that starts fewer than ``length`` words before a document's end extends beyond it.
    inside = np.ones(count, bool)
    beyond = words.offsets[1:, None] - np.arange(1, length)
    inside[beyond[(beyond >= 0) & (beyond < count)]] = False
    return draws(_SEED + length, np.compress(inside, total)), np.flatnonzero(inside)


def shingles(words: HashedWords) -> tuple[U64, I64]:
    """The runs of five words of each document in order, and the offsets of the documents.

    A document of one to four words is one shingle.
    """
    hashes, _ = word_runs(words, SHINGLE_WORDS)
    sizes = np.diff(words.offsets)
    counts = np.maximum(sizes - SHINGLE_WORDS + 1, sizes > 0)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    short = np.flatnonzero((sizes > 0) & (sizes < SHINGLE_WORDS))
    if len(short):
        whole = np.array([_whole(words, document) for document in short.tolist()], np.uint64)
        # Positions of the short documents among the runs, which do not include them.
        hashes = np.insert(hashes, offsets[short] - np.arange(len(short)), whole)
    return hashes, offsets


def _whole(words: HashedWords, document: int) -> int:
    run = words.hashes[words.offsets[document] : words.offsets[document + 1]]
    total = 0
    for value in run.tolist():
        total = (total * _WORD_BASE + value) & 0xFFFFFFFFFFFFFFFF
    return int(draws(_SEED + len(run), total))
