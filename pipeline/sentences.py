"""Sentence splitting: sentencex finds candidates, then rules of this module mend what it gets wrong.

Mended are: abbreviations, ordinals and decimals that it splits at, quotations that go on with a verb of
saying (Japanese, Chinese, Korean), scripts whose marks it does not know (Khmer, Tibetan) or that have none
(Thai, Lao), runs without any mark, and its quadratic time on many opening quotation marks. Nothing but white
space is lost; time and memory grow linearly.
"""

import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import sentencex

from pipeline.languages import (
    UNMARKED_LANGUAGES,
    UNSEEN_SENTENCE_MARKS,
    abbreviations,
    ordinal_nouns,
    speech_goes_on,
    splitter_language,
)

logger = logging.getLogger(__name__)

MAX_SENTENCE_CHARS = 2000
"""A longer run is cut at a clause mark, at a space, or (without either) between two letters."""

# Blank lines and the Unicode paragraph separators part paragraphs; a single line feed does not.
_PARAGRAPH = re.compile("(?:[\u2028\u2029]|\n[^\\S\n]*\n)\\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WIDE_SPACE = re.compile("[^\\S\x00-\x7f]")
# Behind the space after a full stop: nothing is lost where it cuts.
_FULL_STOP = re.compile("(?<=[.!?…][ \t\n])|(?<=[。！？।॥۔؟։።])")
_QUOTES = re.compile("[\"'‘’“”„«»‹›「」『』《》〈〉()\\[\\]（）]")
# sentencex looks from every opening mark to the end of its text, so it gets no more than a window at a
# time, and a small one where such marks are many.
_SHORT_PARAGRAPH = 400
_WINDOWS = ((20, 4096), (4, 512))  # (characters for each such mark at least, window)
_SMALL_WINDOW = 96

_UNSEEN_END = re.compile(f"[{UNSEEN_SENTENCE_MARKS}](?:\\s*[{UNSEEN_SENTENCE_MARKS}])*[\"'”’»)\\]]*\\s*")
_CLOSING = "\"'’”»›)]）］」』》〉】"
_LAST_WORD_START = re.compile("^.*[\"'’‘“„«‹(\\[{（［「『《〈【/—–]")
_STOPS_AND_CLOSING = ".!?。！？．｡…" + _CLOSING
_BURMESE_COMMA = "\u104a"  # the splitter takes it for a full stop
_LONGEST_ABBREVIATION = 12
_LONGEST_CUT_WORD = 8  # with its space and full stop
_NUMBER = re.compile("[0-9٠-٩۰-۹०-९０-９]+|[IVXLC]+|[A-Z][a-z]?")
_VOWELS = frozenset("aeiouyаеёиоуыэюяіїєўαεηιουωæøœıəœ")
_WORD = re.compile("\\w+")
_SPACES = re.compile("\\s+")
_CLAUSE_END = re.compile("[;；；、،؛,，:：]\\s*|\\s+[-–—]\\s+")


def split_sentences(text: str, lang: str) -> list[str]:
    """The sentences of ``text`` (one paragraph or several), stripped, none empty.

    ``lang`` is a wiki or ISO 639 code; an unknown one is treated like English. A lone surrogate, which has
    no UTF-8 form, is taken as a letter.
    """
    rules = _rules(lang)
    has_parts = "\n" in text or "\u2028" in text or "\u2029" in text
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.split(text) if has_parts else [text]:
        pieces = _mended(_candidates(paragraph, rules.splitter_language), rules)
        sentences += _cut_further(paragraph, pieces, lang, has_unseen_marks(paragraph))
    return sentences


def split_paragraphs(paragraphs: Sequence[str], lang: str) -> list[list[str]]:
    """`split_sentences` of each of a page's paragraphs, at less cost.

    They are as `pipeline.normalize` leaves them: not empty, with single spaces for all white space.
    """
    rules = _rules(lang)
    has_unseen = has_unseen_marks("".join(paragraphs))
    needs_cuts = has_unseen or lang in UNMARKED_LANGUAGES
    split = []
    for paragraph in paragraphs:
        pieces = _segment_windows(rules.splitter_language, paragraph)
        if len(pieces) > 1:
            pieces = _mended(pieces, rules)
        if len(pieces) > 1 or needs_cuts or len(paragraph) > MAX_SENTENCE_CHARS:
            pieces = _cut_further(paragraph, pieces, lang, has_unseen)
        split.append(pieces)
    return split


def has_unseen_marks(text: str) -> bool:
    """Whether ``text`` has sentence marks that sentencex does not know."""
    return not text.isascii() and any(mark in text for mark in UNSEEN_SENTENCE_MARKS)


def _cut_further(paragraph: str, pieces: list[str], lang: str, has_unseen: bool) -> list[str]:
    """``pieces`` of ``paragraph`` where sentencex cuts too little, stripped, none empty."""
    if lang in UNMARKED_LANGUAGES:
        pieces = [part for piece in pieces for part in _cut_at_spaces(piece)]
    if has_unseen:
        pieces = [part for piece in pieces for part in _cut_at_unseen_marks(piece)]
    if len(paragraph) > MAX_SENTENCE_CHARS:
        pieces = [part for piece in pieces for part in _cut_long(piece)]
    return list(filter(None, map(str.strip, pieces)))


# --- candidates ----------------------------------------------------------------------------------------


def _candidates(paragraph: str, lang: str) -> list[str]:
    """Pieces that join to ``paragraph``, as sentencex cuts it.

    It looks one byte back for the space before an initial, and panics inside a space of several bytes
    ("J\u00a0."), so it sees every space as an ordinary one. No other text is known at which it panics.
    """
    try:
        if not paragraph.isascii() and _WIDE_SPACE.search(paragraph):
            return _cut_alike(paragraph, _segment_windows(lang, _WIDE_SPACE.sub(" ", paragraph)))
        return _segment_windows(lang, paragraph)
    except UnicodeEncodeError:
        return _cut_alike(paragraph, _candidates(_SURROGATE.sub("\ufffd", paragraph), lang))


def _cut_alike(text: str, pieces: list[str]) -> list[str]:
    """``text`` cut where ``pieces`` of the same total length are."""
    ends = list(accumulate(map(len, pieces)))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _segment_windows(lang: str, paragraph: str) -> list[str]:
    """Pieces that join to ``paragraph``; of a long one sentencex sees one window after the other."""
    if len(paragraph) <= _SHORT_PARAGRAPH:
        return _segment(lang, paragraph)
    window = _window(paragraph)
    if len(paragraph) <= window:
        return _segment(lang, paragraph)
    pieces: list[str] = []
    rest = ""
    for start in range(0, len(paragraph), window):
        pieces += _segment(lang, rest + paragraph[start : start + window])
        # What the window cuts off is looked at again with the next one, unless it grows too long.
        rest = pieces.pop() if len(pieces[-1]) <= window // 2 else ""
    return [*pieces, rest] if rest else pieces


def _window(paragraph: str) -> int:
    quotes = len(_QUOTES.findall(paragraph))
    for per_quote, window in _WINDOWS:
        if quotes * per_quote <= len(paragraph):
            return window
    return _SMALL_WINDOW


def _segment(lang: str, text: str) -> list[str]:
    """Pieces that join to ``text``: sentencex's, or by full stops where it panics."""
    try:
        pieces: list[str] = sentencex.segment(lang, text)
    except BaseException as error:
        # A panic of Rust derives from BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        logger.warning("sentencex panics (%s) at %r: cut at full stops instead", error, text[:200])
        return [piece for piece in _FULL_STOP.split(text) if piece]
    return pieces


# --- mending -------------------------------------------------------------------------------------------


def _mended(candidates: list[str], rules: "_Rules") -> list[str]:
    """The candidates, joined where one is no sentence of its own."""
    if len(candidates) < 2:
        return candidates
    goes_on = rules.goes_on
    sentences: list[str] = []
    run = [candidates[0]]
    for candidate in candidates[1:]:
        if goes_on(run, candidate):
            run.append(candidate)
        else:
            sentences.append("".join(run) if len(run) > 1 else run[0])
            run = [candidate]
    sentences.append("".join(run))
    return sentences


class _Rules:
    """Whether the text after a candidate's end belongs to the same sentence."""

    def __init__(self, lang: str) -> None:
        self.splitter_language = splitter_language(lang)
        self.abbreviations = abbreviations(lang)
        self.ordinal_nouns = ordinal_nouns(lang)
        speech = speech_goes_on(lang)
        self.speech = re.compile(speech) if speech else None

    def goes_on(self, run: list[str], candidate: str) -> bool:
        """``run`` is the sentence so far, as candidates; ``candidate`` comes after it."""
        body, begin = run[-1].rstrip(), candidate.lstrip()
        if not body or not begin:
            return True
        first, last = begin[0], body[-1]
        # Georgian letters count as lower case but have no capital at the start of a sentence.
        if first.islower() and first.title() != first and _begins_with_capital(run[0]):
            # After a long word a full stop is one, also before a name in lower case or in careless text.
            return last != "." or len(body) - body.rfind(" ") <= _LONGEST_CUT_WORD
        if last == ".":
            return self._abbreviated(run, body, begin, apart=run[-1] is not body or begin is not candidate)
        if last == _BURMESE_COMMA or (first.isdigit() and last == "．" and body[-2:-1].isdigit()):
            return True
        if self.speech is not None and last in _CLOSING and body[-2:-1] in _STOPS_AND_CLOSING:
            return self.speech.match(begin) is not None
        return not first.isalnum() and last not in _CLOSING and _WORD.search(begin) is None

    def _abbreviated(self, run: list[str], body: str, begin: str, apart: bool) -> bool:
        word = body[max(body.rfind(" ") + 1, len(body) - 40) : -1]
        if not word.isalnum():
            word = _LAST_WORD_START.sub("", word)
        if len(word) > _LONGEST_ABBREVIATION or not word:
            return False
        if not apart and (len(word) < 3 or not begin[0].isalpha()):
            return True
        is_alone = len(run) == 1 and len(body) == len(word) + 1
        return (
            word.lower() in self.abbreviations
            or (is_alone and _NUMBER.fullmatch(word) is not None)
            or (begin[0].isdigit() and ("." in word or word[-1:] == "．" or _without_vowel(word)))
            or (word.isdigit() and _first_word(begin) in self.ordinal_nouns)
            or _is_initial(word)
        )


def _begins_with_capital(sentence: str) -> bool:
    return sentence[0].isupper() or next((char for char in sentence if char.isalpha()), "").isupper()


@lru_cache(maxsize=512)
def _rules(lang: str) -> _Rules:
    return _Rules(lang)


def _first_word(text: str) -> str:
    found = _WORD.search(text)
    return found.group() if found else ""


def _without_vowel(word: str) -> bool:
    """A word of at most four letters without a vowel, not all capitals, can only be an abbreviation."""
    if len(word) > 4 or not (word.islower() or word[1:].islower()):
        return False
    return not any(unicodedata.normalize("NFD", letter)[0] in _VOWELS for letter in word.lower())


def _is_initial(word: str) -> bool:
    """One letter, or up to three signs of an Indic script: an initial or a title, no sentence's end.

    Latin capitals are left to the splitter ("vitamin C.").
    """
    letter = word[0]
    if letter.isascii() or not letter.isalpha():
        return False
    block = ord(letter)
    if 0x0900 <= block < 0x0E00:
        return len(word) <= 3
    return len(word) == 1 and (letter.isupper() or 0x0590 <= block < 0x0800)


# --- further cuts --------------------------------------------------------------------------------------


def _cut_at_unseen_marks(sentence: str) -> Iterator[str]:
    start = 0
    for mark in _UNSEEN_END.finditer(sentence):
        yield sentence[start : mark.end()]
        start = mark.end()
    yield sentence[start:]


_SPACED_CHARS = 100
"""In a language without sentence marks a space ends a sentence once so many characters stand before it."""


def _cut_at_spaces(sentence: str) -> Iterator[str]:
    start = 0
    for space in _SPACES.finditer(sentence):
        before, after = sentence[space.start() - 1], sentence[space.end() : space.end() + 1]
        if space.start() - start >= _SPACED_CHARS and _unspaced_letter(before) and _unspaced_letter(after):
            yield sentence[start : space.end()]
            start = space.end()
    yield sentence[start:]


def _unspaced_letter(char: str) -> bool:
    """Spaces beside numbers and Latin words part words, not sentences."""
    return not char.isascii() and not char.isdigit()


def _cut_long(sentence: str) -> Iterator[str]:
    start = 0
    while len(sentence) - start > MAX_SENTENCE_CHARS:
        cut = _best_cut(sentence, start)
        yield sentence[start:cut]
        start = cut
    yield sentence[start:]


def _best_cut(sentence: str, start: int) -> int:
    middle, limit = start + MAX_SENTENCE_CHARS // 2, start + MAX_SENTENCE_CHARS
    cut = 0
    for mark in _CLAUSE_END.finditer(sentence, middle, limit):
        cut = mark.end()
        if cut - middle > MAX_SENTENCE_CHARS // 4:
            break
    # "1,000" and "12:30" are no clauses.
    if cut and not (sentence[cut - 1] in ",:" and sentence[cut].isalnum()):
        return cut
    for position in range(limit, middle, -1):
        if sentence[position].isspace():
            return position
    # No space at all: between two characters, but not before a combining mark or beside a joiner.
    for position in range(limit, middle, -1):
        here, before = sentence[position], sentence[position - 1]
        if not unicodedata.category(here).startswith("M") and "\u200d" not in (here, before):
            return position
    return limit
