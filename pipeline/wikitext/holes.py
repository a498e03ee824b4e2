"""Repairs what a dropped template or note leaves: empty brackets, doubled marks, and holes in sentences.

A template of unknown text may have been a footnote, which can be omitted, or a word of the sentence. The text
on both sides of it decides.
"""

import re
import unicodedata

from pipeline.text.languages import UNSPACED_LANGUAGES, ZERO_WIDTH_SPACED_LANGUAGES
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.markup import ASIDE, GAP, HOLE, SOFT
from pipeline.wikitext.wiki_words import (
    ONLY_LISTED_SUFFIXES,
    PREFIX_LETTERS,
    PRONUNCIATION_WORDS,
    SUFFIXES,
)

# Possessive quantifiers, or a start outside a run of spaces, keep these from backtracking over a line.
_OPEN, _CLOSE = r"(\[（［【〔", r")\]）］】〕"
_BRACKET = re.compile(f"([{_OPEN}])([^{_OPEN}{_CLOSE}]*+)([{_CLOSE}])")
_BRACKET_PART = re.compile("([,;，；、،؛/|=•·])")
_QUOTED = re.compile(f'["“„«「『‘‹]\\s*+[{HOLE}{GAP}][{HOLE}{GAP}\\s]*+["”“»」』’›]')
# A leading character class lets the engine skip the rest of a line.
_DOUBLED_MARK = re.compile(
    f"[,;:，、،؛.](?:(?<!\\.)\\s*+{GAP}[{GAP}\\s]*+(?=[,;.，、。،؛)）])"
    f"|(?<=\\.)\\s*+{GAP}[{GAP}\\s]*+(?=\\.))"
)
_HOLE = re.compile(f"(?<![\\s{GAP}])[\\s{GAP}]*+{HOLE}[\\s{GAP}{HOLE}]*+")
_ASIDE = re.compile(f"(?<![\\s{GAP}])[\\s{GAP}]*+{ASIDE}[\\s{GAP}{ASIDE}]*+")
_ENCLOSED_ASIDE = re.compile(f"\\[\\s*{ASIDE}\\s*\\]|/\\s*{ASIDE}\\s*/")
_NO_SPACE_BEFORE = frozenset(",.;:!?)]}%،؛؟。，、：；！？）」』”»")
_NO_SPACE_AFTER = frozenset("([（「『“„«")
_PARTNERS = {"“": "„", "«": "»"}
_SENTENCE_END = frozenset('.!?:;…。！？：；।॥۔؟։።။།"”»」』)）]')
# No sentence begins with one of these, so the text before it is missing.
_CONTINUING_MARKS = frozenset(",;:，、；：،؛")
# Marks after which a sentence continues.
_GOES_ON = frozenset(',:;)"]：；')
_FULL_STOPS = frozenset(".!?…。！？।॥۔؟։።")
# Japanese and Chinese endings of a verb or an adjective. Text between one of them and a full stop is a note.
_COMPLETE = frozenset("たるだすい了")
# "lies at", "steht bei": a sentence is broken without the text after such a word.
_SHORT_WORD = re.compile("(?<!\\S)[^\\W\\d_]{1,3}$")
_LAST_LETTERS = re.compile("(?<![^\\W_])[^\\W\\d_]{1,4}$")
# Text directly before a template that shows a value, not a footnote.
_VALUE_FOLLOWS = frozenset("([{（「『“„«‹\"'’ʼ‘=<>≈~≤≥±+×-–—−/$€£¥₽₹:№#@°%：־\u200c\u200d")
# An ending that is attached with a mark: "NATO:n", "MOL-ban", "İzmir'de".
_JOINED_ENDING = re.compile("[-:'’‐‑][^\\W\\d_]")
_MAX_BRACKET = 240
_MAX_LABEL_WORDS = 3


def mend(line: str, lang: str, in_list: bool) -> str:
    """``line`` without empty brackets, quotation marks and doubled marks. Real holes stay marked."""
    for _ in range(4):
        repaired = _BRACKET.sub(_repair_bracket, line)
        if repaired == line:
            break
        line = repaired
    line = _QUOTED.sub(lambda match: HOLE if HOLE in match.group() else GAP, line)
    if HOLE in line:
        line = _DOUBLED_MARK.sub("", line)
        line = _HOLE.sub(lambda match: _judge(match, lang, in_list), line)
    return close_gaps(_DOUBLED_MARK.sub("", line))


def close_gaps(line: str) -> str:
    """``line`` without gaps. Keeps the space of a gap, except before a mark or after an opening bracket."""
    first, *pieces = line.split(GAP)
    if not pieces:
        return line
    before = first.rstrip()
    closed = [before] if before else []
    spaced = first[-1:].isspace()
    for piece in pieces:
        text = piece.strip()
        spaced = spaced or piece[:1].isspace()
        if text:
            if spaced and closed and text[0] not in _NO_SPACE_BEFORE and not _opens(closed[-1]):
                closed.append(" ")
            closed.append(text)
            spaced = piece[-1].isspace()
    last = pieces[-1]
    if not last.isspace():
        closed.append(last[len(last.rstrip()) :])
    return "".join(closed)


def _opens(before: str) -> bool:
    """Whether ``before`` ends with an opening mark. An ambiguous mark closes if its partner precedes it."""
    last = before[-1]
    return last in _NO_SPACE_AFTER and not (last in _PARTNERS and _PARTNERS[last] in before)


def _repair_bracket(match: re.Match[str]) -> str:
    opening, inner, closing = match.groups()
    if (HOLE not in inner and GAP not in inner) or (HOLE in inner and len(inner) > _MAX_BRACKET):
        return match.group()
    pieces = _BRACKET_PART.split(inner)
    kept: list[str] = []
    for number in range(0, len(pieces), 2):
        part = pieces[number]
        bare = part.replace(HOLE, "").replace(GAP, "").strip()
        is_label = bare.endswith((":", "：")) or not any(map(str.isalnum, bare))
        if is_label and len(bare) < len(part.strip()):
            continue
        if HOLE in part:
            return GAP
        if kept:
            mark = pieces[number - 1]
            kept.append(mark if mark in "，；、" else f"{mark} " if mark in ",;،؛" else f" {mark} ")
        kept.append(part.strip())
    text = "".join(kept)
    return f"{opening}{text}{closing}" if any(map(str.isalnum, text)) else GAP


def _judge(match: re.Match[str], lang: str, in_list: bool) -> str:
    """HOLE if the text around it needs the missing part, or GAP if it reads well without it."""
    line, start, end = match.string, match.start(), match.end()
    gap = match.group()
    leading = gap[: len(gap) - len(gap.lstrip())]
    trailing = gap[len(gap.rstrip()) :]
    before = line[max(start - 8, 0) : start] if SOFT not in leading else ""
    after = line[end : end + 8] if SOFT not in trailing else ""
    if before and after:
        is_hole = _is_hole_inside(before, after, bool(leading), bool(trailing), lang)
    elif before:
        is_hole = _is_hole_at_end(before, bool(leading), in_list, lang)
    else:
        is_hole = bool(after) and _is_hole_at_start(after, bool(trailing), lang)
    space_before, space_after = " " if leading else "", " " if trailing else ""
    return f"{space_before}{HOLE}{space_after}" if is_hole else f"{GAP}{space_before or space_after}"


def _is_hole_at_start(after: str, spaced_after: bool, lang: str) -> bool:
    """Whether a gap at the start of a sentence is a hole. Boxes and anchors are there, but also subjects."""
    if after[0].islower() or after[0] in _CONTINUING_MARKS:
        return True
    return not spaced_after and _is_ending(after, lang)


def _is_ending(after: str, lang: str) -> bool:
    """Whether ``after`` begins with text that can only end a word."""
    if unicodedata.category(after[0]) in ("Mn", "Mc") or _JOINED_ENDING.match(after):
        return True
    suffix = SUFFIXES.get(lang)
    return suffix is not None and suffix.match(after) is not None


def _is_glued_ending(after: str, lang: str) -> bool:
    """Whether a word without its stem follows. Icons and anchors are attached to a capital or a number."""
    if not after[0].isalnum() or _is_ending(after, lang):
        return True
    if lang in ONLY_LISTED_SUFFIXES or lang in UNSPACED_LANGUAGES:
        # If spaces separate phrases, a space before a template is within a sentence.
        return lang in ZERO_WIDTH_SPACED_LANGUAGES
    return not (after[0].isupper() or after[0].istitle() or after[0].isdigit())


def _is_hole_at_end(before: str, spaced: bool, in_list: bool, lang: str) -> bool:
    """Whether a gap at the end of a line is a hole. Unlike sentences, list items end with flags and notes."""
    last = before[-1]
    if _is_prefix(before, lang) if not spaced else _leads_on(before[-4:]):
        return True
    return not in_list and (last in ":=：" or (spaced and last not in _SENTENCE_END))


def _is_hole_inside(before: str, after: str, spaced_before: bool, spaced_after: bool, lang: str) -> bool:
    last, first = before[-1], after[0]
    if last in _SENTENCE_END and last not in _GOES_ON:
        if _is_hole_at_start(after, spaced_after, lang):
            return True
        return not spaced_before and not spaced_after and first.isdigit()
    if last in _VALUE_FOLLOWS:
        return True
    if spaced_before:
        return spaced_after or _is_glued_ending(after, lang)
    if lang in UNSPACED_LANGUAGES:
        is_note = first in _FULL_STOPS and last in _COMPLETE
        return not (spaced_after or is_note)
    if _is_prefix(before, lang):
        return True
    # If it is attached to a word and followed by a space or a mark, it is a footnote.
    return first.isalnum() and not spaced_after


def _is_prefix(before: str, lang: str) -> bool:
    """Whether ``before`` ends with a preposition or an article that is a prefix of the next word."""
    letters = PREFIX_LETTERS.get(lang)
    if letters is None:
        return False
    found = _LAST_LETTERS.search(before)
    return found is not None and letters.issuperset(found.group())


def _leads_on(before: str) -> bool:
    """Whether ``before``, of at least four characters, ends with a short lowercase word: "at", "bei"."""
    short = _SHORT_WORD.search(before)
    return short is not None and short.group().islower()


# --- pronunciations and coordinates ---------------------------------------------------------------------


def judge_asides(line: str, lang: str) -> str:
    """``line`` with a gap or a hole for every aside, a text that most sentences do not need."""
    line = _BRACKET.sub(_drop_labels, _ENCLOSED_ASIDE.sub(ASIDE, line))
    return _ASIDE.sub(lambda match: _judge_aside(match, lang), line)


def _drop_labels(match: re.Match[str]) -> str:
    """A bracket without the words that only announce a pronunciation: "(pronounced ...)"."""
    opening, inner, closing = match.groups()
    if ASIDE not in inner or len(inner) > _MAX_BRACKET:
        return match.group()
    parts = [ASIDE if _is_label(part) else part for part in _BRACKET_PART.split(inner)]
    return opening + "".join(parts) + closing


def _is_label(part: str) -> bool:
    words = part.replace(ASIDE, " ").replace(GAP, " ").split()
    if ASIDE not in part or HOLE in part or not 0 < len(words) <= _MAX_LABEL_WORDS:
        return False
    text = " ".join(words).casefold()
    return text == " ".join(words) or any(word in text for word in PRONUNCIATION_WORDS)


def _judge_aside(match: re.Match[str], lang: str) -> str:
    """HOLE if the sentence is incomplete without the pronunciation or coordinates, else GAP.

    It is incomplete if a word precedes it and a full stop follows it, if a short lowercase word leads to it,
    or if it is between two letters in a language without spaces.
    """
    line, start, end = match.string, match.start(), match.end()
    left, _, right = match.group().partition(ASIDE)
    before, after = line[max(start - 4, 0) : start], line[end : end + 1]
    spaced = any(map(str.isspace, left))
    if not before[-1:].isalnum():
        is_hole = False
    elif spaced:
        ends = after in _FULL_STOPS and not any(map(str.isspace, right))
        is_hole = ends or (SOFT not in left and _leads_on(before))
    else:
        is_hole = lang in UNSPACED_LANGUAGES and not right.strip(ASIDE) and after.isalnum()
    mark = HOLE if is_hole else GAP
    return f"{left}{mark}{right.replace(ASIDE, '')}"


def without_holed_sentences(line: str, lang: str) -> tuple[str, list[str]]:
    """``line`` without the sentences that have a hole, and these sentences."""
    sentences = split_sentences(" ".join(line.split()), lang)
    kept = [sentence for sentence in sentences if HOLE not in sentence]
    holed = [sentence for sentence in sentences if HOLE in sentence]
    return ("" if lang in UNSPACED_LANGUAGES else " ").join(kept), holed
