"""Converts wikitext to the text that a reader sees: a split into tokens, a matching loop, a rendering loop.

The regular expression in `markup` splits the page once. `matching` finds the end of each construct with one
stack. `rendering` then skips hidden parts without reading them, so the time is linear in the size of the
page, even for hostile pages. An unclosed construct affects at most its paragraph.
"""

from pipeline.wikitext.magic_tables import without_magic_tables
from pipeline.wikitext.markup import MARKS
from pipeline.wikitext.paragraphs import CleanText, finish
from pipeline.wikitext.rendering import Page
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_calls import Expansion
from pipeline.wikitext.templates.table import NO_TEMPLATES, TemplateTable
from pipeline.wikitext.wiki import WikitextOptions, wiki_of

__all__ = ["NO_TEMPLATES", "CleanText", "TemplateTable", "WikitextOptions", "plain_text"]

_DEFAULT = WikitextOptions()


def plain_text(
    wikitext: str,
    site: SiteInfo,
    options: WikitextOptions = _DEFAULT,
    templates: TemplateTable = NO_TEMPLATES,
    title: str = "",
) -> CleanText:
    """The paragraphs of the page ``title`` of the wiki ``site``. ``templates`` are the wiki's templates.

    Raises ConfigError if ``options.template_rules`` names a missing or invalid file.
    """
    wiki = wiki_of(site, options, templates)
    for mark in MARKS:
        if mark in wikitext:
            wikitext = wikitext.replace(mark, " ")
    if "\r" in wikitext:
        wikitext = wikitext.replace("\r\n", "\n").replace("\r", "\n")
    expansion = Expansion(title)
    text = Page(wiki.parse(without_magic_tables(wikitext)), wiki, expansion).text()
    if "\xa0" in text:
        text = text.replace("\xa0", " ")
    clean = finish(text, site.lang, options, templates.back_matter)
    clean.decided = expansion.decided
    clean.templates = frozenset(expansion.templates)
    return clean
