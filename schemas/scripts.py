"""Scripts without spaces between words, as ranges of code points (Unicode blocks)."""

from functools import cache

# Han is included for the ideographs that BERT's basic tokenizer does not isolate.
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


def without_spaces_pattern() -> str:
    """A regular expression (RE2) for one character of a script without spaces between words."""
    return "[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in _WITHOUT_SPACES) + "]"


def codes_without_spaces() -> list[int]:
    """The code points of the scripts without spaces between words."""
    return [code for low, high in _WITHOUT_SPACES for code in range(low, high + 1)]


@cache
def _in_script_without_spaces(char: str) -> bool:
    code = ord(char)
    return any(low <= code <= high for low, high in _WITHOUT_SPACES)


def lacks_spaces(word: str) -> bool:
    """Whether at least half of the characters belong to scripts without spaces between words."""
    return 2 * sum(map(_in_script_without_spaces, word)) >= len(word)
