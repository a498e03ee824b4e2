"""Trains a WordPiece vocabulary from word counts, to the same bytes on every machine.

Pieces are merged pair by pair, the most frequent pair first, as in byte-pair encoding. More pieces
than wanted are made; then every word is cut the way the tokenizer cuts it, and the pieces that this
needs least (the half-words that longer pieces were made of, mostly) are taken out again.

Nothing depends on the order of the counts, on hashing or on the number of workers: words are sorted,
pieces are numbered in order of making, and equal counts are settled by those numbers. Counts are
64-bit integers throughout.

Words are kept as one flat array of symbols with links to the left and to the right, so that a merge
is a few NumPy operations on the places where the pair stands.
"""

import heapq
import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.alphabet import VocabularyError, choose_alphabet
from pipeline.wordpiece import MAX_WORD_CHARS, WordEncoder, stretches
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION, SPECIAL_TOKENS

logger = logging.getLogger(__name__)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# Enough for every word of half a gigabyte of text in 160 languages. A letter takes about 50 bytes at work.
MAX_WORDS = 3_500_000
MAX_LETTERS = 24_000_000
# How many merged pieces are made for one that stays. More (1.15) makes the whole a little shorter and rare
# scripts longer: at 1.06 no language of benchmarks/results/vocabulary.md is worse than with `tokenizers`.
_SURPLUS = 1.06
_COUNT_LIMIT = 1 << 62
# Words that are worked on at a time, for bounded memory.
_WORDS_AT_ONCE = 100_000
_PLACES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Training:
    """A trained vocabulary and what was left out on the way."""

    pieces: list[str]
    words: int
    # Distinct words left out because there were too many, and their share of all counts.
    words_pruned: int
    pruned_share: float
    words_too_long: int
    alphabet: int
    # Distinct characters that are not in the alphabet, and their share of all characters.
    characters_left_out: int
    left_out_share: float


def train_wordpiece(
    counts: Mapping[str, int],
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
) -> list[str]:
    """The pieces of a vocabulary of exactly ``size``: special tokens, unused slots, alphabet, merges.

    Raises VocabularyError when that many pieces cannot be made, the alphabets do not fit, or memory is short.
    """
    return train(counts, size, unused, max_words=max_words, max_letters=max_letters).pieces


def train(
    counts: Mapping[str, int],
    size: int,
    unused: int = 99,
    *,
    max_words: int = MAX_WORDS,
    max_letters: int = MAX_LETTERS,
    surplus: float = _SURPLUS,
) -> Training:
    """As `train_wordpiece`, with the account of what was left out."""
    try:
        return _train(counts, size, unused, max_words, max_letters, surplus)
    except MemoryError as error:
        # Never fewer words than asked for without a word: the vocabulary would depend on the machine.
        raise VocabularyError(
            f"vocabulary.max_letters {max_letters}: not enough memory for so many letters of distinct words "
            "(some 50 bytes each); lower it or give the task more memory"
        ) from error


def _train(
    counts: Mapping[str, int], size: int, unused: int, max_words: int, max_letters: int, surplus: float
) -> Training:
    opening = [*SPECIAL_TOKENS, *(f"[unused{number}]" for number in range(1, unused + 1))]
    free = size - len(opening)
    selected = _select_words(counts, max_words, max_letters)
    alphabet = choose_alphabet(counts.items(), free, size)
    usable = [(word, count) for word, count in selected.words if alphabet.covers(word)]
    wanted = free - len(alphabet.pieces)
    merges = _Merges(usable, alphabet.pieces)
    merges.run(int(wanted * surplus))
    made = merges.made()
    # Where the words are too few to fill the rest with merges, rarer characters do.
    alphabet = alphabet.widened(wanted - len(made))
    wanted = free - len(alphabet.pieces)
    if len(made) < wanted:
        most = len(opening) + len(alphabet.pieces) + len(made)
        raise VocabularyError(
            f"vocabulary.size {size}: these {len(usable)} words give {most} pieces at most; "
            f"lower the size or give more text"
        )
    kept = _drop_least_used(usable, alphabet.pieces, made, len(made) - wanted)
    training = Training(
        pieces=[*opening, *alphabet.pieces, *kept],
        words=len(usable),
        words_pruned=selected.pruned,
        pruned_share=selected.pruned_share,
        words_too_long=selected.too_long,
        alphabet=len(alphabet.pieces),
        characters_left_out=len(alphabet.rest),
        left_out_share=alphabet.left_out_share,
    )
    if alphabet.rest:
        message = "vocabulary: %d rarest characters have no piece (%.4f%% of all characters)"
        logger.warning(message, len(alphabet.rest), 100 * alphabet.left_out_share)
    logger.info("vocabulary of %d pieces from %d words", size, training.words)
    return training


# ---------------------------------------------------------------- words


@dataclass(frozen=True)
class _Selection:
    words: list[tuple[str, int]]
    pruned: int
    pruned_share: float
    too_long: int


def _select_words(counts: Mapping[str, int], max_words: int, max_letters: int) -> _Selection:
    """The most frequent words within the limits, most frequent first; equal counts by a hash."""
    total = sum(counts.values())
    if total >= _COUNT_LIMIT:
        raise VocabularyError(f"word counts add up to {total}, over 2^62")
    usable, too_long = counts, 0
    if any(len(word) > MAX_WORD_CHARS for word in counts):
        usable, too_long = _cut_long_words(counts)
    words = sorted(usable.items(), key=lambda item: (-item[1], zlib.crc32(item[0].encode()), item[0]))
    letters = np.cumsum([len(word) for word, _ in words], dtype=np.int64)
    keep = min(max_words, int(np.searchsorted(letters, max_letters, side="right")))
    pruned = words[keep:]
    share = sum(count for _, count in pruned) / total if total else 0.0
    if pruned:
        message = "vocabulary: %d rarest of %d distinct words left out (%.3f%% of all words)"
        logger.warning(message, len(pruned), len(words), 100 * share)
    return _Selection(words[:keep], len(pruned), share, too_long)


def _cut_long_words(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Long words cut as the tokenizer cuts them, and the number of those that it makes [UNK]."""
    out: Counter[str] = Counter()
    too_long = 0
    for word, count in counts.items():
        if len(word) <= MAX_WORD_CHARS:
            out[word] += count
        elif lacks_spaces(word):
            for stretch in stretches(word):
                out[stretch] += count
        else:
            too_long += 1
    return out, too_long


def _drop_least_used(
    words: list[tuple[str, int]], alphabet: list[str], made: list[str], surplus: int
) -> list[str]:
    """``made`` without the ``surplus`` pieces that cutting the words uses least, later ones first."""
    numbers = {piece: number for number, piece in enumerate(made)}
    numbers |= {piece: len(made) for piece in alphabet}
    encoder = WordEncoder(numbers, len(made))
    uses = np.zeros(len(made) + 1, np.int64)
    for begin in range(0, len(words), _WORDS_AT_ONCE):
        part = words[begin : begin + _WORDS_AT_ONCE]
        ids, offsets = encoder.encode([word for word, _ in part])
        counts = np.fromiter((count for _, count in part), np.int64, len(part))
        np.add.at(uses, ids, np.repeat(counts, np.diff(offsets)))
    ranked = np.lexsort((-np.arange(len(made)), uses[: len(made)]))
    dropped = set(ranked[:surplus].tolist())
    return [piece for number, piece in enumerate(made) if number not in dropped]


# ---------------------------------------------------------------- merges


class _Merges:
    """Merges pairs of pieces; the words live in flat arrays, linked over what was merged away."""

    def __init__(self, words: list[tuple[str, int]], alphabet: list[str]) -> None:
        self._pieces = list(alphabet)
        self._number = {piece: number for number, piece in enumerate(alphabet)}
        self._alphabet = len(alphabet)
        words = [item for item in words if len(item[0]) > 1]
        lengths = np.fromiter((len(word) for word, _ in words), np.int64, len(words))
        counts = np.fromiter((count for _, count in words), np.int64, len(words))
        places = int(lengths.sum())
        opening = {char: self._number.get(char, -1) for char in {word[0] for word, _ in words}}
        letters = {piece[2:]: n for piece, n in self._number.items() if len(piece) == 3 and piece[:2] == "##"}
        symbols = (
            number for word, _ in words for number in (opening[word[0]], *map(letters.__getitem__, word[1:]))
        )
        self._symbol = np.fromiter(symbols, np.int32, places)
        ends = np.cumsum(lengths)
        self._right = np.arange(1, places + 1, dtype=np.int32)
        self._right[ends - 1] = -1
        self._left = np.arange(-1, places - 1, dtype=np.int32)
        self._left[ends - lengths] = -1
        self._weight = np.repeat(counts, lengths)
        self._count: dict[int, int] = {}
        self._places: dict[int, list[Int32]] = {}
        self._heap: list[tuple[int, int]] = []
        for begin in range(0, places, _PLACES_AT_ONCE):
            firsts = np.flatnonzero(self._right[begin : begin + _PLACES_AT_ONCE] >= 0) + begin
            self._add_pairs(firsts.astype(np.int32))
        # Each part pushed its pairs: one entry for each is enough.
        self._heap = [(-count, key) for key, count in self._count.items()]
        heapq.heapify(self._heap)

    def _keys(self, firsts: Int32, seconds: Int32) -> Int64:
        high = self._symbol[firsts].astype(np.int64) << 32
        return high | self._symbol[seconds]

    def _add_pairs(self, firsts: Int32) -> None:
        """Counts the pairs that begin at these places."""
        keys = self._keys(firsts, self._right[firsts])
        order = np.argsort(keys, kind="stable")
        keys, firsts = keys[order], firsts[order]
        begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else keys
        if not len(begins):
            return
        sums = np.add.reduceat(self._weight[firsts], begins).tolist()
        bounds = [*begins.tolist(), len(keys)]
        for number, key in enumerate(keys[begins].tolist()):
            count = self._count.get(key, 0) + sums[number]
            self._count[key] = count
            self._places.setdefault(key, []).append(firsts[bounds[number] : bounds[number + 1]])
            heapq.heappush(self._heap, (-count, key))

    def _subtract_pairs(self, firsts: Int32, keys: Int64) -> None:
        for key, weight in zip(keys.tolist(), self._weight[firsts].tolist(), strict=True):
            # In "aaa" one of the two pairs is the merged one itself, which is no longer counted.
            if key in self._count:
                self._count[key] -= weight

    def run(self, wanted: int) -> None:
        """Merges until ``wanted`` new pieces are there or no pair is left."""
        while self._heap and len(self._pieces) - self._alphabet < wanted:
            negative, key = heapq.heappop(self._heap)
            count = self._count.get(key, 0)
            if count == -negative:
                self._merge(key)
            elif 0 < count < -negative:
                heapq.heappush(self._heap, (-count, key))

    def _merge(self, key: int) -> None:
        first, second = key >> 32, key & 0xFFFFFFFF
        firsts = self._standing(key, first, second)
        del self._count[key]
        seconds = self._right[firsts]
        before, after = self._left[firsts], self._right[seconds]
        # In "abab" the pair between two merges is the right one of the first and the left one of the
        # second: it is taken away once, as a left one.
        has_before, has_after = before >= 0, after >= 0
        own_after = has_after
        if (self._symbol[after[has_after]] == first).any():
            own_after = has_after & ~np.isin(after, firsts)
        self._subtract_pairs(firsts[has_before], self._keys(before[has_before], firsts[has_before]))
        self._subtract_pairs(seconds[own_after], self._keys(seconds[own_after], after[own_after]))
        self._symbol[firsts] = self._piece(first, second)
        self._symbol[seconds] = -1
        self._right[firsts] = after
        self._left[after[has_after]] = firsts[has_after]
        lefts = self._left[firsts]
        rights = firsts[(after >= 0) & own_after]
        self._add_pairs(np.concatenate((lefts[lefts >= 0], rights)))

    def _standing(self, key: int, first: int, second: int) -> Int32:
        """Where the pair still stands, in ascending order; without overlaps in runs like aaa."""
        places = np.concatenate(self._places.pop(key))
        places = places[self._symbol[places] == first]
        rights = self._right[places]
        places = places[(rights >= 0) & (self._symbol[rights] == second)]
        places = np.unique(places)
        if first != second:
            return places
        taken, kept = -1, []
        for place, right in zip(places.tolist(), self._right[places].tolist(), strict=True):
            if place != taken:
                kept.append(place)
                taken = right
        return np.array(kept, np.int32)

    def _piece(self, first: int, second: int) -> int:
        name = self._pieces[first] + self._pieces[second].removeprefix(CONTINUATION)
        number = self._number.setdefault(name, len(self._pieces))
        if number == len(self._pieces):
            self._pieces.append(name)
        return number

    def made(self) -> list[str]:
        """The merged pieces in order of making."""
        return self._pieces[self._alphabet :]
