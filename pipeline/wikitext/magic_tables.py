"""Handles tables whose bars are magic words, as in the arguments of templates.

``{{!}}`` is a bar (mediawiki.org Help:Magic words). ``{{(!}}`` and ``{{!)}}`` are templates of most wikis for
``{|`` and ``|}``. Outside tables they stay unchanged, because the bar must not separate arguments there.
"""

import re

_OPEN = re.compile(r"[ \t:]*\{\|")
# A table from a function starts a new line at any position (MediaWiki: braceSubstitution).
_MAGIC_OPEN = re.compile(r"\{\{\{!\}\}(?!\})|\{\{\(!\}\}")
_LINE = re.compile(r"([ \t:]*)(\{\{!\}\}\}(?!\})|\{\{!\)\}\}|\{\{!\}\})")
_CLOSE = re.compile(r"[ \t:]*\|\}(?!\})")
_PLAIN = {"{{!}}}": "|}", "{{!)}}": "|}", "{{!}}": "|"}


def _plain(line: str) -> str:
    found = _LINE.match(line)
    return line if found is None else found[1] + _PLAIN[found[2]] + line[found.end() :]


def without_magic_tables(wikitext: str) -> str:
    """``wikitext`` with plain bars where magic words begin the lines of a table."""
    if "{{!}}" not in wikitext and "{{(!}}" not in wikitext:
        return wikitext
    if "{{{!}}" not in wikitext and "{{(!}}" not in wikitext and "\n{{!" not in wikitext:
        return wikitext
    lines = _MAGIC_OPEN.sub("\n{|", wikitext).replace("\n\n{|", "\n{|").split("\n")
    depth = 0
    for number, line in enumerate(lines):
        if _OPEN.match(line):
            depth += 1
        if depth:
            lines[number] = _plain(line)
            depth -= _CLOSE.match(lines[number]) is not None
    return "\n".join(lines)
