"""Defines the tokens of wikitext: one regular expression, and the meaning of each token.

`token_pattern` splits a page once. `kind_of` classifies every distinct token once and caches the result.
Sources: mediawiki.org Help:Formatting, Help:Links, Help:Tables, Markup spec, Sanitizer's list of HTML tags,
and the tags of the extensions that Wikimedia's wikis run.
"""

import html
import re
from functools import lru_cache
from html.entities import html5

from pipeline.wikitext.wiki_words import HIDDEN_CLASS_STARTS, HIDDEN_CLASSES

# Marks within the rendered text of a page. Finishing the paragraphs removes them.
HOLE = "\x01"  # a template of unknown text was here
GAP = "\x02"  # something without text was here
HEADING = "\x03"  # first in a line: a heading
ITEM = "\x04"  # first in a line: a list item
ITALIC = "\x05"
BOLD = "\x06"
TERM = "\x07"  # first in a line: an item of a definition list
INDENT = "\x08"  # first in a line: an indented line
ASIDE = "\x0e"  # a template was here whose text most sentences do not need: coordinates, pronunciation
SOFT = "\x0b"  # a line feed within a paragraph
SUPERSCRIPT = "\x0f"  # what follows is raised
FORMULA_OPEN, FORMULA_CLOSE = "\x10", "\x11"  # around a formula
BLANKS = " \t\n\x0b"
"""Characters to strip from an argument. Excludes the non-breaking space, which templates add deliberately."""
LINE_MARKS = frozenset((HEADING, ITEM, INDENT, TERM))
MARKS = (
    HOLE, GAP, ASIDE, HEADING, ITEM, ITALIC, BOLD, TERM, INDENT, SOFT, SUPERSCRIPT, FORMULA_OPEN,
    FORMULA_CLOSE,
)  # fmt: skip

# Kinds of tokens. Those below LINE have no structure and become TEXTS[token].
NOTHING, LITERAL = 0, 1
LINE = 2  # a line feed that ends a paragraph: blank line, list item, heading, rule
CELL = 3  # a line that starts with '|': the next argument of a template, or a table's line
HEADER_CELL = 4
TABLE_OPEN, TABLE_CLOSE = 5, 6
LINK_OPEN, BRACKET_CLOSE, URL_OPEN, BARE_URL = 7, 8, 9, 10
TEMPLATE_OPEN, PARAMETER_OPEN, BRACE_CLOSE = 11, 12, 13
RAW_OPEN = 14  # a tag whose content is not wikitext
REFERENCE_OPEN = 15
HIDDEN_OPEN = 16  # a tag whose content is not shown
POEM_OPEN = 17
TAG_CLOSE = 18
COMMENT_OPEN, COMMENT_CLOSE = 19, 20
VARIANT_OPEN, VARIANT_CLOSE = 21, 22
SILENT = 23  # shows nothing, but may leave a doubled space

# Groups repeat within (?>...) instead of with )*+, because Python before 3.11.5 loses its position after that
# (python/cpython issue 106052).
_TAG = (
    r"<(?:!--"
    # A '>' inside a quoted attribute does not end the tag ...
    r"""|/?[A-Za-z](?>(?:[^<>"'=]++|=[ \t]*+"[^"<\n]*+"|=[ \t]*+'[^'<\n]*+'|["'=])*)>"""
    # ... unless its quotation mark is never closed.
    r"|/?[A-Za-z][^<>]*+>"
    # The same without '>', for names that cannot be a word of a comparison ("a <b").
    r"|/?(?:ref|br|div|span|small|center|sup|sub|nowiki|blockquote)(?![A-Za-z0-9])"
    r"""(?>(?:[ \t]+[A-Za-z-]++[ \t]*=[ \t]*(?:"[^"<>\n]*+"|[^\s<>"]++))*))"""
)
_ALTERNATIVES = (
    r"\n[ \t\n]*+(?>(?:[:;*\#]*+[ \t]*+\{\||[*\#:;]++[ \t]*+|={1,6}+|\|\}++|\|[-+]?+|!|-{4,}+)?)",
    r"\[\[\[*+",
    r"\[(?:(?:[A-Za-z]{3,9}:)?//|mailto:)(?>(?:[^\s\]<>\"\[{}-]++|-(?!->))+)",
    r"\]\]*+",
    r"\{\{\{(?!\{)",
    r"\{\{",
    r"\}\}\}*+",
    r"''++",
    _TAG,
    r"-->",
    r"&(?:[A-Za-z][A-Za-z0-9]*+|\#[0-9]++|\#[xX][0-9A-Fa-f]++);",
    # Any letters and marks: in Indic scripts the vowel signs of a switch are not \\w.
    r"__(?=[^\W\d])[^\s<>\[\]{}|=:*#'\"&]{2,60}?__",
    # An address in a comment must not swallow the comment's end.
    r"://(?>(?:[^\s<>\[\]{}|\"'（）。、，；：！？「」『』《》【】-]++|-(?!->))*)",
)
_VARIANT_ALTERNATIVES = (r"-\{(?!\{)", r"\}-")

FORMULA_TAGS = frozenset(["math", "chem", "ce"])
# Elements whose content is not wikitext (tags of extensions).
RAW_TAGS = frozenset(
    "nowiki pre math chem ce score timeline gallery hiero syntaxhighlight source templatedata graph "
    "mapframe maplink inputbox imagemap categorytree charinsert indicator dynamicpagelist rss quiz "
    "templatestyles references easytimeline phonos".split()
)
_HIDDEN_TAGS = frozenset(["table", "rt", "rp", "rtc", "includeonly", "script", "style"])
_BLOCK_TAGS = frozenset(
    "br p div blockquote center li dd dt ul ol dl h1 h2 h3 h4 h5 h6 hr tr td th caption thead tbody "
    "tfoot poem table references gallery article aside figure figcaption main header footer nav pre".split()
)
_INLINE_TAGS = frozenset(
    "a abbr b bdi bdo big cite code data del dfn em font i ins kbd link mark meta noinclude onlyinclude "
    "q ruby rb rbc s samp section small span strike strong sub sup time tt u var wbr col colgroup img "
    "ref languages translate tvar everyone nobr acronym label nomobile noexport onlymobile "
    "langconvert".split()
)
_KNOWN_TAGS = RAW_TAGS | _HIDDEN_TAGS | _BLOCK_TAGS | _INLINE_TAGS
_HIDING_STYLE = re.compile(r"""(?i)display\s*:\s*none|\brole\s*=\s*["']?navigation\b""")
_CLASS = re.compile(r"""(?i)\bclass\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
_TAG_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)")
_ADDRESSES = ("<http://", "<https://", "<ftp://")
_SWITCHES = frozenset(
    "notoc forcetoc toc noeditsection nogallery notitleconvert notc nocontentconvert nocc index noindex "
    "staticredirect newsectionlink nonewsectionlink hiddencat expectunusedcategory expectunusedtemplate "
    "disambig start end noglobal expected_unconnected_page archivedtalk notalk".split()
)

TEXTS: dict[str, str] = {}
"""The text for each token of kind NOTHING, LITERAL, LINE or TAG_CLOSE."""
TAG_NAMES: dict[str, str] = {}
"""Element name of every known opening or closing tag."""
KINDS: dict[str, int] = {}
"""Kinds of the known tokens."""
_MAX_REMEMBERED = 50_000
_generations: list[None] = []


@lru_cache(maxsize=2)
def token_pattern(variants: bool) -> re.Pattern[str]:
    """The markup tokens as one alternation with one group. ``variants`` adds ``-{`` and ``}-``."""
    # Every alternative starts with a literal character, which lets the engine skip plain text.
    alternatives = "|".join(_ALTERNATIVES + (_VARIANT_ALTERNATIVES if variants else ()))
    return re.compile(f"({alternatives})")


def kind_of(token: str) -> int:
    """The kind of ``token``. Stores its text in `TEXTS` and a tag's name in `TAG_NAMES`."""
    kind = KINDS.get(token)
    if kind is None:
        kind, TEXTS[token] = _classify(token)
        KINDS[token] = kind
    return kind


def forget_if_full() -> bool:
    """Clears the cache of tokens if it is full. Returns whether it did. Never call it within a page."""
    if len(KINDS) <= _MAX_REMEMBERED:
        return False
    for memory in (KINDS, TEXTS, TAG_NAMES):
        memory.clear()
    _generations.append(None)
    return True


def generation() -> int:
    """How often the cache of tokens was cleared. Text parsed before that can no longer be rendered."""
    return len(_generations)


def kinds_of(tokens: list[str]) -> list[int]:
    """The kinds of tokens."""
    try:
        return list(map(KINDS.__getitem__, tokens))
    except KeyError:
        return [kind_of(token) for token in tokens]


_FIXED = {
    "<!--": (COMMENT_OPEN, ""),
    "-->": (COMMENT_CLOSE, "-->"),
    "-{": (VARIANT_OPEN, ""),
    "}-": (VARIANT_CLOSE, ""),
    "{{": (TEMPLATE_OPEN, ""),
    "{{{": (PARAMETER_OPEN, ""),
}
_BY_FIRST_CHAR = {"}": (BRACE_CLOSE, ""), "]": (BRACKET_CLOSE, ""), ":": (BARE_URL, "")}


def _classify(token: str) -> tuple[int, str]:
    first = token[0]
    known = _FIXED.get(token) or _BY_FIRST_CHAR.get(first)
    if known is not None:
        return known
    if first == "\n":
        return _classify_line(token)
    if first == "<":
        return _classify_tag(token)
    if first == "[":
        return (LINK_OPEN if token[1] == "[" else URL_OPEN), ""
    if first == "_":
        return (NOTHING, "") if _is_switch(token[2:-2]) else (LITERAL, token)
    return LITERAL, decode_entity(token) if first == "&" else _quote_marks(len(token))


def _classify_line(token: str) -> tuple[int, str]:
    marker = token.lstrip(" \t\n")
    first = marker[:1]
    if not first:
        # A line that starts with a space stays separate (preformatted).
        return (LITERAL, SOFT) if token == "\n" else (LINE, "\n")
    if marker.endswith("{|"):
        return TABLE_OPEN, "\n"
    if first == "|":
        return (TABLE_CLOSE if marker[1:2] == "}" else CELL), "\n"
    if first == "!":
        return HEADER_CELL, "\n!"
    if first == "=":
        mark = HEADING + marker
    elif first == "-":
        mark = ""
    else:
        mark = TERM if ";" in marker else ITEM if "*" in marker or "#" in marker else INDENT
    return LINE, "\n" + mark


def _classify_tag(token: str) -> tuple[int, str]:
    found = _TAG_NAME.match(token)
    name = found.group(1).lower() if found else ""
    if token.startswith(_ADDRESSES):
        return SILENT, ""
    if name not in _KNOWN_TAGS:
        return LITERAL, token
    TAG_NAMES[token] = name
    text = "\n" if name in _BLOCK_TAGS else ""
    is_extension = name in RAW_TAGS or name == "ref"
    if token[1] == "/":
        kind = TAG_CLOSE
    elif name == "br" or token.rstrip("> ").endswith("/"):
        kind = SILENT if is_extension else NOTHING
    elif is_extension:
        kind = REFERENCE_OPEN if name == "ref" else RAW_OPEN
    elif name in _HIDDEN_TAGS or _HIDING_STYLE.search(token) or hidden_class(token):
        kind = HIDDEN_OPEN
    elif name == "sup":
        kind, text = LITERAL, SUPERSCRIPT
    else:
        kind = POEM_OPEN if name == "poem" else NOTHING
    return kind, text


def classes_of(tag: str) -> list[str]:
    """The class names in an opening tag, in lower case."""
    found = _CLASS.search(tag)
    return (found[1] or found[2] or found[3] or "").lower().split() if found else []


def hidden_class(tag: str) -> str | None:
    """The class in an opening tag that marks an element without running text, or None."""
    for name in classes_of(tag):
        if name in HIDDEN_CLASSES or name.startswith(HIDDEN_CLASS_STARTS):
            return name
    return None


def _quote_marks(count: int) -> str:
    """Apostrophes as bold and italic marks. As in MediaWiki, a fourth one and those after the fifth show."""
    if count == 2:
        return ITALIC
    shown = "'" if count == 4 else "'" * max(0, count - 5)
    return shown + (BOLD if count < 5 else BOLD + ITALIC)


def _is_switch(word: str) -> bool:
    """Whether the word is a behavior switch, which has capitals in any language, unlike __init__."""
    return word == word.upper() or word.lower() in _SWITCHES


def decode_entity(entity: str) -> str:
    """The character for ``&name;`` or ``&#number;``. An unknown name stays unchanged."""
    text = html.unescape(entity) if entity[1] == "#" else html5.get(entity[1:], entity)
    if text in "\n\r\t":
        return " "
    return "" if text in MARKS else text
