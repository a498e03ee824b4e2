"""Facts about writing systems as ranges of code points (Unicode block boundaries).

schemas.scripts lists the scripts without spaces between words, since masking needs them too.
"""

import unicodedata
from functools import cache

# Scripts with hundreds or thousands of signs: ideographs, and syllables with one character each.
_LARGE_INVENTORY = (
    (0x1100, 0x11FF),  # Hangul jamo, including many archaic ones
    (0x2E80, 0x2FDF),  # radicals
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xAC00, 0xD7FF),  # Hangul syllables
    (0xF900, 0xFAFF),
    (0x12000, 0x1254F),  # cuneiform
    (0x13000, 0x1467F),  # hieroglyphs
    (0x16800, 0x16A3F),  # Bamum supplement
    (0x17000, 0x18DFF),  # Tangut, Khitan
    (0x1B170, 0x1B2FF),  # Nushu
    (0x20000, 0x323AF),
)


def _inside(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def has_vowel_signs(char: str) -> bool:
    """Whether the script's vowels (or voiced consonants) lose their marks when accents are stripped."""
    return 0x0900 <= ord(char) <= 0x109F or 0x1780 <= ord(char) <= 0x17FF or 0x3040 <= ord(char) <= 0x30FF


def has_large_inventory(char: str) -> bool:
    """Whether the character is an ideograph or one of a syllabary of hundreds of signs."""
    return _inside(ord(char), _LARGE_INVENTORY)


@cache
def is_mark(char: str) -> bool:
    """Whether the character is a combining mark (a vowel sign, a tone mark, an accent)."""
    return unicodedata.category(char).startswith("M")


@cache
def alphabet_of(char: str) -> str | None:
    """The script of a letter, mark or digit, from the first word of its Unicode name. None for others.

    This suffices to distinguish alphabets. Characters of large inventories belong to no alphabet here.
    """
    if has_large_inventory(char) or unicodedata.category(char)[0] not in "LMN":
        return None
    return unicodedata.name(char, f"BLOCK-{ord(char) >> 8:X}").split(maxsplit=1)[0]
