"""Turns rendered text with marks (`markup`) into paragraphs: headings, lists, quotes, holes, spaces."""

import re
from collections import Counter
from dataclasses import dataclass, field

from pipeline.text.normalize import is_visible
from pipeline.wikitext.back_matter import without_back_matter
from pipeline.wikitext.holes import close_gaps, judge_asides, mend, without_holed_sentences
from pipeline.wikitext.markup import (
    ASIDE,
    BOLD,
    FORMULA_CLOSE,
    FORMULA_OPEN,
    GAP,
    HEADING,
    HOLE,
    INDENT,
    ITALIC,
    LINE_MARKS,
    SOFT,
    SUPERSCRIPT,
    TERM,
)
from pipeline.wikitext.wiki import WikitextOptions


@dataclass
class CleanText:
    """The text of a page, and counts of what was left out."""

    paragraphs: list[str] = field(default_factory=list)
    """The paragraphs in order. Headings and list items are separate paragraphs."""
    dropped_sentences: int = 0
    """Sentences left out because they contained a template of unknown text."""
    dropped_chars: int = field(default=0, compare=False)
    """Characters of these sentences."""
    back_matter_sections: int = field(default=0, compare=False)
    """Sections of references, links and books that were left out."""
    back_matter_chars: int = field(default=0, compare=False)
    """Characters of these sections."""
    formula_paragraphs: int = field(default=0, compare=False)
    """Paragraphs of only formulas that were left out."""
    formula_chars: int = field(default=0, compare=False)
    """Characters of these paragraphs."""
    decided: Counter[str] = field(default_factory=Counter, compare=False)
    """Calls of templates by what decided their text: user, learned, built_in, unknown."""
    templates: frozenset[str] = field(default=frozenset(), compare=False)
    """Folded names of the templates that were looked up in the table of the wiki."""
    headings: frozenset[str] = field(default=frozenset(), compare=False)
    """Folded headings that were looked up in the learned headings of the wiki's table."""
    plain: bool = field(default=False, compare=False)
    """Whether the paragraphs need no normalization except NFC, because their only invisible characters are
    single spaces."""


_DEFAULT = WikitextOptions()
_EMPTY_BRACKET = re.compile(r"(?<=\s)[(（]\s*[)）]\s?")
_FORMULA = re.compile(f"{FORMULA_OPEN}[^{FORMULA_OPEN}{FORMULA_CLOSE}]*+{FORMULA_CLOSE}")
# The number next to a displayed formula: "(3)", "(Eq. 3a)".
_FORMULA_NUMBER = re.compile(r"[(（\[](?:[^\W\d_]{1,4}\.\s?)?[^()（）\[\]\s]{1,6}[)）\]]")
_TERM_PARTS = re.compile(r"\s:\s")
# A raised number or variable after a digit, a bracket or a variable is a power. After a unit ("m2") and in an
# ordinal number ("1er") it stays attached.
_LETTERS = f"{ITALIC}{BOLD}{FORMULA_OPEN}"
_POWER = re.compile(
    f"(?:(?<=[0-9)\\]{ITALIC}])|(?<=[^0-9.,]10)[ \u00a0]){SUPERSCRIPT}\\s*+"
    f"(?=[{_LETTERS}]*[-+−–]?[0-9]|[{_LETTERS}]+[^\\W\\d_]|[a-z]\\s?[-+−–*/])"
)
# Letters that are not variables belong to an ordinal number, such as the Catalan "2n".
_POWER_OF_VARIABLE = re.compile(f"(?<=[0-9]){SUPERSCRIPT}(?=[nkxijpq](?![^\\W_]))")
_N_IS_ORDINAL = ("ca", "oc")


def finish(
    text: str, lang: str, options: WikitextOptions = _DEFAULT, back_matter: frozenset[str] = frozenset()
) -> CleanText:
    """Paragraphs of rendered ``text``. ``back_matter`` are the wiki's lowercase headings of link lists."""
    clean = CleanText()
    lines = text.split("\n")
    if options.back_matter == "drop":
        looked_up: set[str] = set()
        lines, dropped = without_back_matter(lines, back_matter, looked_up)
        clean.headings = frozenset(looked_up)
        clean.back_matter_sections, clean.back_matter_chars = dropped
    for line in lines:
        body = line
        mark = line[:1]
        if mark in LINE_MARKS:
            # Such a line is complete. The next line is a normal paragraph.
            marked, _, body = line[1:].partition(SOFT)
            for part in _marked_line(mark, marked, options):
                _finish_line(part, lang, options, True, clean)
        if body:
            _finish_line(body, lang, options, False, clean)
    _finish_page(clean)
    return clean


def _finish_page(clean: CleanText) -> None:
    """Removes other white space, empty brackets and wordless paragraphs, in all paragraphs together."""
    page = " ".join(clean.paragraphs)
    clean.plain = is_visible(page)
    if not clean.plain:
        clean.paragraphs = [" ".join(line.split()) for line in clean.paragraphs]
        page = " ".join(clean.paragraphs)
        clean.plain = is_visible(page)
    if " ()" in page or " ( )" in page or "（" in page or "）" in page:
        clean.paragraphs = [_EMPTY_BRACKET.sub("", line) for line in clean.paragraphs]
        clean.plain = False  # A space may remain at the end.
    clean.paragraphs = [line for line in clean.paragraphs if len(line) > 3 or any(map(str.isalnum, line))]


def _marked_line(mark: str, line: str, options: WikitextOptions) -> list[str]:
    if mark == HEADING:
        return [_heading(line, options.headings == "keep")]
    if mark == INDENT:
        return [line]
    if options.lists == "drop":
        return []
    return _TERM_PARTS.split(line, maxsplit=1) if mark == TERM else [line]


def _heading(line: str, kept: bool) -> str:
    body = line.strip(f" \t{GAP}{HOLE}")
    title = body.strip("=")
    if not body.endswith("=") or not title.strip():
        # This is not a heading, but a paragraph that begins with '='.
        return body if title.strip() else ""
    return title if kept else ""


def _finish_line(line: str, lang: str, options: WikitextOptions, in_list: bool, clean: CleanText) -> None:
    if FORMULA_OPEN in line:
        dropped = options.math != "tex" and _only_formulas(line)
        if SUPERSCRIPT in line:
            line = _POWER.sub("^", line)
        line = line.replace(FORMULA_OPEN, "").replace(FORMULA_CLOSE, "")
        if dropped:
            clean.formula_paragraphs += 1
            clean.formula_chars += len(line)
            return
    if SUPERSCRIPT in line:
        line = _POWER.sub("^", line)
        if lang not in _N_IS_ORDINAL:
            line = _POWER_OF_VARIABLE.sub("^", line)
        line = line.replace(SUPERSCRIPT, "")
    if BOLD in line:
        line = _resolve_bold(line)
    if ITALIC in line:
        line = line.replace(ITALIC, "")
    if ASIDE in line:
        line = judge_asides(line, lang)
    if HOLE in line or GAP in line:
        line = mend(line, lang, in_list)
        if HOLE in line:
            line = _without_holes(line, lang, options.drop_holed_sentences, clean)
    if SOFT in line:
        line = line.replace(SOFT, " ")
    line = " ".join(line.split()) if "  " in line else line.strip()
    if line:
        clean.paragraphs.append(line)


def _only_formulas(line: str) -> bool:
    """Whether ``line`` has formulas but no words."""
    rest, count = line, 1
    while count:
        rest, count = _FORMULA.subn(" ", rest)
    return not any(map(str.isalpha, _FORMULA_NUMBER.sub("", rest)))


# --- bold and italic ------------------------------------------------------------------------------------


def _resolve_bold(line: str) -> str:
    """Removes bold marks. If bold and italic are both unbalanced, one ``'''`` was ``'`` and ``''``.

    Follows MediaWiki's rule for a line (Parser::doQuotes): the first one after a one-letter word
    ("l'''amour''"), else the first after a longer word, else the first after a space.
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


def _without_holes(line: str, lang: str, drop: bool, clean: CleanText) -> str:
    if not drop:
        return close_gaps(line.replace(HOLE, GAP))
    kept, holed = without_holed_sentences(line, lang)
    clean.dropped_sentences += len(holed)
    clean.dropped_chars += sum(len(sentence) - sentence.count(HOLE) for sentence in holed)
    return kept
