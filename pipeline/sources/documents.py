"""The items that a source reader yields: raw documents, and skipped pages with their reason."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RawDocument:
    """One document before cleaning."""

    page_id: str
    """Unique within source and language."""
    revision: int
    title: str
    lang: str
    body: str
    kind: Literal["wikitext", "plain"]
    """``wikitext`` goes through the markup cleaner. ``plain`` has one paragraph per line."""
    source_id: str | None = None
    """The id in the source, if the source gives one."""
    timestamp: str | None = None
    """Time of the revision, as the source writes it (Wikimedia: ISO 8601)."""
    url: str | None = None
    """URL of the document."""


@dataclass(frozen=True)
class Skip:
    """A page or row that is skipped before cleaning."""

    page_id: str
    title: str
    lang: str
    reason: str
