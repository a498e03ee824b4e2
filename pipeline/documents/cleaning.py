"""Cleans raw documents into sentences or skips them, as a pure function of the page, its wiki and the config.

`pipeline.documents.reuse.rules_version` hashes the source of all code that this function uses, so that a
later build can check whether the results are still valid.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.config import BuildConfig
from pipeline.documents.filters import Document, Filters
from pipeline.documents.skip_rules import document_skip_reason, is_disambiguation, list_share
from pipeline.sources.documents import RawDocument
from pipeline.text.normalize import normalize_paragraphs, to_nfc
from pipeline.text.sentences.split import spaces_before, split_paragraphs
from pipeline.wikitext.plain_text import (
    NO_TEMPLATES,
    CleanText,
    TemplateTable,
    WikitextOptions,
    plain_text,
)
from pipeline.wikitext.site import SiteInfo
from schemas.skip_reasons import DISAMBIGUATION, FORMULAS, LIST_LIKE, TOO_LARGE, TOO_SHORT


@dataclass(frozen=True)
class LookedUp:
    """The names that cleaning a page looked up in the template table of its wiki, found or not."""

    templates: frozenset[str] = frozenset()
    """Folded names of templates."""
    headings: frozenset[str] = frozenset()
    """Folded headings."""


@dataclass(frozen=True)
class Cleaned:
    """A document after cleaning: paragraphs as lists of sentences, and the counts of cleaning."""

    page: RawDocument
    paragraphs: list[list[str]]
    spaced: list[bool]
    """[sentences of all paragraphs] whether white space precedes the sentence in its paragraph."""
    counts: Mapping[str, int]
    looked_up: LookedUp = field(default=LookedUp(), compare=False)


@dataclass(frozen=True)
class Skipped:
    """A page that cleaning skips."""

    reason: str
    looked_up: LookedUp = field(default=LookedUp(), compare=False)


class Cleaner:
    """Cleans and filters the documents of one file with the settings of a build. It has no state."""

    def __init__(
        self,
        site: SiteInfo,
        config: BuildConfig,
        templates: TemplateTable = NO_TEMPLATES,
        filters: Filters | None = None,
        source: str = "",
    ) -> None:
        self._site = site
        self._templates = templates
        self._settings = config.extraction
        self._options = wikitext_options(config)
        self._filters = Filters([]) if filters is None else filters
        self._source = source

    def clean(self, page: RawDocument) -> Cleaned | Skipped:
        """The cleaned document, or the reason to skip it."""
        counts: Mapping[str, int] = {}
        looked_up = LookedUp()
        if len(page.body) > self._settings.max_page_chars:
            return Skipped(TOO_LARGE)
        if page.kind == "wikitext":
            if is_disambiguation(page.title, page.body):
                return Skipped(DISAMBIGUATION)
            if list_share(page.body) > self._settings.max_list_share:
                return Skipped(LIST_LIKE)
            text = plain_text(page.body, self._site, self._options, self._templates, page.title)
            counts, looked_up = _counts(text), LookedUp(text.templates, text.headings)
            if text.plain:
                paragraphs = list(map(to_nfc, text.paragraphs))
            else:
                paragraphs = normalize_paragraphs(text.paragraphs, page.lang)
        else:
            paragraphs = normalize_paragraphs(page.body.split("\n"), page.lang)
        if reason := document_skip_reason(paragraphs, self._settings):
            is_formulas = reason == TOO_SHORT and counts.get("formula_chars", 0) >= self._settings.min_chars
            return Skipped(FORMULAS if is_formulas else reason, looked_up)
        sentences = split_paragraphs(paragraphs, page.lang)
        spaced = [space for pair in zip(paragraphs, sentences, strict=True) for space in spaces_before(*pair)]
        cleaned = Cleaned(page, sentences, spaced, counts, looked_up)
        dropped = self._drop_reason(cleaned) if self._filters else None
        return cleaned if dropped is None else Skipped(dropped, looked_up)

    def _drop_reason(self, cleaned: Cleaned) -> str | None:
        page = cleaned.page
        return self._filters.drop_reason(
            Document(self._source, page.lang, page.page_id, page.revision, page.title, cleaned.paragraphs)
        )


def _counts(text: CleanText) -> dict[str, int]:
    return {
        "sentences_dropped": text.dropped_sentences,
        "chars": sum(map(len, text.paragraphs)),
        "chars_dropped": text.dropped_chars,
        "back_matter_sections": text.back_matter_sections,
        "back_matter_chars": text.back_matter_chars,
        "formula_paragraphs": text.formula_paragraphs,
        "formula_chars": text.formula_chars,
        **{f"calls_{knowledge}": count for knowledge, count in text.decided.items()},
    }


def wikitext_options(config: BuildConfig) -> WikitextOptions:
    """The options of the markup cleaner, from the config."""
    settings = config.extraction
    return WikitextOptions(
        headings=settings.headings,
        lists=settings.lists,
        math=settings.math,
        back_matter=settings.back_matter,
        drop_holed_sentences=settings.drop_holed_sentences,
        template_rules=settings.template_rules,
        template_functions=settings.template_functions,
    )
