"""Facts about writing systems, by ranges of code points (Unicode block boundaries).

Only two questions are asked: is the script written without spaces between words, and has it so many
signs that a vocabulary cannot be expected to hold every one of them?
"""

import unicodedata
from functools import cache

# Scripts whose words are not parted by spaces. Han is here for the ideographs that BERT's basic
# tokenizer does not isolate.
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x2FDF),  # radicals
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xA980, 0xA9FF),  # Javanese, Myanmar extended B
    (0xAA60, 0xAADF),  # Myanmar extended A, Tai Viet
    (0xF900, 0xFAFF),
    (0xFF65, 0xFF9F),  # half-width Katakana
    (0x17000, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # Kana, Nushu
    (0x20000, 0x323AF),  # Han
)

# Scripts with hundreds or thousands of signs: ideographs, and syllables that are one character each.
_LARGE_INVENTORY = (
    (0x1100, 0x11FF),  # Hangul jamo, of which the archaic ones are many
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


def without_spaces_pattern() -> str:
    """A regular expression (RE2) for one character of a script without spaces between words."""
    return "[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in _WITHOUT_SPACES) + "]"


def codes_without_spaces() -> list[int]:
    """The code points of the scripts without spaces between words."""
    return [code for low, high in _WITHOUT_SPACES for code in range(low, high + 1)]


def _inside(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


@cache
def _in_script_without_spaces(char: str) -> bool:
    return _inside(ord(char), _WITHOUT_SPACES)


def lacks_spaces(word: str) -> bool:
    """Whether at least half of the characters are of scripts that put no spaces between words."""
    return 2 * sum(map(_in_script_without_spaces, word)) >= len(word)


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
    """The script of a letter, mark or digit by the first word of its Unicode name; None for all else.

    Good enough to tell alphabets apart. Signs of large inventories belong to no alphabet here.
    """
    if has_large_inventory(char) or unicodedata.category(char)[0] not in "LMN":
        return None
    return unicodedata.name(char, f"BLOCK-{ord(char) >> 8:X}").split(maxsplit=1)[0]
