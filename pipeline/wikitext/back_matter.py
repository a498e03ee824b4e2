"""Removes back matter: sections of references, links and books, with their headings.

A section ends at the next heading of the same or a higher level. Some headings always introduce back matter
("References"). Others do so only if lists follow, such as "Literature", which may be prose.
"""

import re
from functools import lru_cache

from pipeline.wikitext.markup import BOLD, GAP, HEADING, HOLE, LINE_MARKS, MARKS, SOFT, TERM
from pipeline.wikitext.wiki_words import BACK_MATTER, BACK_MATTER_IF_LISTED

_AND = re.compile(
    r"\s*[,;/&+・、]\s*|\s+(?:and|und|et|y|e|ed|en|och|og|ja|és|i|a|u|и|і|й|та|ja|ve|və|și|dan|và|kaj|και|en/of)\s+"
    r"|及び|および|ならびに|と|和|與|与|及|\s및\s"
)
_MARK = re.compile(f"[{''.join(MARKS)}]")
_MIN_LISTED = 0.5
# Levels of headings are 1 to 6. A bold line or a term that serves as a heading is below them.
_LEVEL_OF_LINE = 7
_MAX_BOLD_LINE = 80
_HEADING_MARKS = frozenset((HEADING, BOLD, TERM))


def without_back_matter(
    lines: list[str], learned: frozenset[str], looked_up: set[str]
) -> tuple[list[str], tuple[int, int]]:
    """The lines of a rendered page without back matter, and the (sections, characters) of back matter.

    Adds the folded headings that were looked up in ``learned`` to ``looked_up``.
    """
    kept: list[str] = []
    sections = characters = 0
    resume = 0
    for at, line in enumerate(lines):
        if at < resume:
            continue
        if line and line[0] in _HEADING_MARKS:
            level, title = _heading_of(line)
            if level and _depends_on_learned(title, level):
                looked_up.add(title)
            if level and may_be_back_matter(title, learned, level):
                end = _end_of_section(lines, at, level)
                if _is_certain(title) or _is_listed(lines[at:end]):
                    after = _text_after(lines[end - 1], level)
                    sections += 1
                    characters += _length("".join(lines[at:end])) - len(after)
                    kept += [after] if after else []
                    resume = end
                    continue
        kept.append(line)
    return kept, (sections, characters)


def _length(text: str) -> int:
    return len(_MARK.sub("", text))


def _text_after(line: str, level: int) -> str:
    """Below a line that serves as a heading, the paragraph directly after the last item."""
    return line.partition(SOFT)[2] if level == _LEVEL_OF_LINE else ""


def fold_heading(title: str) -> str:
    """A heading in the form for comparison: lowercase, without markup and without marks at its end."""
    folded = " ".join(_MARK.sub("", title).split()).strip(" :：.=").casefold()
    # A capital "İ" folds to an "i" with a dot above.
    return folded.replace("i\u0307", "i")


def _heading_of(line: str) -> tuple[int, str]:
    """Level and folded title of a heading. Level 0 for any other line."""
    if line[:1] == HEADING:
        return _parsed_heading(line.partition(SOFT)[0])
    return _parsed_heading(line) if line[:1] in (BOLD, TERM) and len(line) < _MAX_BOLD_LINE else (0, "")


@lru_cache(maxsize=20_000)
def _parsed_heading(line: str) -> tuple[int, str]:
    mark = line[0]
    if mark == HEADING:
        body = line[1:].strip(f" \t{GAP}{HOLE}")
        title = body.strip("=")
        level = min(len(body) - len(body.lstrip("=")), len(body) - len(body.rstrip("=")))
        return (min(level, 6), fold_heading(title)) if level and title.strip() else (0, "")
    if mark == TERM or line.rstrip(f"{SOFT}{GAP}{HOLE} :：").endswith(BOLD):
        return _LEVEL_OF_LINE, fold_heading(line)
    return 0, ""


def may_be_back_matter(title: str, learned: frozenset[str], level: int = 2) -> bool:
    """Whether the folded heading may introduce references or links. ``learned`` are those of the wiki."""
    if not _depends_on_learned(title, level):
        return _is_certain(title) or (level != _LEVEL_OF_LINE and title in BACK_MATTER_IF_LISTED)
    return is_learned(title, learned)


def _depends_on_learned(title: str, level: int) -> bool:
    return level != _LEVEL_OF_LINE and not _is_certain(title) and title not in BACK_MATTER_IF_LISTED


def is_learned(title: str, learned: frozenset[str]) -> bool:
    """Whether the folded heading, or one of two headings in it, is in ``learned``.

    "Nūruodis i olūti" (references and sources) counts if the first of them was learned.
    """
    return bool(learned) and not learned.isdisjoint(_AND.split(title))


@lru_cache(maxsize=10_000)
def _is_certain(title: str) -> bool:
    """Whether the heading always introduces back matter. "References and literature" is two headings."""
    if title in BACK_MATTER:
        return True
    parts = [part for part in _AND.split(title) if part]
    known = [part in BACK_MATTER for part in parts]
    return any(known) and all(
        certain or part in BACK_MATTER_IF_LISTED for part, certain in zip(parts, known, strict=True)
    )


def _end_of_section(lines: list[str], start: int, level: int) -> int:
    """The line before which the section ends. Below a line that serves as a heading, prose ends it."""
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if level == _LEVEL_OF_LINE:
            if _heading_of(line)[0] or (line.strip(f"{SOFT}{GAP}{HOLE} ") and line[0] not in LINE_MARKS):
                return at
        elif line[:1] == HEADING and 0 < _heading_of(line)[0] <= level:
            return at
    return len(lines)


def _is_listed(lines: list[str]) -> bool:
    """Whether list items make up at least half of the text."""
    listed = total = 0
    for line in lines:
        # The first line of a marked paragraph is the item or heading. The rest is a normal paragraph.
        marked, _, rest = line.partition(SOFT) if line[:1] in LINE_MARKS else ("", "", line)
        item = 0 if line[:1] == HEADING else _length(marked)
        listed += item
        total += item + _length(rest.strip())
    return listed >= _MIN_LISTED * total
