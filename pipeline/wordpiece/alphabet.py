"""Which single characters a vocabulary holds, so that every script keeps its letters."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import scripts
from pipeline.wordpiece.basic_tokenization import code_points
from schemas.errors import ConfigError
from schemas.vocabulary import CONTINUATION

# Letters of an alphabet that are rarer than this among its letters may be left out.
_ALPHABET_COVERAGE = 0.99999
# Rare letters and ideographs may fill this share of the vocabulary.
_ALPHABET_SHARE = 0.5
# Words that are worked on at a time, for bounded memory.
_WORDS_AT_ONCE = 100_000
_CODE_POINTS = 0x110000


class VocabularyError(ConfigError):
    """No vocabulary of the size asked for can be made of these words."""


@dataclass(frozen=True)
class Alphabet:
    """The single characters of a vocabulary, as pieces that open a word and that go on in one."""

    pieces: list[str]
    # The characters left out with their counts, the most frequent first, and the forms they would have.
    rest: list[tuple[str, int]]
    rest_forms: dict[str, list[str]]
    total: int

    @property
    def left_out_share(self) -> float:
        """The share of all characters of the text that have no piece."""
        return sum(count for _, count in self.rest) / max(self.total, 1)

    def widened(self, places: int) -> "Alphabet":
        """With the most frequent of the rest that fit in so many places."""
        pieces, taken = list(self.pieces), 0
        for char, _ in self.rest:
            forms = self.rest_forms[char]
            if len(forms) > places:
                break
            pieces += forms
            places -= len(forms)
            taken += 1
        return Alphabet(sorted(pieces, key=_piece_order), self.rest[taken:], self.rest_forms, self.total)

    def covers(self, words: pa.StringArray) -> npt.NDArray[np.bool_]:
        """Which of the words can be written with these pieces."""
        opening, inner = np.zeros((2, _CODE_POINTS), bool)
        opening[[ord(piece) for piece in self.pieces if len(piece) == 1]] = True
        inner[[ord(piece[-1]) for piece in self.pieces if _goes_on(piece)]] = True
        _, codes, bounds = code_points(words)
        covered = inner[codes]
        filled = bounds[:-1] < bounds[1:]
        firsts = bounds[:-1][filled]
        covered[firsts] = opening[codes[firsts]]
        missing = np.zeros(len(codes) + 1, np.int64)
        np.cumsum(~covered, out=missing[1:])
        flags: npt.NDArray[np.bool_] = filled & (missing[bounds[:-1]] == missing[bounds[1:]])
        return flags


def choose_alphabet(words: pa.Table, free: int, size: int) -> Alphabet:
    """Which characters of these WORD_COUNTS become pieces of their own.

    1. Of every alphabet that occurs (Latin, Devanagari, Thai, ...), the most frequent letters that
       make up 99.999 % of its letters, always, both as opening and as inner piece where words go on.
    2. All other characters (rarer letters, ideographs, syllables, signs), the most frequent first,
       while the alphabet fills no more than half of the free places.

    Equal counts are settled by code point. Raises VocabularyError when rule 1 alone does not fit.
    """
    both, inner = _count_characters(words)
    needed = _letters_needed(both)
    # A letter may open a word later even if it never did here; a sign that stands alone stays so.
    forms = {char: [char, CONTINUATION + char] if char in inner else [char] for char in both}
    pieces = [piece for char in needed for piece in forms[char]]
    if len(pieces) > free:
        raise VocabularyError(
            f"vocabulary.size {size}: the alphabets of these texts alone need {len(pieces)} pieces, "
            f"and {max(free, 0)} are left beside the special tokens and unused slots"
        )
    chosen = set(needed)
    rest = sorted(((c, n) for c, n in both.items() if c not in chosen), key=lambda item: (-item[1], item[0]))
    places = max(int(free * _ALPHABET_SHARE) - len(pieces), 0)
    return Alphabet(sorted(pieces, key=_piece_order), rest, forms, both.total()).widened(places)


def _count_characters(words: pa.Table) -> tuple[Counter[str], set[str]]:
    """How often each character occurs, and which ones occur inside a word."""
    total = np.zeros(_CODE_POINTS, np.int64)
    inside = np.zeros(_CODE_POINTS, bool)
    for batch in words.to_batches(_WORDS_AT_ONCE):
        _, codes, bounds = code_points(batch["word"])
        lengths = np.diff(bounds)
        np.add.at(total, codes, np.repeat(batch["count"].to_numpy(), lengths))
        inner = np.ones(len(codes), bool)
        inner[bounds[:-1][lengths > 0]] = False
        inside[codes[inner]] = True
    seen = np.flatnonzero(total).tolist()
    both = Counter({chr(code): int(total[code]) for code in seen})
    return both, {chr(code) for code in np.flatnonzero(inside).tolist()}


def _goes_on(piece: str) -> bool:
    """Whether it is a single character inside a word."""
    return len(piece) == len(CONTINUATION) + 1 and piece.startswith(CONTINUATION)


def _piece_order(piece: str) -> tuple[bool, str]:
    """Opening pieces first, each kind by code point."""
    return piece.startswith(CONTINUATION) and piece != CONTINUATION, piece


def _letters_needed(both: Counter[str]) -> list[str]:
    alphabets: dict[str, list[str]] = {}
    for char in sorted(both, key=lambda char: (-both[char], char)):
        name = scripts.alphabet_of(char)
        if name is not None:
            alphabets.setdefault(name, []).append(char)
    needed = []
    for chars in alphabets.values():
        enough = _ALPHABET_COVERAGE * sum(both[char] for char in chars)
        covered = 0
        for char in chars:
            if covered >= enough:
                break
            needed.append(char)
            covered += both[char]
    return needed
