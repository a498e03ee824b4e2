"""Patterns for marks that may end a sentence, and for their context."""

import re

from pipeline.text.sentences.data import DANDA_LANGUAGES

SHAD = "།༎༏༐༑༔"
FULL_WIDTH_STOP = "．"
# Sentence_Terminal of Unicode's PropList, without marks that also occur inside sentences, and Tibetan shad.
HARD = "。！？｡։।॥۔؟؞؝܀܁܂߹។៕။።፧፨᙮᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫𑁇𑁈" + FULL_WIDTH_STOP + SHAD
"""Marks that end a sentence even without a space after them."""
_SOFT = ".!?…‥"
_INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u2067\u2068\u2069\ufeff"
_CLOSING = "\"'’”“‘»«›‹)\\]}）］｝」』》〉】〕｣" + _INVISIBLE
# Without a space before it, a mark that may open a quotation opens the next one.
_CLOSING_UNSPACED = "’”»›)\\]}）］｝」』》〉】〕｣" + _INVISIBLE
_VISIBLE_CLOSING = frozenset(_CLOSING) - frozenset(_INVISIBLE)
OPENING = frozenset("\"'‘’“”„‚«»‹›([{（［｛「『《〈【〔｢¿¡*†–—―-•·… \t\r\n\u00a0\u202f\u3000" + _INVISIBLE)
"""Characters that may appear between a mark and the first letter of the next sentence."""
LEADING = "\"'’‘“”„‚«»‹›*†¿¡" + _INVISIBLE
"""Characters that may precede the first letter of a word."""
_NEVER_FIRST = frozenset(",;:،؛、，；：/&%)]}" + SHAD)

_TIBETAN_CONNECTIVES = frozenset("དང ནས ཏེ སྟེ ཅིང ཞིང ཤིང པས བས ན ལ སྐབས ཀྱང ཡང ཞེས ཅེས ནི ཚེ པར བར རྗེས".split())
_LONGEST_SYLLABLE = 24
_VERJAKET = re.compile("։|[Ա-֏»]:\\s")


def _special_marks(lang: str) -> list[str]:
    """Patterns of marks that end sentences in ``lang`` only."""
    if lang in ("el", "grc", "pnt"):
        return ["[;\u037e]"]
    if lang in ("hy", "hyw"):
        return ["(?<![0-9]):(?=\\s+[\"«“ՙ'(-]*[Ա-ՖA-ZА-Я0-9])"]
    if lang in ("am", "ti", "tig", "gez", "byn"):
        return ["፡\\s?፡", "::"]
    if lang in DANDA_LANGUAGES or lang in ("mr", "gu"):
        return [f'(?<=[\u0900-\u0dff\\s"”’)])\\|{{1,2}}(?=[{_CLOSING}]*(?:\\s|$))']
    return []


def candidate_patterns(lang: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of sentence ends with their closing marks and spaces: one for any text, one for ASCII text."""
    marks = _SOFT + HARD
    # The lookbehind prevents a match attempt at each character of a long run of marks.
    run = f"[{marks}](?<![{marks}][{marks}])[{marks}]*+"
    spaced = f"[{_CLOSING}]*+(?:[\u00a0\u202f ][»”](?=\\s|$))?\\s+"
    # Chinese and Japanese with ASCII marks, without a space, and without a name or number on either side.
    ascii_marks = (
        "(?<=[\u3040-\u9fff][!?])|(?<=[\u3040-\u9fff][!?]{2})|(?<=[\u3040-\u9fff]\\.)(?=[\u3040-\u9fff])"
    )
    unspaced = f"(?:(?<=[{HARD}])|{ascii_marks})[{_CLOSING_UNSPACED}]*+"
    missing_space = "(?<=[a-zа-яё]{3}[.!?])(?=[A-ZÀ-ÞА-Я][a-zà-ÿа-я])"
    pattern = f"{run}(?:{spaced}|{unspaced}|{missing_space})"
    special = _special_marks(lang)
    if special:
        pattern += f"|(?:{'|'.join(special)})[{_CLOSING}]*\\s*"
    anywhere = re.compile(pattern)
    return anywhere, anywhere if special else _ASCII_CANDIDATES


# The same for ASCII text, where the search for marks is faster.
_ASCII_CANDIDATES = re.compile(
    "[.!?](?<![.!?][.!?])[.!?]*+(?:[\"')\\]}]*+\\s+|(?<=[a-z]{3}[.!?])(?=[A-Z][a-z]))"
)


def cannot_start_sentence(text: str, place: int) -> bool:
    """Whether no sentence can start with the character at ``place``.

    A comma before a letter is a low quotation mark.
    """
    sign = text[place]
    return sign in _NEVER_FIRST and not (sign == "," and text[place + 1 : place + 2].isalpha())


def has_closing_mark(text: str, start: int, end: int) -> bool:
    """Whether there is a closing quotation mark or bracket between the two positions."""
    return any(sign in _VISIBLE_CLOSING for sign in text[start:end])


def is_in_brackets(text: str, stop: int) -> bool:
    """Whether the mark is a remark in brackets: "1872 (?)"."""
    return stop > 0 and text[stop - 1] in "([" and text[stop + 1 : stop + 2] in (")", "]")


def shad_ends_sentence(text: str, begin: int, stop: int) -> bool:
    """A shad also ends clauses. After a connecting word, the sentence continues."""
    last = text[max(begin, stop - _LONGEST_SYLLABLE) : stop].rstrip("་ ")
    return last[last.rfind("་") + 1 :] not in _TIBETAN_CONNECTIVES


def uses_verjaket(text: str) -> bool:
    """Whether Armenian text ends sentences with its own mark, so that a full stop is its colon."""
    return _VERJAKET.search(text) is not None


_AMBIGUOUS = re.compile('["“”„]')


class OpenQuotation:
    """Tracks the quotation marks of a text whose shape does not show whether they open or close.

    These are straight marks and ``“``, which closes in German and in Chinese text typed with a single key.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._seen, self._open = 0, False

    def is_open(self, place: int) -> bool:
        """Whether a quotation is open at ``place``, which never decreases."""
        for mark in _AMBIGUOUS.finditer(self._text, self._seen, place):
            self._open = mark.group() == "„" or (mark.group() != "”" and not self._open)
        self._seen = place
        return self._open

    def behind_closing(self, quote: int) -> int:
        """Where the next sentence starts if the mark at ``quote`` closes the sentence before it."""
        text = self._text
        if text[quote - 1].isspace() and not text[quote + 1 : quote + 2].isspace():
            return quote
        end = quote + 1
        while end < len(text) and text[end].isspace():
            end += 1
        return end
