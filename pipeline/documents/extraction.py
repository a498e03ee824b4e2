"""Turns a work unit into rows of documents: read, clean, normalize, split into sentences, filter, count.

Memory holds the current page, one batch of rows and the index of the part.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.documents.cleaning import Cleaner, Skipped
from pipeline.documents.filters import Filters
from pipeline.documents.funnel import Funnel
from pipeline.documents.reuse.page_copy import PageCopy
from pipeline.documents.reuse.unit_pages import FilePages, PageEntry, UnitPages
from pipeline.documents.rows import DocumentRows
from pipeline.documents.time_limit import TimeLimit, TimeLimitError
from pipeline.sources.chunks import check_size
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import StoredPage, read_stored_pages
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
    copy: PageCopy | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of DOCUMENTS rows in the order of the file. Every page read is counted in ``funnel``.

    ``table_of`` returns the learned templates of a unit's wiki. ``unit_pages`` receives the index of the
    pages, and may find them in an earlier build. Reads ``copy`` instead of a dump, if given.

    Raises InputError that names the file on damaged input, CorpusError when the counts do not balance,
    PluginError when a plug-in fails.
    """
    rows = DocumentRows()
    filters = Filters(config.extraction.filters)
    with TimeLimit(config.extraction.page_seconds) as limit:
        for number, file in enumerate(unit.ranges):
            site = SiteInfo(file.lang, file.dbname, dict(file.site_namespaces))
            table = table_of(file)
            pages = unit_pages.of_file(file, site, table, config) if unit_pages is not None else None
            cleaner = Cleaner(site, config, table, filters, unit.source)
            extractor = _FileExtractor(cleaner, limit, funnel, rows, unit.source, pages)
            for page in _read(file, config) if copy is None else _copied(copy, number, file):
                extractor.add(page)
                if rows.full():
                    yield rows.take()
    if len(rows):
        yield rows.take()
    funnel.check(unit.uri)


def _read(file: Unit, config: BuildConfig) -> Iterator[RawDocument | StoredPage | Skip]:
    """The pages of a file. Pages of a dump stay undecoded, since the earlier build may have their text."""
    if file.kind == "wikimedia":
        return read_stored_pages(file, config.extraction.max_page_chars)
    return read_unit(file, config.extraction)


def _copied(copy: PageCopy, number: int, file: Unit) -> Iterator[StoredPage | Skip]:
    """The pages of a file from their copy. The file must be unchanged since planning, as for a read."""
    check_size(file.uri, file.size)
    return copy.pages(number, file)


class _FileExtractor:
    """Turns the pages of one file into rows, or into counts of why they are skipped."""

    def __init__(
        self,
        cleaner: Cleaner,
        limit: TimeLimit,
        funnel: Funnel,
        rows: DocumentRows,
        source: str,
        pages: FilePages | None,
    ) -> None:
        self._cleaner, self._limit, self._funnel = cleaner, limit, funnel
        self._rows, self._pages, self._source = rows, pages, source

    def add(self, page: RawDocument | StoredPage | Skip) -> None:
        """Adds a row for the page, or skips it. Counts either."""
        if isinstance(page, StoredPage):
            self._add_stored(page)
        else:
            self._add_decoded(page, None)

    def _add_stored(self, page: StoredPage) -> None:
        entry = self._pages.entry(page) if self._pages is not None else None
        known = entry.find() if entry is not None else None
        if entry is None or known is None:
            self._add_decoded(page.decoded(), entry)
            return
        self._funnel.of(page.head.lang).text_counts["raw_bytes"] += known.record.body_bytes
        entry.record_known(known, self._rows.total)
        if known.text is None:
            self._funnel.skip(page.head.lang, known.record.reason)
            return
        self._rows.add_stored(self._source, page.head, known.text)
        self._count_kept(page.head.lang, known.text.sentences, known.counts)

    def _add_decoded(self, page: RawDocument | Skip, entry: PageEntry | None) -> None:
        if isinstance(page, Skip):
            self._funnel.skip(page.lang, page.reason)
            return
        body_bytes = self._counted_bytes(page)
        if entry is not None:
            entry.count(body_bytes)
        try:
            outcome = self._limit.call(self._cleaner.clean, page)
        except TimeLimitError:
            # Another run may be faster, so the index omits the page.
            self._funnel.skip(page.lang, TIMEOUT)
            return
        if isinstance(outcome, Skipped):
            if entry is not None:
                entry.record_skipped(outcome, body_bytes)
            self._funnel.skip(page.lang, outcome.reason)
            return
        row = self._rows.total
        self._rows.add(self._source, outcome)
        if entry is not None:
            entry.record_document(outcome, body_bytes, row)
        self._count_kept(page.lang, sum(map(len, outcome.paragraphs)), outcome.counts)

    def _count_kept(self, lang: str, sentences: int, counts: Mapping[str, int]) -> None:
        self._funnel.keep(lang)
        text_counts = self._funnel.of(lang).text_counts
        text_counts["sentences"] += sentences
        text_counts.update(counts)

    def _counted_bytes(self, page: RawDocument) -> int:
        """Counts the bytes of the body in UTF-8 and returns their number."""
        text_counts = self._funnel.of(page.lang).text_counts
        try:
            raw = page.body.encode()
        except UnicodeEncodeError:
            raw = page.body.encode("utf-8", "surrogatepass")
            text_counts["lone_surrogates"] += count_lone_surrogates(page.body)
        text_counts["raw_bytes"] += len(raw)
        return len(raw)
