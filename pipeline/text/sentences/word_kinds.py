"""Classifies the word before a full stop by its shape, its script and the lists of its language."""

import re
import unicodedata
from enum import Enum

from pipeline.text.sentences.data import LETTER_NAMES, UNITS, sentence_words
from pipeline.text.sentences.marks import LEADING

_NUMBER = re.compile("[0-9]{1,9}|[٠-٩]{1,9}|[۰-۹]{1,9}|[०-९]{1,9}|[০-৯]{1,9}|[０-９]{1,9}")
_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_CYRILLIC_ROMAN = str.maketrans("ІХСМ", "IXCM")
_NUMBER_AND_HYPHEN = re.compile("[0-9]+-(?=[^\\W\\d_])")
_LAST_PART = re.compile("[(\\[{（［「『《〈【/—–]+")
_LAO_THAI_VOWELS = re.compile("[ะ-ฺเ-ๅ็ํະ-ຽເ-ໆໍ]")
_VOWELS = frozenset("aeiouyаеёиоуыэюяіїєўαεηιουωæøœıəɛɔაეიოუ")
_LONGEST_ABBREVIATION = 12
_MANY_WORDS = 50_000
_THAI = frozenset(["th", "nod", "sou", "tts"])
# The copulas of Sinhala and Nepali, and a verb of Pashto, which are one-letter words that end sentences.
_WORDS_OF_ONE_LETTER = frozenset("යوछ")


class WordKind(Enum):
    """What the word before a full stop is."""

    ORDINARY = "a word like any other"
    NUMBER = "digits"
    ROMAN = "a Roman numeral"
    TITLE = "an abbreviation before a name"
    ABBREVIATION = "an abbreviation"
    BEFORE_NUMBER = "an abbreviation only before a number"
    AFTER_NUMBER = "an abbreviation after a number"
    UNIT = "a unit of measure"
    INITIAL = "one letter"
    SYLLABLE = "one letter of an Indic script with its signs"
    NOTHING = "no word"


class WordKinds(dict[str, WordKind]):
    """The kinds of one language's words, by the text between a space and a full stop."""

    def __init__(self, lang: str) -> None:
        super().__init__()
        self._words = sentence_words(lang)
        self._is_thai = lang in _THAI

    def __missing__(self, written: str) -> WordKind:
        if len(self) > _MANY_WORDS:
            self.clear()
        kind = self[written] = self._kind_of(written)
        return kind

    def _kind_of(self, written: str) -> WordKind:
        parts = written.split()
        word = _LAST_PART.split(parts[-1])[-1].lstrip(LEADING) if parts else ""
        word = _NUMBER_AND_HYPHEN.sub("", word, count=1)
        if not word:
            return WordKind.ORDINARY if parts else WordKind.NOTHING
        if "/" in parts[-1] and parts[-1].lower() in UNITS:
            return WordKind.UNIT
        if len(word) > _LONGEST_ABBREVIATION:
            return WordKind.ORDINARY
        if _NUMBER.fullmatch(word):
            return WordKind.NUMBER
        return self._listed_kind(word) or self._shape(word)

    def _listed_kind(self, word: str) -> WordKind | None:
        lower = word.lower()
        if lower in self._words.titles or word in self._words.titles:
            return WordKind.TITLE
        if lower in self._words.after_numbers:
            return WordKind.AFTER_NUMBER
        if lower in self._words.abbreviations:
            return WordKind.ABBREVIATION
        if len(word) > 1 and is_roman(word):
            return WordKind.ROMAN
        if "/" in lower and all(part in UNITS for part in lower.split("/")):
            return WordKind.UNIT
        if lower in UNITS and not (len(word) == 1 and word.isupper()):
            return WordKind.UNIT
        if len(word) > 1 and lower in self._words.before_numbers:
            return WordKind.BEFORE_NUMBER
        return None

    def _shape(self, word: str) -> WordKind:
        code = ord(word[0])
        if "." in word or "-" in word:
            return WordKind.ABBREVIATION if _is_dotted(word) else WordKind.ORDINARY
        if not word[0].isalpha() or word in _WORDS_OF_ONE_LETTER:
            return WordKind.ORDINARY
        if 0x0900 <= code < 0x0E00:
            return _indic_kind(word)
        if 0x0E00 <= code < 0x0F00:
            return _thai_kind(word, self._is_thai)
        if 0x1780 <= code < 0x1800:
            return WordKind.ABBREVIATION if len(word) <= 2 else WordKind.ORDINARY
        if len(unicodedata.normalize("NFC", word)) == 1:
            return _single_letter_kind(word[0])
        return _alphabet_kind(word)


def is_roman(word: str) -> bool:
    """Whether ``word`` is a Roman numeral in capitals, or empty."""
    return _ROMAN.fullmatch(word.translate(_CYRILLIC_ROMAN)) is not None


def is_vowel(letter: str) -> bool:
    """Whether the letter, with or without an accent, is a vowel of an alphabet."""
    return unicodedata.normalize("NFD", letter)[0].lower() in _VOWELS


def count_letters(word: str) -> int:
    """The number of characters of ``word`` without vowel signs and other marks."""
    return sum(not unicodedata.category(sign).startswith("M") for sign in word)


def is_georgian(letter: str) -> bool:
    """Whether it is a Georgian letter, which is lowercase in Unicode although it may begin a sentence."""
    return "\u10d0" <= letter <= "\u10ff"


def _is_dotted(word: str) -> bool:
    """Whether the word consists of short parts with full stops between them ("U.S", "f.Kr", "พ.ศ")."""
    parts = re.split("[.-]+", word)
    if "." not in word or not parts[0]:
        return False
    return all(not part.isdigit() and count_letters(part) <= 3 for part in parts)


def _indic_kind(word: str) -> WordKind:
    """A short word may be a real word. "is" is a letter and a vowel sign in many of these languages."""
    if word in LETTER_NAMES or (len(word) == 1 and unicodedata.category(word) == "Lo"):
        return WordKind.INITIAL
    return WordKind.SYLLABLE if len(word) <= 3 and count_letters(word) == 1 else WordKind.ORDINARY


def _thai_kind(word: str, is_thai: bool) -> WordKind:
    """Thai and Lao abbreviate to consonants. Thai has words without written vowels, but no full stop."""
    if len(word) <= 4 and not _LAO_THAI_VOWELS.search(word):
        return WordKind.ABBREVIATION
    return WordKind.ABBREVIATION if is_thai and len(word) <= 2 else WordKind.ORDINARY


def _single_letter_kind(letter: str) -> WordKind:
    code = ord(letter)
    if letter.isupper() or 0x0590 <= code < 0x0800 or is_georgian(letter) or 0x1200 <= code < 0x1380:
        return WordKind.INITIAL
    if not letter.islower():
        return WordKind.ORDINARY
    return WordKind.BEFORE_NUMBER if is_vowel(letter) else WordKind.ABBREVIATION


def _alphabet_kind(word: str) -> WordKind:
    """A short word without a vowel and not in capitals can only be an abbreviation."""
    if len(word) <= 4 and word[0].islower() and not word.islower():
        return WordKind.ABBREVIATION  # "eKr"
    if len(word) > 5 or not word[1:].islower() or any(map(is_vowel, word)):
        return WordKind.ORDINARY
    if is_georgian(word[0]):
        return WordKind.ABBREVIATION
    return WordKind.TITLE if word[0].isupper() else WordKind.BEFORE_NUMBER
