"""Which pages of a dump do not go on to cleaning, by what the dump says of them."""

import re
from collections.abc import Sequence

from pipeline.languages import is_redirect
from pipeline.site import SiteInfo
from pipeline.skip_reasons import CONTENT_MODEL, DELETED, EMPTY, NAMESPACE, REDIRECT
from pipeline.sources.wiki_page import WikiPage

# Begins neither with '#' nor with what may stand for it or for white space: an entity, a wide space.
_NO_REDIRECT = re.compile(rb"\s*[!\"$%'-~]")


def page_skip_reason(page: WikiPage, site: SiteInfo, namespaces: Sequence[int]) -> str | None:
    """Why the page is left out; None for one that goes on."""
    number = page.namespace
    if number is None:
        number = site.namespace_of_title(page.title)
    if number not in namespaces:
        return NAMESPACE
    if page.redirect:
        return REDIRECT
    if page.model not in ("", "wikitext"):
        return CONTENT_MODEL
    if page.deleted:
        return DELETED
    if not page.raw_text or page.raw_text.isspace():
        return EMPTY
    if _NO_REDIRECT.match(page.raw_text):
        return None
    return REDIRECT if is_redirect(page.beginning) else None
