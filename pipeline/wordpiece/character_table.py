"""Tables of what BERT's basic tokenizer does to each character, for lookups of whole texts with NumPy.

They are computed once by running BertNormalizer and BertPreTokenizer of the `tokenizers` library on every
code point. For text in NFC the results depend only on the single character.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, normalizers, pre_tokenizers

from pipeline.wordpiece.composition import (
    CODE_POINTS,
    COMBINES,
    COMPOSES,
    Codes,
    compose_at,
    composition_hints,
    places_to_compose,
)
from schemas.arrays import I64, Flags
from schemas.scripts import codes_without_spaces

Points = npt.NDArray[np.uint32]
Accents = Literal["keep", "strip", "strip_letters"]

LETTER, ALONE, SPACE, DROPPED, LONGER = range(5)
# The bits of the class. The other two bits are hints for NFC.
_CLASS_BITS = 0x3F
# A Runic letter that folds to itself and that no other character folds to. It separates the results.
_SENTINEL = "\u16a0"
# Planes 4 to 13 have no characters. They behave like letters.
_PLANES = (0, 1, 2, 3, 14, 15, 16)
# Combining diacritical marks for Latin, Greek and Cyrillic. Marks of other scripts are letters.
_LETTER_MARKS = "[\u0300-\u036f\u0483-\u0487\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"


def default_accents(cased: bool) -> Accents:
    """BERT's rule: cased text keeps accents, uncased text loses them."""
    return "keep" if cased else "strip"


def normalizer_for(cased: bool, accents: Accents) -> Any:
    """The `tokenizers` normalizer for these rules, as in tokenizer.json.

    ``strip`` removes every non-spacing mark, as BERT's uncased models do, which costs Devanagari, Thai and
    others their vowel signs. ``strip_letters`` removes only the diacritics of Latin, Greek and Cyrillic.
    """
    if accents != "strip_letters":
        bert = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=accents == "strip", lowercase=not cased
        )
        return normalizers.Sequence([normalizers.NFC(), bert])
    bert = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    steps = [normalizers.NFC(), bert, normalizers.NFD()]
    steps += [normalizers.Replace(Regex(_LETTER_MARKS), ""), normalizers.NFC()]
    return normalizers.Sequence(steps if cased else [*steps, normalizers.Lowercase()])


@dataclass(frozen=True)
class CharacterTable:
    """The class of each code point with hints for NFC, and the character that it folds to."""

    kind: npt.NDArray[np.uint8]
    # None when no character changes. A character that becomes several letters (class LONGER) has CODE_POINTS
    # plus the number of its entry in longer_counts and in longer_letters (its first letter, its second ...).
    folded: npt.NDArray[np.uint32] | None
    longer_counts: npt.NDArray[np.uint8]
    longer_letters: list[npt.NDArray[np.uint32]]

    def apply(self, text: str, codes: Codes, bounds: I64) -> tuple[Codes, npt.NDArray[np.uint8], I64]:
        """The resulting characters of a text, their classes, and the offsets of its sentences."""
        places = codes.astype(np.intp)
        kinds = self.kind.take(places, mode="clip")
        hints = kinds >= COMBINES
        if hints.any():
            suspects = kinds >= COMPOSES
            suspects[1:] |= hints[1:] & hints[:-1]
            changing = places_to_compose(text, codes, np.flatnonzero(suspects))
            if len(changing):
                codes, bounds = compose_at(text, bounds, changing)
                places = codes.astype(np.intp)
                kinds = self.kind.take(places, mode="clip")
            kinds &= _CLASS_BITS
        if self.folded is not None:
            codes = self.folded.take(places, mode="clip")
            if self.longer_letters and (kinds == LONGER).any():
                codes, kinds, bounds = self._expand(codes, kinds, bounds)
        dropped = np.flatnonzero(kinds == DROPPED)
        if len(dropped):
            bounds = bounds - np.searchsorted(dropped, bounds)
            codes, kinds = _without(codes, dropped), _without(kinds, dropped)
        return codes, kinds, bounds

    def _expand(
        self, codes: Codes, kinds: npt.NDArray[np.uint8], bounds: I64
    ) -> tuple[Codes, npt.NDArray[np.uint8], I64]:
        """Replaces the LONGER characters by their letters."""
        at = np.flatnonzero(kinds == LONGER)
        entries = codes[at].astype(np.int64) - CODE_POINTS
        counts = self.longer_counts.take(entries)
        # The start of each character after the expansion, and the end of the last one.
        begins = np.ones(len(codes) + 1, np.int64)
        begins[0] = 0
        begins[at + 1] = counts
        np.cumsum(begins, out=begins)
        out, spread = np.empty(begins[-1], codes.dtype), np.full(begins[-1], LETTER, np.uint8)
        out[begins[:-1]], spread[begins[:-1]] = codes, kinds
        firsts = begins[at]
        spread[firsts] = LETTER
        for number, letters in enumerate(self.longer_letters):
            if number > 1:
                within = counts > number
                firsts, entries, counts = firsts[within], entries[within], counts[within]
            out[firsts + number] = letters.take(entries)
        return out, spread, begins[bounds]


def _without(values: npt.NDArray[Any], places: I64) -> npt.NDArray[Any]:
    """The values except those at ``places``. If these are few, copies whole ranges between them."""
    if len(places) > len(values) >> 8:
        return np.delete(values, places)
    begins = [0, *(places + 1).tolist()]
    stops = [*places.tolist(), len(values)]
    return np.concatenate([values[begin:stop] for begin, stop in zip(begins, stops, strict=True)])


@cache
def character_table(cased: bool, accents: Accents) -> CharacterTable:
    """The table for these rules. It takes a fraction of a second and is cached."""
    codes = _probe_codes()
    points, begins, ends = _normalize_each(normalizer_for(cased, accents), codes)
    unstripped = ends - begins
    begins, ends = _stripped(points, begins, ends)
    sizes = ends - begins
    kind = np.zeros(CODE_POINTS, np.uint8)
    folded = np.arange(CODE_POINTS, dtype=np.uint32)
    kind[codes[sizes == 0]] = np.where(unstripped[sizes == 0] > 0, SPACE, DROPPED)
    single = np.flatnonzero(sizes == 1)
    singles = points[begins[single]]
    folded[codes[single]] = singles
    kind[codes[single]] = np.where((unstripped[single] > 1) | _isolated(singles), ALONE, LETTER)
    longer = np.flatnonzero(sizes > 1)
    kind[codes[longer]] = LONGER
    folded[codes[longer]] = CODE_POINTS + np.arange(len(longer))
    kind |= composition_hints()
    stays = bool((folded == np.arange(CODE_POINTS)).all())
    letters = [
        np.where(place < sizes[longer], points.take(begins[longer] + place, mode="clip"), np.uint32(0))
        for place in range(int(sizes.max()) if len(longer) else 0)
    ]
    return CharacterTable(kind, None if stays else folded, sizes[longer].astype(np.uint8), letters)


def _probe_codes() -> I64:
    """All code points to process."""
    codes: I64 = np.concatenate([np.arange(plane << 16, (plane + 1) << 16) for plane in _PLANES])
    return np.compress(((codes < 0xD800) | (codes >= 0xE000)) & (codes != ord(_SENTINEL)), codes)


def _normalize_each(normalizer: Any, codes: I64) -> tuple[Points, I64, I64]:
    """The characters of all results, and the start and end of the result for each code point.

    Rows of 256 characters that NFC does not change are processed together. In most rows, all characters are
    removed, stay the same, or get spaces around them. Other rows are processed character by character.
    """
    rows = np.split(codes, np.flatnonzero(np.diff(codes >> 8)) + 1)
    hints = composition_hints()
    plain_rows = [row for row in rows if not hints[row].any()]
    sizes = np.array([len(row) for row in plain_rows])
    points, row_begins, row_ends = _normalize_runs(
        normalizer, np.concatenate(plain_rows), np.cumsum(sizes) - sizes
    )
    begins, ends = np.full((2, CODE_POINTS), -1, np.int64)
    for row, begin, end in zip(plain_rows, row_begins.tolist(), row_ends.tolist(), strict=True):
        width = _width(points[begin:end], row)
        if width is not None:
            begins[row] = begin + width * np.arange(len(row))
            ends[row] = begins[row] + width
    others = codes[begins[codes] < 0]
    more, other_begins, other_ends = _normalize_runs(normalizer, others, np.arange(len(others)))
    begins[others], ends[others] = other_begins + len(points), other_ends + len(points)
    return np.concatenate((points, more)), begins[codes], ends[codes]


def _width(answer: Points, row: I64) -> int | None:
    """The number of characters in the result for each character of the row, or None if it varies."""
    if not len(answer):
        return 0
    if np.array_equal(answer, row):
        return 1
    apart = np.full((len(row), 3), ord(" "))
    apart[:, 1] = row
    return 3 if np.array_equal(answer, apart.ravel()) else None


def _normalize_runs(normalizer: Any, codes: I64, firsts: I64) -> tuple[Points, I64, I64]:
    """The normalizer's results for runs of code points, and the start and end of each result."""
    text = np.insert(codes, firsts, ord(_SENTINEL)).astype(np.uint32)
    answered = normalizer.normalize_str(text.tobytes().decode("utf-32-le"))
    points = np.frombuffer(answered.encode("utf-32-le"), np.uint32)
    parts = np.flatnonzero(points == ord(_SENTINEL))
    return points, parts + 1, np.append(parts[1:], len(points))


def _stripped(points: Points, begins: I64, ends: I64) -> tuple[I64, I64]:
    """The ranges without the spaces at their ends."""
    spaces = np.append(points == ord(" "), False)
    while (leading := (begins < ends) & spaces[begins]).any():
        begins = begins + leading
    while (trailing := (begins < ends) & spaces[ends - 1]).any():
        ends = ends - trailing
    return begins, ends


def _isolated(points: Points) -> Flags:
    """[points] whether BERT's pre-tokenizer makes each character a separate token."""
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    met = np.zeros(CODE_POINTS, bool)
    met[points] = True
    distinct = np.flatnonzero(met).astype(np.uint32).tobytes().decode("utf-32-le")
    # The neighbors of a character that is not a token by itself are mostly of the same kind. The few others
    # are tested between letters.
    single = sorted({piece for piece, _ in split(distinct) if len(piece) == 1} - {"a"})
    pieces = {piece for piece, _ in split("a" + "a".join(single)) if len(piece) == 1} - {"a"}
    alone = np.zeros(CODE_POINTS, bool)
    alone[[ord(piece) for piece in pieces]] = True
    return alone[points]


@cache
def prose_table() -> CharacterTable:
    """The table for comparing texts: lowercase, without diacritics and punctuation.

    Each character of a script without spaces between words is a word. Characters outside words become NUL.
    """
    base = character_table(False, "strip_letters")
    classes, hints = base.kind & _CLASS_BITS, base.kind & (COMBINES | COMPOSES)
    for code in np.flatnonzero(classes == ALONE).tolist():
        if unicodedata.category(chr(code))[0] not in "LN":
            classes[code] = SPACE
    unspaced = codes_without_spaces()
    classes[unspaced] = np.where(classes[unspaced] == LETTER, ALONE, classes[unspaced])
    kind = (classes | hints).astype(np.uint8)
    folded = np.arange(CODE_POINTS, dtype=np.uint32) if base.folded is None else base.folded
    folded = np.where(classes == SPACE, np.uint32(0), folded)
    return CharacterTable(kind, folded, base.longer_counts, base.longer_letters)
