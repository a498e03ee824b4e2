"""Finds where the sentences of a paragraph end.

For a mark that can only end a sentence (``。``, ``।``), the text after it decides. For an exclamation or
question mark, the case of the next letter decides. For a full stop, the words around it decide
(`pipeline.text.sentences.full_stops`).
"""

import re
from functools import lru_cache

from pipeline.text.sentences.data import (
    APOSTROPHE_START_LANGUAGES,
    QUOTED_SPEECH_LANGUAGES,
    speech_goes_on,
)
from pipeline.text.sentences.full_stops import LONGEST_LOOK, FullStops, word_before
from pipeline.text.sentences.marks import (
    FULL_WIDTH_STOP,
    HARD,
    OPENING,
    SHAD,
    OpenQuotation,
    candidate_patterns,
    cannot_start_sentence,
    has_closing_mark,
    is_in_brackets,
    shad_ends_sentence,
    uses_verjaket,
)
from pipeline.text.sentences.word_kinds import WordKind, is_georgian, is_vowel

_APOSTROPHE_WORD = re.compile("['’‘`]\\w{1,2}[\\s-]+[\"“„«]?[^\\W\\d_]")
_LONGEST_CUT_WORD = 4
"""Maximum length of a possible abbreviation before a full stop and a lowercase letter."""
_ASKED = re.compile(" (?:[a-z']{2,}\\?|[a-z]{5,}!)")
"""Marks that end a sentence even before a lowercase letter if speech has quotation marks, unlike "oh!"."""
_ADDRESS = re.compile("(?:https?://|www\\.)")


class SentenceRules:
    """The rules of one language.

    In all methods ``begin`` is the start of a sentence and ``stop`` that of the mark that may end it.
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self._anywhere, self._in_ascii = candidate_patterns(lang)
        self._full_stops = FullStops(lang)
        self._has_apostrophe_starts = lang in APOSTROPHE_START_LANGUAGES
        self._has_quoted_speech = lang in QUOTED_SPEECH_LANGUAGES
        self._is_armenian = lang in ("hy", "hyw")
        self._shad_is_full_stop = lang == "dz"
        self._stop_is_colon = False
        speech = speech_goes_on(lang)
        self._speech = re.compile(speech) if speech else None

    def cuts(self, text: str) -> list[int]:
        """The positions in ``text`` where a new sentence begins, in order, without 0 and its length."""
        cuts: list[int] = []
        begin, size = 0, len(text)
        kind_if_known, ordinary = self._full_stops.kinds.get, WordKind.ORDINARY
        self._stop_is_colon = self._is_armenian and uses_verjaket(text)
        stop_ends = not self._stop_is_colon
        quotation = None
        for candidate in (self._in_ascii if text.isascii() else self._anywhere).finditer(text):
            stop, end = candidate.span()
            if end == size:
                break
            first = text[end]
            is_lone_stop = end - stop == 2 and text[stop] == "." and stop_ends
            if is_lone_stop and first.isalpha() and not first.islower():
                # A fast path for the common case: an ordinary word, a full stop, a space, a letter.
                low = begin if stop - begin < LONGEST_LOOK else stop - LONGEST_LOOK
                word = text[text.rfind(" ", low, stop) + 1 or low : stop]
                ends = kind_if_known(word) is ordinary or self._full_stops.ends_sentence(
                    text, begin, stop, end
                )
            else:
                if first == '"' or (first == "“" and text[stop] in HARD):
                    quotation = quotation or OpenQuotation(text)
                    if quotation.is_open(end):
                        end = quotation.behind_closing(end)
                        if end == size:
                            break
                ends = self._ends(text, begin, stop, end)
            if ends:
                cuts.append(end)
                begin = end
        return cuts

    def _ends(self, text: str, begin: int, stop: int, end: int) -> bool:
        """Whether the marks in ``text[stop:end]``, with closing marks and spaces after them, end it."""
        if cannot_start_sentence(text, end) or is_in_brackets(text, stop):
            return False
        start = end + (text[end] == ",")
        limit = min(len(text), end + LONGEST_LOOK)
        while start < limit and text[start] in OPENING:
            start += 1
        if start == limit:
            # Asterisks that separate two scenes are a separate paragraph.
            return start < len(text) or "*" in text[end:start]
        if (
            self._speech is not None
            and self._speech.match(text, end)
            and has_closing_mark(text, stop + 1, end)
        ):
            return False
        return self._mark_ends(text, begin, stop, start)

    def _mark_ends(self, text: str, begin: int, stop: int, start: int) -> bool:
        """As `_ends`, by the kind of the mark. The next letter or digit is at ``start``."""
        mark, letter = text[stop], text[start]
        if mark == FULL_WIDTH_STOP:
            return not (text[stop - 1 : stop].isdigit() or text[stop - 1 : stop].isascii())
        if mark in SHAD:
            return self._shad_is_full_stop or shad_ends_sentence(text, begin, stop)
        if letter.islower() and not is_georgian(letter):
            return self._ends_before_lower(text, begin, stop, start)
        if mark == "." and text[stop + 1] != ".":
            return not self._stop_is_colon and self._full_stops.ends_sentence(text, begin, stop, start)
        return True

    def _ends_before_lower(self, text: str, begin: int, stop: int, start: int) -> bool:
        mark = text[stop]
        if mark in HARD:
            return True
        if mark == "." and (text[stop + 1] == "." or self._stop_is_colon):
            return not _begins_with_capital(text, begin, stop)
        # A sentence that begins with a number does not show whether the text has capitals.
        has_capitals = _begins_with_capital(text, begin, stop) or (mark == "." and text[begin].isdigit())
        if self._starts_with_lower_case(text, start) or not has_capitals:
            return mark != "." or self._full_stops.ends_sentence(text, begin, stop, start)
        if mark != ".":
            # "Yahoo! is", "Quoi ? dit-il" and "oh! how" continue. "great!! best" and "see it? i did" do not.
            return text[stop + 1] == mark or (
                self._has_quoted_speech
                and text[stop + 1 : start].isspace()
                and _ASKED.fullmatch(text, text.rfind(" ", begin, stop), stop + 1) is not None
            )
        if not text[stop + 1].isspace():
            return False
        word = word_before(text, begin, stop)
        if not word.isalpha() or self._full_stops.kinds[word] is not WordKind.ORDINARY:
            return False
        if len(word) > 2 and _ADDRESS.match(text, start):
            return True
        return len(word) > _LONGEST_CUT_WORD - self._has_quoted_speech or (
            len(word) > 2 and is_vowel(word[-1])
        )

    def _starts_with_lower_case(self, text: str, start: int) -> bool:
        """Whether the word at ``start`` may begin a sentence in lower case: "iPhone", "eMzansi", "'n Man"."""
        if text[start + 1 : start + 2].isupper():
            return True
        return self._has_apostrophe_starts and _APOSTROPHE_WORD.match(text, start - 1) is not None


def _begins_with_capital(text: str, begin: int, stop: int) -> bool:
    for sign in text[begin : min(stop, begin + LONGEST_LOOK)]:
        if sign.isalpha():
            return sign.isupper()
    return False


@lru_cache(maxsize=512)
def rules_of(lang: str) -> SentenceRules:
    """The rules for ``lang``, created once in each process."""
    return SentenceRules(lang)
