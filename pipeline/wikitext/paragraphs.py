"""From rendered text with marks (`markup`) to paragraphs: quotes, holes, empty brackets, spaces."""

import re
from dataclasses import dataclass, field

from pipeline.languages import UNSPACED_LANGUAGES
from pipeline.normalize import is_visible
from pipeline.sentences import split_sentences
from pipeline.wikitext.markup import ASIDE, BOLD, GAP, HEADING, HOLE, INDENT, ITALIC, LINE_MARKS, SOFT, TERM


@dataclass
class CleanText:
    """The text of a page and what had to be left out of it."""

    paragraphs: list[str] = field(default_factory=list)
    """In order; headings and list items are paragraphs of their own."""
    dropped_sentences: int = 0
    """Sentences left out because a template without known text stood in them."""
    plain: bool = field(default=False, compare=False)
    """Whether they are known to need no more normalizing than to NFC: of all that is invisible they have
    single spaces only."""


# All of these are possessive or start where no run of spaces has begun, so that none goes back over a line.
_OPEN, _CLOSE = r"(\[（［【〔", r")\]）］】〕"
_BRACKET = re.compile(f"([{_OPEN}])([^{_OPEN}{_CLOSE}]*+)([{_CLOSE}])")
_BRACKET_PART = re.compile("([,;，；、،؛/|=•·])")
_EMPTY_QUOTES = re.compile(f'["“„«「『‘‹]\\s*+[{HOLE}{GAP}][{HOLE}{GAP}\\s]*+["”“»」』’›]')
# One class in front, by which the engine skips over the rest of a line.
_DOUBLED_MARK = re.compile(
    f"[,;:，、،؛.](?:(?<!\\.)\\s*+[{HOLE}{GAP}][{HOLE}{GAP}\\s]*+(?=[,;.，、。،؛)）])"
    f"|(?<=\\.)\\s*+{GAP}[{GAP}\\s]*+(?=\\.))"
)
_HOLE = re.compile(f"(?<![\\s{GAP}])[\\s{GAP}]*+{HOLE}[\\s{GAP}{HOLE}]*+")
_ASIDE = re.compile(f"(?<![\\s{GAP}])[\\s{GAP}]*+{ASIDE}[\\s{GAP}{ASIDE}]*+")
_NO_SPACE_BEFORE = frozenset(",.;:!?)]}%،؛؟。，、：；！？）」』”»")
_NO_SPACE_AFTER = frozenset("([（「『“„«")
_SENTENCE_END = frozenset('.!?:;…。！？：；।॥۔؟։።။།"”»」』)）]')
_FULL_STOPS = frozenset(".!?…。！？।॥۔؟։።")
# "lies at", "steht bei": without what follows such a word, a sentence is broken.
_SHORT_WORD = re.compile("(?<!\\S)[^\\W\\d_]{1,3}$")
# What stands right before a template that shows a value, not a footnote.
_VALUE_FOLLOWS = frozenset("([{（「『“„«‹\"'‘=<>≈~≤≥±+×-–—−/$€£¥₽₹:№#@°%")
_EMPTY_BRACKET = re.compile(r"(?<=\s)[(（]\s*[)）]\s?")
_TERM_PARTS = re.compile(r"\s:\s")
_MAX_BRACKET = 240


def finish(text: str, lang: str, headings: bool, lists: bool, drop_holed: bool) -> CleanText:
    """Paragraphs of rendered ``text``; ``headings`` and ``lists`` say whether these are kept."""
    clean = CleanText()
    for line in text.split("\n"):
        body = line
        mark = line[:1]
        if mark in LINE_MARKS:
            # What such a line says ends with it; the next line is a paragraph again.
            marked, _, body = line[1:].partition(SOFT)
            for part in _marked_line(mark, marked, headings, lists):
                _finish_line(part, lang, drop_holed, True, clean)
        if body:
            _finish_line(body, lang, drop_holed, False, clean)
    _finish_page(clean)
    return clean


def _finish_page(clean: CleanText) -> None:
    """White space of other kinds, empty brackets and paragraphs without a word: of all paragraphs at once."""
    page = " ".join(clean.paragraphs)
    clean.plain = is_visible(page)
    if not clean.plain:
        clean.paragraphs = [" ".join(line.split()) for line in clean.paragraphs]
        page = " ".join(clean.paragraphs)
        clean.plain = is_visible(page)
    if " ()" in page or " ( )" in page or "（" in page or "）" in page:
        clean.paragraphs = [_EMPTY_BRACKET.sub("", line) for line in clean.paragraphs]
        clean.plain = False  # There may be a space at the end.
    clean.paragraphs = [line for line in clean.paragraphs if len(line) > 3 or any(map(str.isalnum, line))]


def _marked_line(mark: str, line: str, headings: bool, lists: bool) -> list[str]:
    if mark == HEADING:
        return [_heading(line, headings)]
    if mark == INDENT:
        return [line]
    if not lists:
        return []
    return _TERM_PARTS.split(line, maxsplit=1) if mark == TERM else [line]


def _heading(line: str, kept: bool) -> str:
    body = line.strip(f" \t{GAP}{HOLE}")
    title = body.strip("=")
    if not body.endswith("=") or not title.strip():
        # Not a heading after all: a paragraph that begins with '='.
        return body if title.strip() else ""
    return title if kept else ""


def _finish_line(line: str, lang: str, drop_holed: bool, in_list: bool, clean: CleanText) -> None:
    if BOLD in line:
        line = _resolve_bold(line)
    if ITALIC in line:
        line = line.replace(ITALIC, "")
    if ASIDE in line:
        line = _ASIDE.sub(lambda match: _judge_aside(match, lang), line)
    if HOLE in line or GAP in line:
        line = _mend(line, lang, in_list)
        if HOLE in line:
            line = _without_holes(line, lang, drop_holed, clean)
    if SOFT in line:
        line = line.replace(SOFT, " ")
    line = " ".join(line.split()) if "  " in line else line.strip()
    if line:
        clean.paragraphs.append(line)


# --- bold and italic ------------------------------------------------------------------------------------


def _resolve_bold(line: str) -> str:
    """Removes bold marks; where bold and italic are both unbalanced, one ``'''`` was ``'`` and ``''``.

    MediaWiki's rule (Parser::doQuotes), by line: the first one after a word of one letter ("l'''amour''"),
    else the first after a longer word, else the first after a space.
    """
    if line.count(BOLD) % 2 and line.count(ITALIC) % 2:
        parts = line.split(SOFT)
        line = SOFT.join(
            _turn_one_bold(part) if part.count(BOLD) % 2 and part.count(ITALIC) % 2 else part
            for part in parts
        )
    return line.replace(BOLD, "")


def _turn_one_bold(line: str) -> str:
    if not (line.count(BOLD) % 2 and line.count(ITALIC) % 2):
        return line
    places = [at for at, char in enumerate(line) if char == BOLD]
    after_letter = [at for at in places if at and not line[at - 1].isspace()]
    after_single = [at for at in after_letter if at < 2 or line[at - 2].isspace()]
    at = (after_single or after_letter or places)[0]
    return line[:at] + "'" + line[at + 1 :]


# --- what a dropped template leaves ---------------------------------------------------------------------


def _mend(line: str, lang: str, in_list: bool) -> str:
    """``line`` without empty brackets, quotation marks and doubled marks; holes that are real stay marked."""
    for _ in range(4):
        mended = _BRACKET.sub(_mend_bracket, line)
        if mended == line:
            break
        line = mended
    line = _EMPTY_QUOTES.sub(GAP, line)
    line = _DOUBLED_MARK.sub("", line)
    if HOLE in line:
        line = _HOLE.sub(lambda match: _judge(match, lang, in_list), line)
    return _close_gaps(line)


def _close_gaps(line: str) -> str:
    """``line`` without gaps: a space where a gap had one, none before a mark or after an opening bracket."""
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
            if (
                spaced
                and closed
                and text[0] not in _NO_SPACE_BEFORE
                and closed[-1][-1] not in _NO_SPACE_AFTER
            ):
                closed.append(" ")
            closed.append(text)
            spaced = piece[-1].isspace()
    last = pieces[-1]
    if not last.isspace():
        closed.append(last[len(last.rstrip()) :])
    return "".join(closed)


def _mend_bracket(match: re.Match[str]) -> str:
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
    """HOLE where the text around needs what is missing, GAP where it reads well without."""
    line, start, end = match.string, match.start(), match.end()
    gap = match.group()
    leading = gap[: len(gap) - len(gap.lstrip())]
    trailing = gap[len(gap.rstrip()) :]
    before = line[start - 1] if start and SOFT not in leading else ""
    after = line[end] if end < len(line) and SOFT not in trailing else ""
    if before and after:
        is_hole = _is_hole_inside(before, after, bool(leading), bool(trailing), lang)
    elif before:
        # At the end of a line a list's items take flags and notes; a sentence does not end without words.
        is_hole = bool(leading) and _leads_on(line[max(start - 4, 0) : start])
        if not in_list:
            is_hole = is_hole or before in ":=" or (bool(leading) and before not in _SENTENCE_END)
    else:
        is_hole = after.islower()
    space_before, space_after = " " if leading else "", " " if trailing else ""
    return f"{space_before}{HOLE}{space_after}" if is_hole else f"{GAP}{space_before or space_after}"


def _is_hole_inside(before: str, after: str, spaced_before: bool, spaced_after: bool, lang: str) -> bool:
    if before in _SENTENCE_END and before not in ',:;)"]':
        return after.islower() or (not spaced_before and not spaced_after and after.isdigit())
    if before in _VALUE_FOLLOWS:
        return True
    if spaced_before:
        # Glued to the next word: an icon or an anchor.
        return spaced_after or not after.isalnum()
    if lang in UNSPACED_LANGUAGES:
        return after.isalnum() and before.isalnum()
    # Glued to a word and followed by a space or a mark: a footnote.
    return after.isalnum() and not spaced_after


def _leads_on(before: str) -> bool:
    """Whether a short word in lower case ends ``before``, of at least four characters: "at", "bei"."""
    short = _SHORT_WORD.search(before)
    return short is not None and short.group().islower()


def _judge_aside(match: re.Match[str], lang: str) -> str:
    """HOLE where the sentence is broken without the pronunciation or coordinates, else GAP.

    That is where a word stands before it and a full stop after it, or where a short word in lower case
    leads to it; between two letters in languages without spaces.
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


def _without_holes(line: str, lang: str, drop: bool, clean: CleanText) -> str:
    if not drop:
        return _close_gaps(line.replace(HOLE, GAP))
    sentences = split_sentences(" ".join(line.split()), lang)
    kept = [sentence for sentence in sentences if HOLE not in sentence]
    clean.dropped_sentences += len(sentences) - len(kept)
    return ("" if lang in UNSPACED_LANGUAGES else " ").join(kept)
