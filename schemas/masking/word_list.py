"""Finds the words of scripts without spaces with a word list, so that masking covers whole words.

Thai, Lao, Khmer, Japanese and Chinese text has no visible word boundaries: a run of ``##`` pieces may be a
sentence, and Chinese has one piece for each character. By default the masking rule treats each such piece
as a word. With a word list, pieces that spell a listed word form one word. Matching goes from left to right
and prefers the longest word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.arrays import I64, U64, Flags
from schemas.masking.targets import Ids, Offsets
from schemas.randomness import draws, key_from_text
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION, SPECIAL_TOKENS

# Maximum number of pieces of a listed word.
MAX_PIECES = 12


@dataclass(frozen=True)
class WordList:
    """A `schemas.masking.targets.Segmenter`: decides which subwords join the previous one."""

    continuation: Flags
    """[V] pieces that continue a word of a script with spaces."""
    spaceless: Flags
    """[V] pieces of a script without spaces."""
    number: U64
    """[V] hash of the piece's text, the same with and without ``##``."""
    words: U64
    """Sorted hashes of all ways to spell the listed words in pieces."""

    @classmethod
    def from_pieces(cls, pieces: Sequence[str], words: Iterable[str]) -> "WordList":
        """The listed words that the vocabulary can spell."""
        plain = [piece if piece in SPECIAL_TOKENS else piece.removeprefix(CONTINUATION) for piece in pieces]
        spaceless = np.array([piece not in SPECIAL_TOKENS and lacks_spaces(piece) for piece in plain])
        joined = np.array([piece.startswith(CONTINUATION) and len(piece) > 2 for piece in pieces])
        number = np.array([key_from_text(piece) for piece in plain], dtype=np.uint64)
        known = {piece for piece, flag in zip(plain, spaceless, strict=True) if flag}
        hashes = {_hash(cut) for word in words for cut in _cuts(word, known) if len(cut) > 1}
        return cls(joined & ~spaceless, spaceless, number, np.array(sorted(hashes), dtype=np.uint64))

    def __call__(self, ids: Ids, offsets: Offsets) -> Flags:
        """[T] true where a piece belongs to the word of the piece before it."""
        joins = self.continuation[ids]
        size = self._word_sizes(ids, offsets)
        if size is not None:
            joins |= _inside_words(size)
        return joins

    def _word_sizes(self, ids: Ids, offsets: Offsets) -> I64 | None:
        """[T] number of pieces of the longest listed word that starts at each piece, or None."""
        spaceless = self.spaceless[ids]
        if self.words.size == 0 or not spaceless.any():
            return None
        # For each piece, the number of consecutive pieces of such scripts from it to the end of its row.
        end = spaceless.copy()
        end[:-1] &= spaceless[1:]
        end[offsets[1:] - 1] = False
        stops = np.flatnonzero(~end) + 1
        room = stops[np.searchsorted(stops, np.arange(ids.size), side="right")] - np.arange(ids.size)
        room[~spaceless] = 0
        size = np.ones(ids.size, np.int64)
        numbers = self.number[ids]
        begin = np.flatnonzero(room >= 2)
        summed = draws(numbers[begin])
        for count in range(2, MAX_PIECES + 1):
            fits = room[begin] >= count
            begin, summed = begin[fits], summed[fits]
            if begin.size == 0:
                break
            summed = draws(summed, numbers[begin + count - 1])
            size[begin[np.isin(summed, self.words)]] = count
        return size


def parse_words(raw: bytes) -> list[str]:
    """The words of a UTF-8 text file with one word on each line."""
    return [line.strip() for line in raw.decode("utf-8").splitlines() if line.strip()]


def _hash(cut: tuple[str, ...]) -> int:
    summed = draws(np.array(key_from_text(cut[0]), dtype=np.uint64))
    for piece in cut[1:]:
        summed = draws(summed, np.array(key_from_text(piece), dtype=np.uint64))
    return int(summed)


def _cuts(word: str, known: set[str]) -> list[tuple[str, ...]]:
    """The first 64 ways to spell the word in at most MAX_PIECES known pieces."""
    cuts: list[tuple[str, ...]] = []
    open_cuts: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while open_cuts and len(cuts) < 64:
        pieces, at = open_cuts.pop()
        if at == len(word):
            cuts.append(pieces)
        elif len(pieces) < MAX_PIECES:
            ends = range(at + 1, len(word) + 1)
            open_cuts += [((*pieces, word[at:end]), end) for end in ends if word[at:end] in known]
    return cuts


def _inside_words(size: I64) -> Flags:
    """[T] true inside the words, from left to right, except at their first pieces."""
    inside = np.zeros(size.size, np.bool_)
    place, steps = 0, size.tolist()
    for start in np.flatnonzero(size > 1).tolist():
        if start >= place:
            place = start + steps[start]
            inside[start + 1 : place] = True
    return inside
