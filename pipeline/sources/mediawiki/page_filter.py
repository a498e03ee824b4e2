"""Decides from the fields of a page whether to skip it before cleaning."""

import re
from collections.abc import Sequence

from pipeline.sources.mediawiki.page import WikiPage
from pipeline.text.languages import is_redirect
from pipeline.wikitext.site import SiteInfo
from schemas.skip_reasons import CONTENT_MODEL, DELETED, EMPTY, NAMESPACE, REDIRECT

# Matches text that does not start with '#', or with an entity or wide space (possibly '#' or white space).
_NO_REDIRECT = re.compile(rb"\s*[!\"$%'-~]")

# A redirect has a '#' among its first 200 characters, each of which is stored in at most 10 bytes.
_REDIRECT_BYTES = 2000


def page_skip_reason(page: WikiPage, site: SiteInfo, namespaces: Sequence[int]) -> str | None:
    """The reason to skip the page, or None to keep it."""
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
    if _NO_REDIRECT.match(page.raw_text) or b"#" not in page.raw_text[:_REDIRECT_BYTES]:
        return None
    return REDIRECT if is_redirect(page.beginning) else None
