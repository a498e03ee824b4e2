"""Wikitext to the text that a reader sees: one split into tokens, one matching loop, one rendering loop.

A page is split once by the alternation of `markup`. `matching` finds with one stack where each construct
ends; `rendering` then jumps over what is not shown and never looks at it, so time grows linearly with the
page, also for hostile ones. What is never closed costs at most its paragraph.
"""

from pipeline.site import SiteInfo
from pipeline.wikitext.markup import MARKS
from pipeline.wikitext.paragraphs import CleanText, finish
from pipeline.wikitext.rendering import Page
from pipeline.wikitext.wiki import WikitextOptions, wiki_of

__all__ = ["CleanText", "WikitextOptions", "plain_text"]

_DEFAULT = WikitextOptions()


def plain_text(wikitext: str, site: SiteInfo, options: WikitextOptions = _DEFAULT) -> CleanText:
    """The paragraphs of one page of the wiki ``site``.

    Raises ConfigError when ``options.template_rules`` names a file that is missing or wrong.
    """
    wiki = wiki_of(site, options)
    for mark in MARKS:
        if mark in wikitext:
            wikitext = wikitext.replace(mark, " ")
    if "\r" in wikitext:
        wikitext = wikitext.replace("\r\n", "\n").replace("\r", "\n")
    text = Page("\n" + wikitext, wiki).text()
    return finish(
        text, site.lang, options.headings == "keep", options.lists == "keep", options.drop_holed_sentences
    )
