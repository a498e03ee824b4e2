"""Document filters from the config. Each one keeps a cleaned document, or drops it with a reason.

A filter is a class with one method::

    class MaxDigits:
        def __init__(self, share: float = 0.2) -> None:
            self.share = share

        def filter(self, document: Document) -> bool | tuple[bool, str]:
            digits = sum(character.isdigit() for character in document.text)
            return digits <= self.share * len(document.text), "too-many-digits"

The config names it as ``extraction.filters: [{use: "my_filters:MaxDigits", options: {share: 0.1}}]``. A
filter must be a pure function of the document, so that a build is reproducible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline import config
from schemas.errors import ConfigError, PluginError
from schemas.plugins import load_plugin, plugin_errors


@dataclass(frozen=True)
class Document:
    """A cleaned document as filters see it."""

    source: str
    """Name of the source in the config."""
    lang: str
    page_id: str
    revision: int
    title: str
    paragraphs: Sequence[Sequence[str]]
    """The sentences of each paragraph."""

    @property
    def text(self) -> str:
        """The paragraphs as lines."""
        return "\n".join(" ".join(sentences) for sentences in self.paragraphs)


class DocumentFilter(Protocol):
    """The interface of a filter."""

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """Whether the document stays, and the reason under which a dropped one is counted.

        Without a reason, the class name is the reason.
        """


class Filters:
    """The filters of a build, in the order of the config.

    Raises ConfigError when a filter cannot be imported or created with its options, or has no method
    ``filter``.
    """

    def __init__(self, entries: Sequence[config.DocumentFilter]) -> None:
        self._filters = [
            (entry.use, _create(entry, f"extraction.filters.{number}"))
            for number, entry in enumerate(entries)
        ]

    def __bool__(self) -> bool:
        return bool(self._filters)

    def drop_reason(self, document: Document) -> str | None:
        """The reason of the first filter that drops the document, or None if it stays.

        Raises PluginError when a filter fails or returns a value of the wrong type.
        """
        for name, entry in self._filters:
            page = f"document {document.source}/{document.lang}/{document.page_id}"
            with plugin_errors(name, page):
                result = entry.filter(document)
            keeps, reason = result if isinstance(result, tuple) else (result, name.rpartition(":")[2])
            if not isinstance(keeps, bool) or not isinstance(reason, str) or not reason:
                raise PluginError(f"{name}: {page}: returned {result!r:.80}, not a bool or (bool, reason)")
            if not keeps:
                return reason
        return None


def _create(entry: config.DocumentFilter, field: str) -> Any:
    factory = load_plugin(entry.use, f"{field}.use").object
    try:
        document_filter = factory(**entry.options)
    except Exception as error:
        # Third-party code may raise anything.
        message = " ".join(str(error).split())
        raise ConfigError(f"{field}: {entry.use}: {type(error).__name__}: {message}") from error
    if not callable(getattr(document_filter, "filter", None)):
        raise ConfigError(f"{field}: {entry.use}: has no method filter(document)")
    return document_filter
