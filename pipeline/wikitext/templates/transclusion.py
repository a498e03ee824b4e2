"""Extracts the text for transclusion from a template's page (mediawiki.org Help:Templates, Transclusion)."""

import re
from dataclasses import dataclass

from pipeline.text.languages import is_redirect
from pipeline.wikitext.magic_tables import without_magic_tables
from pipeline.wikitext.markup import MARKS
from pipeline.wikitext.site import TEMPLATE, SiteInfo
from pipeline.wikitext.templates.table import fold_name

MAX_BODY_CHARS = 16_384
"""Maximum analyzed characters of a body."""
MAX_PAGE_CHARS = 2_500_000
"""Longer pages are ignored. MediaWiki stores at most 2 MiB."""
_BEGINNING_CHARS = 4_096

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_TAG = re.compile(r"(?i)<(/?)(nowiki|noinclude|includeonly|onlyinclude)\s*(/?)>")
_STYLES = re.compile(r"(?i)<templatestyles\b[^<>]*>(?:\s*</templatestyles\s*>)?")
_SAFE_SUBSTITUTION = re.compile(r"(?i)\{\{\{\s*\|\s*(?:safe)?subst:\s*\}\}\}|(?<=\{\{)\s*(?:safe)?subst:")
_TARGET = re.compile(r"\[\[\s*:?\s*([^\[\]|#<>{}\n]{1,255})")


@dataclass(frozen=True)
class Included:
    """The content of a template's page: the text that a call includes, or the target of a redirect."""

    body: str = ""
    redirect: str = ""
    """Folded name of a redirect's target, or empty for other templates."""
    too_long: bool = False
    """Whether ``body`` is only the beginning of the included text."""


def included(wikitext: str, site: SiteInfo) -> Included:
    """The text that a call of the template includes, without comments and text for its own page only."""
    if len(wikitext) > MAX_PAGE_CHARS:
        return Included(too_long=True)
    if is_redirect(wikitext):
        return Included(redirect=_redirect_target(wikitext, site))
    text = wikitext
    for mark in MARKS:
        if mark in text:
            text = text.replace(mark, " ")
    if "<!--" in text:
        text = _COMMENT.sub("", text)
    if "<" in text:
        text = _STYLES.sub("", _without_own_page(text))
    if "subst:" in text:
        text = _SAFE_SUBSTITUTION.sub("", text)
    text = without_magic_tables(text.strip())
    if len(text) > MAX_BODY_CHARS:
        return Included(body=text[:_BEGINNING_CHARS], too_long=True)
    return Included(body=text)


def _without_own_page(text: str) -> str:
    """The included parts of ``text``: onlyinclude parts if any exist, else everything except noinclude.

    An unclosed noinclude extends to the end. Within nowiki these tags are text.
    """
    everywhere: list[str] = []
    only: list[str] = []
    tags = list(_TAG.finditer(text))
    last_end_of_nowiki = max(
        (tag.start() for tag in tags if tag[1] and tag[2].lower() == "nowiki"), default=0
    )
    at, hidden, in_only, in_nowiki = 0, False, False, False
    for tag in tags:
        closes, name, empty = tag[1], tag[2].lower(), tag[3]
        if name == "nowiki":
            in_nowiki = not closes and not empty and tag.start() < last_end_of_nowiki
        if name == "nowiki" or in_nowiki:
            continue
        piece = text[at : tag.start()]
        if not hidden:
            everywhere.append(piece)
        if in_only:
            only.append(piece)
        at = tag.end()
        if name == "noinclude" and not empty:
            hidden = not closes
        elif name == "onlyinclude":
            in_only = not closes and not empty
    if not hidden:
        everywhere.append(text[at:])
    if in_only:
        only.append(text[at:])
    return "".join(only or everywhere)


def _redirect_target(wikitext: str, site: SiteInfo) -> str:
    found = _TARGET.search(wikitext)
    return template_name(found[1], site) if found else ""


def template_name(title: str, site: SiteInfo) -> str:
    """The folded name of the template with this page title, with or without its namespace."""
    prefix, colon, rest = title.partition(":")
    if colon and site.namespace_of_prefix(prefix) == TEMPLATE:
        title = rest
    return fold_name(title)
