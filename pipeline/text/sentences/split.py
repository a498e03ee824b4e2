"""Splits paragraphs into sentences where `pipeline.text.sentences.ends` finds the end of a sentence.

Quotations inside a sentence do not split it. Scripts without sentence marks (Thai, Lao) are cut at spaces,
and runs without a mark at clauses or words. Only white space is lost. Time and memory grow linearly.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from pipeline.text.languages import UNMARKED_LANGUAGES
from pipeline.text.sentences.ends import SentenceRules, rules_of
from pipeline.text.sentences.quotations import without_cuts_in_quotations

MAX_SENTENCE_CHARS = 2000
"""Longer runs are cut at a clause mark, at a space, or (without either) between two letters."""

# Blank lines and the Unicode paragraph separators separate paragraphs. A single line feed does not.
_PARAGRAPH = re.compile("(?:[\u2028\u2029]|\n[^\\S\n]*\n)\\s*")
_SPACES = re.compile("\\s+")
_CLAUSE_END = re.compile("[;；；、،؛,，:：]\\s*|\\s+[-–—]\\s+")


def split_sentences(text: str, lang: str) -> list[str]:
    """The stripped, non-empty sentences of ``text`` (one paragraph or several).

    ``lang`` is a wiki or ISO 639 code. Text in an unknown language is split by script and shape alone.

    >>> split_sentences("Dr. Roe paid 3.50. She left (at 5 p.m.) in the U.S. mail van.", "en")
    ['Dr. Roe paid 3.50.', 'She left (at 5 p.m.) in the U.S. mail van.']
    """
    has_parts = "\n" in text or "\u2028" in text or "\u2029" in text
    paragraphs = _PARAGRAPH.split(text) if has_parts else [text]
    rules = rules_of(lang)
    return [sentence for paragraph in paragraphs for sentence in _split_paragraph(paragraph, rules)]


def split_paragraphs(paragraphs: Sequence[str], lang: str) -> list[list[str]]:
    """`split_sentences` for each paragraph of a page.

    The paragraphs come from `pipeline.text.normalize`: not empty, with single spaces for all white space.
    """
    rules = rules_of(lang)
    return [_split_paragraph(paragraph, rules) for paragraph in paragraphs]


def spaces_before(paragraph: str, sentences: Sequence[str]) -> Iterator[bool]:
    """Whether white space precedes each sentence, so that the paragraph can be restored.

    ``sentences`` are the result of `split_paragraphs` for the paragraph.

    >>> list(spaces_before("你好。再见。 OK.", ["你好。", "再见。", "OK."]))
    [False, False, True]
    """
    position = 0
    for sentence in sentences:
        start = paragraph.index(sentence, position)
        yield start > position > 0
        position = start + len(sentence)


def _split_paragraph(paragraph: str, rules: SentenceRules) -> list[str]:
    cuts = rules.cuts(paragraph)
    if not cuts and len(paragraph) <= _SPACED_CHARS:
        sentence = paragraph.strip()
        return [sentence] if sentence else []
    if cuts:
        cuts = without_cuts_in_quotations(paragraph, cuts)
    pieces = []
    begin = 0
    for cut in cuts:
        pieces.append(paragraph[begin:cut])
        begin = cut
    pieces.append(paragraph[begin:] if begin else paragraph)
    if rules.lang in UNMARKED_LANGUAGES:
        pieces = [part for piece in pieces for part in _cut_at_spaces(piece, _spaced_chars(paragraph, cuts))]
    if len(paragraph) > MAX_SENTENCE_CHARS:
        pieces = [part for piece in pieces for part in _cut_long(piece)]
    return list(filter(None, map(str.strip, pieces)))


def _spaced_chars(paragraph: str, cuts: list[int]) -> int:
    """The minimum length of a sentence of an unmarked language. Higher if the writer uses full stops."""
    ends_with_mark = paragraph.rstrip()[-1:] in _MARKS
    uses_marks = (8 if ends_with_mark else 4 if cuts else 0) * (len(cuts) + 1) * _SPACED_CHARS > len(
        paragraph
    )
    return 8 * _SPACED_CHARS if uses_marks else _SPACED_CHARS


_MARKS = frozenset('.!?…"”')
_SPACED_CHARS = 100
"""In a language without sentence marks a space ends a sentence of at least this many characters."""


def _cut_at_spaces(sentence: str, at_least: int) -> Iterator[str]:
    start = 0
    for space in _SPACES.finditer(sentence):
        before, after = sentence[space.start() - 1], sentence[space.end() : space.end() + 1]
        if space.start() - start >= at_least and _unspaced_letter(before) and _unspaced_letter(after):
            yield sentence[start : space.end()]
            start = space.end()
    yield sentence[start:]


def _unspaced_letter(char: str) -> bool:
    """Spaces next to numbers and Latin words separate words, not sentences."""
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
    # "1,000" and "12:30" are not clauses.
    if cut and not (sentence[cut - 1] in ",:" and sentence[cut].isalnum()):
        return cut
    for position in range(limit, middle, -1):
        if sentence[position].isspace():
            return position
    # Without spaces, cut between two characters, but not before a combining mark or next to a joiner.
    for position in range(limit, middle, -1):
        here, before = sentence[position], sentence[position - 1]
        if not unicodedata.category(here).startswith("M") and "\u200d" not in (here, before):
            return position
    return limit
