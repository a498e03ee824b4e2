"""Chooses the single characters of a vocabulary, so that every script keeps its letters."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.text import scripts
from pipeline.wordpiece.basic_tokenization import code_points
from schemas.errors import ConfigError
from schemas.vocabulary import CONTINUATION

# Share of an alphabet's letters that must have a subword.
_ALPHABET_COVERAGE = 0.99999
# Share of the free slots that rare letters and ideographs may fill.
_ALPHABET_SHARE = 0.5
# Words per batch, for bounded memory.
_WORDS_AT_ONCE = 100_000
_CODE_POINTS = 0x110000


class VocabularyError(ConfigError):
    """These words cannot make a vocabulary of the requested size."""


@dataclass(frozen=True)
class Alphabet:
    """The single characters of a vocabulary, as subwords that start or continue a word."""

    pieces: list[str]
    # The omitted characters with their counts, most frequent first, and their possible forms.
    rest: list[tuple[str, int]]
    rest_forms: dict[str, list[str]]
    total: int

    @property
    def left_out_share(self) -> float:
        """Share of all characters of the text without a subword."""
        return sum(count for _, count in self.rest) / max(self.total, 1)

    def widened(self, places: int) -> "Alphabet":
        """An alphabet with the most frequent omitted characters that fit into ``places`` more slots."""
        pieces, added = list(self.pieces), 0
        for char, _ in self.rest:
            forms = self.rest_forms[char]
            if len(forms) > places:
                break
            pieces += forms
            places -= len(forms)
            added += 1
        return Alphabet(sorted(pieces, key=_piece_order), self.rest[added:], self.rest_forms, self.total)

    def covers(self, words: pa.StringArray) -> npt.NDArray[np.bool_]:
        """[words] whether the alphabet has all characters of each word."""
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
    """Chooses the characters of these WORD_COUNTS that become subwords.

    1. Of every alphabet that occurs (Latin, Devanagari, Thai ...), the most frequent letters that make up
       99.999% of its letters, always. A letter that continues words also becomes an inner subword.
    2. All other characters (rarer letters, ideographs, syllables, signs), most frequent first, until the
       alphabet fills half of the free slots.

    Code points break ties between equal counts. Raises VocabularyError when rule 1 alone does not fit.
    """
    char_counts, inner = _count_characters(words)
    needed = _letters_needed(char_counts)
    # A letter may start a word in other text even if it does not here. A character that is always a word by
    # itself never continues one.
    forms = {char: [char, CONTINUATION + char] if char in inner else [char] for char in char_counts}
    pieces = [piece for char in needed for piece in forms[char]]
    if len(pieces) > free:
        raise VocabularyError(
            f"vocabulary.size {size}: the alphabets of these texts alone need {len(pieces)} subwords, but "
            f"only {max(free, 0)} are left besides the special tokens and unused slots"
        )
    chosen = set(needed)
    rest = sorted(
        ((c, n) for c, n in char_counts.items() if c not in chosen), key=lambda item: (-item[1], item[0])
    )
    places = max(int(free * _ALPHABET_SHARE) - len(pieces), 0)
    return Alphabet(sorted(pieces, key=_piece_order), rest, forms, char_counts.total()).widened(places)


def _count_characters(words: pa.Table) -> tuple[Counter[str], set[str]]:
    """The count of each character, and the characters that occur inside a word."""
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
    char_counts = Counter({chr(code): int(total[code]) for code in seen})
    return char_counts, {chr(code) for code in np.flatnonzero(inside).tolist()}


def _goes_on(piece: str) -> bool:
    """Whether the subword is a single character inside a word."""
    return len(piece) == len(CONTINUATION) + 1 and piece.startswith(CONTINUATION)


def _piece_order(piece: str) -> tuple[bool, str]:
    """A sort key: first the subwords that start a word, then the others, each by code point."""
    return piece.startswith(CONTINUATION) and piece != CONTINUATION, piece


def _letters_needed(char_counts: Counter[str]) -> list[str]:
    alphabets: dict[str, list[str]] = {}
    for char in sorted(char_counts, key=lambda char: (-char_counts[char], char)):
        name = scripts.alphabet_of(char)
        if name is not None:
            alphabets.setdefault(name, []).append(char)
    needed = []
    for chars in alphabets.values():
        enough = _ALPHABET_COVERAGE * sum(char_counts[char] for char in chars)
        covered = 0
        for char in chars:
            if covered >= enough:
                break
            needed.append(char)
            covered += char_counts[char]
    return needed
