"""Applies canonical composition (NFC) to arrays of code points, only where the text is not in NFC."""

import unicodedata
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.arrays import I64

# uint8 for ASCII text, else uint32.
Codes = npt.NDArray[Any]

CODE_POINTS = 0x110000
# NFC may reorder the character (COMBINES), or may change it or the character before it (COMPOSES).
COMBINES, COMPOSES = 0x40, 0x80
_CODE_BITS, _CODE_MASK = 21, 0x1FFFFF


def places_to_compose(text: str, codes: Codes, suspects: I64) -> I64:
    """The suspect positions at which the text is not in NFC.

    This depends on the characters between a position and the last starter before it. These are mostly one or
    two characters, so distinct pairs are tested first, then triples, and longer runs of marks individually.
    """
    changing = [suspects[:0]]
    for length in (2, 3):
        packed = codes[suspects].astype(np.int64)
        for back in range(1, length):
            before = np.where(suspects >= back, codes[suspects - back], ord(" ")).astype(np.int64)
            packed |= before << (_CODE_BITS * back)
        distinct, which = np.unique(packed, return_inverse=True)
        answers = [_run_changes(run, length) for run in distinct.tolist()]
        changing.append(suspects[np.array([answer is True for answer in answers], bool)[which]])
        suspects = suspects[np.array([answer is None for answer in answers], bool)[which]]
    runs = [place for place in suspects.tolist() if not _is_composed(text, place)]
    return np.concatenate((*changing, np.array(runs, np.int64)))


@cache
def _run_changes(packed: int, length: int) -> bool | None:
    """Whether NFC changes these characters, or None if they do not start with a starter."""
    codes = [packed >> (_CODE_BITS * back) & _CODE_MASK for back in reversed(range(length))]
    if unicodedata.combining(chr(codes[0])):
        return None
    return not unicodedata.is_normalized("NFC", "".join(map(chr, codes)))


def _is_composed(text: str, place: int) -> bool:
    begin = place
    while begin and unicodedata.combining(text[begin - 1]):
        begin -= 1
    return unicodedata.is_normalized("NFC", text[max(begin - 1, 0) : place + 1])


def compose_at(text: str, bounds: I64, places: I64) -> tuple[Codes, I64]:
    """The text in NFC. Normalizes only the sentences with these positions, which is much faster."""
    lengths = np.diff(bounds)
    parts, done = [], 0
    for number in np.unique(np.searchsorted(bounds, places, side="right") - 1).tolist():
        begin, end = int(bounds[number]), int(bounds[number + 1])
        composed = unicodedata.normalize("NFC", text[begin:end])
        lengths[number] = len(composed)
        parts += [text[done:begin], composed]
        done = end
    whole = "".join([*parts, text[done:]])
    moved = np.concatenate(([0], np.cumsum(lengths)))
    return np.frombuffer(whole.encode("utf-32-le"), np.uint32), moved


@cache
def composition_hints() -> npt.NDArray[np.uint8]:
    """Which code points NFC may change, alone or after another one, or may reorder."""
    hints = np.zeros(CODE_POINTS, np.uint8)
    # The vowels and final consonants of Hangul compose by arithmetic, not by table.
    hints[0x1161:0x1176] = hints[0x11A8:0x11C3] = COMPOSES
    for code in range(0x30000):
        char = chr(code)
        parts = unicodedata.decomposition(char).split()
        if unicodedata.combining(char) and not hints[code]:
            hints[code] = COMBINES
        if not parts or parts[0].startswith("<"):
            continue
        if len(parts) == 2:
            hints[int(parts[1], 16)] = COMPOSES
        if unicodedata.normalize("NFC", char) != char:
            hints[code] = COMPOSES
    return hints
