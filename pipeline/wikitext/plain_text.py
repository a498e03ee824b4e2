"""Wikitext to the text that a reader sees: one split into tokens, one matching loop, one rendering loop.

A page is split once by the alternation of `markup`. `matching` finds with one stack where each construct
ends; `rendering` then jumps over what is not shown and never looks at it, so time grows linearly with the
page, also for hostile ones. What is never closed costs at most its paragraph.
"""

from pipeline.wikitext.magic_tables import without_magic_tables
from pipeline.wikitext.markup import MARKS
from pipeline.wikitext.paragraphs import CleanText, finish
from pipeline.wikitext.rendering import Expansion, Page
from pipeline.wikitext.site import SiteInfo
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
    """The paragraphs of the page ``title`` of the wiki ``site``; ``templates`` are the wiki's own.

    Raises ConfigError when ``options.template_rules`` names a file that is missing or wrong.
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
