"""What a source reader gives: documents in raw form, or the reason why a page is left out."""

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
    """``wikitext`` goes through the markup cleaner; ``plain`` has a paragraph per line."""


@dataclass(frozen=True)
class Skip:
    """A page or row that is left out before cleaning."""

    page_id: str
    title: str
    lang: str
    reason: str
