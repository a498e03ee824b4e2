"""Words of scripts without spaces, found in rows of pieces by a list, so that they are masked whole.

Thai, Lao, Khmer, Japanese or Chinese text has no word boundaries to see: a run of ``##`` pieces may be
a sentence, and Chinese has one piece a character. By itself each such piece is a word of its own to the
masking rule. With a list of words, pieces that spell one of them, the longest first from left to right,
are one word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.masking import Flags, Ids, Offsets
from schemas.randomness import U64, draws, key_from_text
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION, SPECIAL_TOKENS

# Pieces that a listed word may consist of at most.
MAX_PIECES = 12


@dataclass(frozen=True)
class WordList:
    """A `schemas.masking.Segmenter`: says which pieces of a row join the piece before them."""

    continuation: Flags
    """[V] pieces that continue a word of a script with spaces."""
    spaceless: Flags
    """[V] pieces of a script without."""
    number: U64
    """[V] what the piece spells, as a number: equal for a piece with and without ``##``."""
    words: U64
    """Hashes of the numbers of the pieces of listed words, sorted, for all ways to cut them up."""

    @classmethod
    def from_pieces(cls, pieces: Sequence[str], words: Iterable[str]) -> "WordList":
        """The words of the list that the vocabulary can spell."""
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

    def _word_sizes(self, ids: Ids, offsets: Offsets) -> npt.NDArray[np.int64] | None:
        """[T] pieces of the longest listed word that begins at each piece; None if there is no word."""
        spaceless = self.spaceless[ids]
        if self.words.size == 0 or not spaceless.any():
            return None
        # How many pieces from here on are of such scripts, within the row.
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
    """All ways to put the word together from known pieces, MAX_PIECES at most, the first 64."""
    found: list[tuple[str, ...]] = []
    open_cuts: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while open_cuts and len(found) < 64:
        pieces, at = open_cuts.pop()
        if at == len(word):
            found.append(pieces)
        elif len(pieces) < MAX_PIECES:
            ends = range(at + 1, len(word) + 1)
            open_cuts += [((*pieces, word[at:end]), end) for end in ends if word[at:end] in known]
    return found


def _inside_words(size: npt.NDArray[np.int64]) -> Flags:
    """[T] true inside the words met on the way from left to right, but for their first pieces."""
    inside = np.zeros(size.size, np.bool_)
    place, steps = 0, size.tolist()
    for start in np.flatnonzero(size > 1).tolist():
        if start >= place:
            place = start + steps[start]
            inside[start + 1 : place] = True
    return inside
