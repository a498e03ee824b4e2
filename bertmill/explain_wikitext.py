"""``explain wikitext``: the text that a reader of a page sees."""

from typing import Any

from pipeline.site import SiteInfo
from pipeline.wikitext.plain_text import plain_text


def explain(record: dict[str, Any]) -> dict[str, Any]:
    """Takes ``lang``, ``wikitext`` and ``namespaces`` (if known); ``output`` has one paragraph a line."""
    site = SiteInfo.from_names(record["lang"], record.get("namespaces") or {})
    return {"output": "\n".join(plain_text(record["wikitext"], site).paragraphs)}
