"""A work unit becomes rows of documents: read, clean, normalize, split into sentences, filter, count.

Memory holds the current page, one batch of rows and the index of the part.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.documents.cleaning import Cleaner, Skipped
from pipeline.documents.filters import Filters
from pipeline.documents.funnel import Funnel
from pipeline.documents.reuse.previous_pages import KnownPage
from pipeline.documents.reuse.unit_pages import FilePages, UnitPages
from pipeline.documents.rows import DocumentRows
from pipeline.documents.time_limit import TimeLimit, TimeLimitError
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.reader import read_unit
from pipeline.sources.units import Unit
from pipeline.text.normalize import count_lone_surrogates
from pipeline.wikitext.plain_text import NO_TEMPLATES, TemplateTable
from pipeline.wikitext.site import SiteInfo
from schemas.skip_reasons import TIMEOUT


def _no_templates(_: Unit) -> TemplateTable:
    return NO_TEMPLATES


def extract_unit(
    unit: Unit,
    config: BuildConfig,
    funnel: Funnel,
    table_of: Callable[[Unit], TemplateTable] = _no_templates,
    unit_pages: UnitPages | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of DOCUMENTS rows in the order of the file. Every page read is counted in ``funnel``.

    ``table_of`` returns what is known of the templates of a unit's wiki. ``unit_pages`` gets the index of the
    pages, and may know them from an earlier build.

    Raises InputError that names the file on damaged input, CorpusError when the counts do not balance,
    PluginError when a plug-in fails.
    """
    rows = DocumentRows()
    filters = Filters(config.extraction.filters)
    with TimeLimit(config.extraction.page_seconds) as limit:
        for file in unit.ranges:
            site = SiteInfo(file.lang, file.dbname, dict(file.site_namespaces))
            table = table_of(file)
            extractor = _FileExtractor(
                Cleaner(site, config, table, filters, unit.source),
                limit,
                funnel,
                rows,
                unit_pages.of_file(file, site, table, config) if unit_pages is not None else None,
                unit.source,
            )
            for page in read_unit(file, config.extraction):
                extractor.add(page)
                if rows.full():
                    yield rows.take()
    if len(rows):
        yield rows.take()
    funnel.check(unit.uri)


class _FileExtractor:
    """Turns the pages of one file into rows, or into counts of why they are skipped."""

    def __init__(
        self,
        cleaner: Cleaner,
        limit: TimeLimit,
        funnel: Funnel,
        rows: DocumentRows,
        pages: FilePages | None,
        source: str,
    ) -> None:
        self._cleaner, self._limit, self._funnel = cleaner, limit, funnel
        self._rows, self._pages, self._source = rows, pages, source

    def add(self, page: RawDocument | Skip) -> None:
        """Adds a row for the page, or skips it. Counts either."""
        if isinstance(page, Skip):
            self._funnel.skip(page.lang, page.reason)
            return
        raw = self._counted_raw(page)
        pages = self._pages
        digest = pages.digest(page, raw) if pages is not None else b""
        known = pages.find(page, digest, len(raw)) if pages is not None else None
        if pages is not None and known is not None:
            self._add_known(page, known, pages)
            return
        try:
            outcome = self._limit.call(self._cleaner.clean, page)
        except TimeLimitError:
            # Another run may be faster, so the index does not get the page.
            self._funnel.skip(page.lang, TIMEOUT)
            return
        if isinstance(outcome, Skipped):
            if pages is not None:
                pages.record_skipped(page, digest, outcome)
            self._funnel.skip(page.lang, outcome.reason)
            return
        row = self._rows.total
        hashed = self._rows.add(self._source, outcome)
        if pages is not None:
            pages.record_document(page, digest, outcome, row, hashed)
        self._count_kept(page.lang, sum(map(len, outcome.paragraphs)), outcome.counts)

    def _add_known(self, page: RawDocument, known: KnownPage, pages: FilePages) -> None:
        pages.record_known(page, known, self._rows.total)
        if known.text is None:
            self._funnel.skip(page.lang, known.record.reason)
            return
        self._rows.add_stored(self._source, page, known.text)
        self._count_kept(page.lang, known.text.sentences, known.counts)

    def _count_kept(self, lang: str, sentences: int, counts: Mapping[str, int]) -> None:
        self._funnel.keep(lang)
        text_counts = self._funnel.of(lang).text_counts
        text_counts["sentences"] += sentences
        text_counts.update(counts)

    def _counted_raw(self, page: RawDocument) -> bytes:
        """The body in UTF-8, counted."""
        text_counts = self._funnel.of(page.lang).text_counts
        try:
            raw = page.body.encode()
        except UnicodeEncodeError:
            raw = page.body.encode("utf-8", "surrogatepass")
            text_counts["lone_surrogates"] += count_lone_surrogates(page.body)
        text_counts["raw_bytes"] += len(raw)
        return raw
