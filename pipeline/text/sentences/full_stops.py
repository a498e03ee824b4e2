"""Decides whether a full stop ends a sentence from the words before and after it."""

import re

from pipeline.text.sentences.data import (
    LIST_ENDS,
    NOUNS_WITH_CAPITAL,
    NUMBER_STOP_LANGUAGES,
    ORDINAL_ARTICLES,
    ORDINAL_NOUNS,
    ORDINAL_STOP_LANGUAGES,
    REGNAL_NUMBER_LANGUAGES,
    UNITS,
    YEAR_FIRST_LANGUAGES,
    sentence_words,
)
from pipeline.text.sentences.word_kinds import WordKind, WordKinds, count_letters, is_roman

LONGEST_LOOK = 64
"""Maximum characters to inspect on either side. Keeps the time linear in text without spaces."""
_SHORT_PHRASE = 24
"""A year in so short a phrase ("W maju 1990 r.") only opens its sentence."""
_NEXT_WORD = re.compile("[^\\W_]+(?:[’'ʼ-][^\\W_]+)*")
_ELISION = re.compile("[^\\W_]{1,5}[’']")
_DATE_NUMBER = re.compile("[0-9]{1,4}\\.")
_PREVIOUS_WORD = re.compile("([^\\s.!?]+\\.?)\\s*$")
_SHORT_AND_STOP = re.compile("[^\\s.]{1,4}(?=\\.)")
_LIST_ENDS_IN_TWO = (" т. д", " т. п", " t. d", " m. m", " t. t")
_OF_ADDRESSES = frozenset("./@:_")


class FullStops:
    """The full stops of one language.

    In all methods ``begin`` is the start of the sentence, ``stop`` the position of the full stop, and
    ``start`` the position of the first letter or digit after it.
    """

    def __init__(self, lang: str) -> None:
        self.kinds = WordKinds(lang)
        self._starters = sentence_words(lang).starters
        self._has_ordinals = lang in ORDINAL_STOP_LANGUAGES
        self._numbers_go_on = lang in NUMBER_STOP_LANGUAGES
        self._has_regnal_numbers = lang in REGNAL_NUMBER_LANGUAGES
        self._year_is_first = lang in YEAR_FIRST_LANGUAGES
        self._has_noun_capitals = lang in NOUNS_WITH_CAPITAL

    def ends_sentence(self, text: str, begin: int, stop: int, start: int) -> bool:
        """Whether the full stop at ``stop`` ends the sentence when no lower-case letter follows."""
        word = word_before(text, begin, stop)
        kind = self.kinds[word]
        if kind is WordKind.ORDINARY:
            # Without a space after it, the full stop may belong to an address or a file name.
            return text[stop + 1].isspace() or text[stop + 1 : start] != "" or not _is_address(word)
        if kind is WordKind.NOTHING:
            return True
        if kind is WordKind.SYLLABLE:
            # Only an initial if other initials precede it.
            return not (_initial_follows(text, start) or _follows_initial(text, begin, stop))
        if kind is WordKind.TITLE:
            return word.lower() in UNITS and _follows_number(text, begin, stop - len(word))
        if kind is WordKind.NUMBER or (kind is WordKind.ROMAN and self._has_ordinals):
            return self._number_ends(text, begin, stop, start)
        return self._abbreviation_ends(text, begin, stop, start, kind)

    def _abbreviation_ends(self, text: str, begin: int, stop: int, start: int, kind: WordKind) -> bool:
        if kind is WordKind.UNIT and _is_single(text, stop) and not _follows_number(text, begin, stop - 1):
            kind = WordKind.ABBREVIATION  # "t", "l", "g"
        if kind is WordKind.BEFORE_NUMBER and _is_single(text, stop) and _follows_initial(text, begin, stop):
            kind = WordKind.ABBREVIATION  # "m. e.", a vowel in a row of letters
        if text[start].isdigit():
            return kind in (WordKind.UNIT, WordKind.ROMAN)
        if kind in (WordKind.UNIT, WordKind.ROMAN):
            return True
        if kind is WordKind.BEFORE_NUMBER:
            return not is_roman(_next_word(text, start))
        if kind is WordKind.AFTER_NUMBER and stop - begin > _SHORT_PHRASE:
            return True
        if text[start - 1] in "([":
            return False
        return self._ends_list(text, begin, stop, start) or self._is_starter(_next_word(text, start))

    def _ends_list(self, text: str, begin: int, stop: int, start: int) -> bool:
        """Whether "and so on" precedes the full stop and a capital follows it."""
        if self._has_noun_capitals or not text[start].isupper():
            return False
        word = word_before(text, begin, stop).lower()
        return word in LIST_ENDS or text[max(begin, stop - 5) : stop] in _LIST_ENDS_IN_TWO

    def _number_ends(self, text: str, begin: int, stop: int, start: int) -> bool:
        """As `ends_sentence`, for a full stop after a number, which may be an ordinal or part of a date."""
        word = word_before(text, begin, stop)
        before = _before(text, begin, stop - len(word))
        is_digits = word.isdigit()
        if not before.strip("\"'“„«([") and len(word) <= 4:
            return False  # the number of a list, or an ordinal at the start of a sentence
        if text[start].isdigit():
            if self._numbers_go_on or (self._has_ordinals and len(word) <= 2 and is_digits):
                return False
            is_year = len(word) == 4 and is_digits and not self._year_is_first
            return is_year or _DATE_NUMBER.match(text, start) is None
        if self._numbers_go_on:
            return not before.endswith(".")
        if not self._has_ordinals or (is_digits and (len(word) > 2 or before[-1:].isdigit())):
            return True
        return self._ordinal_ends(before, _next_word(text, start), is_digits)

    def _ordinal_ends(self, before: str, following: str, is_digits: bool) -> bool:
        match = _PREVIOUS_WORD.search(before)
        previous = match.group(1).lower() if match else ""
        if self._has_noun_capitals:
            if following.lower() in ORDINAL_NOUNS or previous in ORDINAL_ARTICLES:
                return False
            return is_digits or self._is_starter(following)
        if previous.endswith(".") and previous[:-1].isdigit():
            return False
        if self._has_regnal_numbers and match is not None and match.group(1)[:1].isupper():
            return True  # "pápež Ján Pavol II.", "Apollo 11."
        return self._is_starter(following)

    def _is_starter(self, word: str) -> bool:
        if word.lower() in self._starters:
            return True
        elided = _ELISION.match(word)
        return elided is not None and elided.group().lower() in self._starters


def word_before(text: str, begin: int, stop: int) -> str:
    """The characters between the last space and ``stop``, or only the last ones if they are too many."""
    low = max(begin, stop - LONGEST_LOOK)
    return text[text.rfind(" ", low, stop) + 1 or low : stop]


def _before(text: str, begin: int, end: int) -> str:
    return text[max(begin, end - LONGEST_LOOK) : end].rstrip()


def _follows_number(text: str, begin: int, end: int) -> bool:
    return _before(text, begin, end)[-1:].isdigit()


def _is_single(text: str, stop: int) -> bool:
    return stop < 2 or not (text[stop - 2].isalpha() or text[stop - 2] == "/")


def _next_word(text: str, start: int) -> str:
    found = _NEXT_WORD.match(text, start)
    return found.group() if found else ""


def _is_address(word: str) -> bool:
    return not _OF_ADDRESSES.isdisjoint(word)


def _initial_follows(text: str, start: int) -> bool:
    found = _SHORT_AND_STOP.match(text, start)
    return found is not None and count_letters(found.group()) == 1


def _follows_initial(text: str, begin: int, stop: int) -> bool:
    """Whether the word before the full stop follows another initial with its full stop."""
    before = text[max(begin, stop - LONGEST_LOOK) : stop].split()[-2:-1]
    return bool(before) and before[0].endswith(".") and count_letters(before[0]) <= 2
