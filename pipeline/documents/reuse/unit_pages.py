"""Finds the pages of a unit in an earlier build, and writes the index that later builds need for this."""

import json
from collections import Counter
from collections.abc import Callable, Mapping

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.documents.cleaning import Cleaned, LookedUp, Skipped, wikitext_options
from pipeline.documents.reuse.page_index import (
    SKIPPED_ROW,
    Answers,
    PageDigests,
    PageRecord,
    PageRecords,
    looked_up_lines,
)
from pipeline.documents.reuse.previous_pages import KnownPage, PreviousPages, Reused
from pipeline.sources.mediawiki.dumps import StoredPage
from pipeline.sources.units import Unit
from pipeline.wikitext.plain_text import TemplateTable
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.wiki import wiki_of


class UnitPages:
    """The index of one unit's part, whose PAGES rows go to ``sink``, and the counts of reused pages."""

    def __init__(self, sink: Callable[[pa.RecordBatch], None], previous: PreviousPages | None = None) -> None:
        self.records = PageRecords(sink)
        self._previous = previous
        self._counts: Counter[str] = Counter()

    def of_file(
        self, file: Unit, site: SiteInfo, table: TemplateTable, config: BuildConfig
    ) -> "FilePages | None":
        """The pages of one file of the unit. None for sources other than Wikimedia, which have no index."""
        if file.kind != "wikimedia":
            return None
        digests = PageDigests(site, file.source, bool(config.extraction.filters))
        answers = Answers(wiki_of(site, wikitext_options(config), table))
        return FilePages(
            site.dbname or site.lang, digests, answers, self.records, self._previous, self._counts
        )

    @property
    def reused(self) -> Reused:
        """Counts of the pages that the earlier build had. All zero without one."""
        return Reused(**self._counts)


class FilePages:
    """The pages of one file."""

    def __init__(
        self,
        wiki: str,
        digests: PageDigests,
        answers: Answers,
        records: PageRecords,
        previous: PreviousPages | None,
        counts: Counter[str],
    ) -> None:
        self.wiki, self.answers = wiki, answers
        self.records, self.previous, self.counts = records, previous, counts
        self._digests = digests

    def entry(self, page: StoredPage) -> "PageEntry":
        """An entry that finds the page in the earlier build or records it in the index of this one."""
        return PageEntry(self, int(page.head.page_id), self._digests.of(page.head, page.raw_text))


class PageEntry:
    """One page and its entry in the index. The caller calls at most one of the methods ``record_…``."""

    def __init__(self, pages: FilePages, page_id: int, digest: bytes) -> None:
        self._pages, self._page_id, self._digest = pages, page_id, digest

    def find(self) -> KnownPage | None:
        """The earlier build's result for the page, or None if it needs cleaning."""
        pages = self._pages
        if pages.previous is None:
            return None
        return pages.previous.find(pages.wiki, self._page_id, self._digest, pages.answers)

    def record_known(self, known: KnownPage, row: int) -> None:
        """Adds a page that was found. ``row`` is the row of its document."""
        earlier = known.record
        record = PageRecord(
            digest=earlier.digest,
            looked_up=earlier.looked_up,
            answers=earlier.answers,
            row=SKIPPED_ROW if known.text is None else row,
            reason=earlier.reason,
            body_bytes=earlier.body_bytes,
            counts=earlier.counts,
        )
        self._pages.records.add(self._pages.wiki, self._page_id, record)
        self._pages.counts.update(reused=1, reused_bytes=earlier.body_bytes)
        self.count(earlier.body_bytes)

    def record_skipped(self, skipped: Skipped, body_bytes: int) -> None:
        """Adds a page that cleaning has skipped."""
        self._record(skipped.looked_up, SKIPPED_ROW, skipped.reason, body_bytes, {})

    def record_document(self, cleaned: Cleaned, body_bytes: int, row: int) -> None:
        """Adds a page that became a document, with its row."""
        self._record(cleaned.looked_up, row, "", body_bytes, cleaned.counts)

    def _record(
        self, looked_up: LookedUp, row: int, reason: str, body_bytes: int, counts: Mapping[str, int]
    ) -> None:
        pages, lines = self._pages, looked_up_lines(looked_up)
        answers = pages.answers.of(lines)
        record = PageRecord(self._digest, lines, answers, row, reason, body_bytes, json.dumps(counts))
        pages.records.add(pages.wiki, self._page_id, record)

    def count(self, body_bytes: int) -> None:
        """Counts a page that was looked up."""
        if self._pages.previous is not None:
            self._pages.counts.update(pages=1, bytes=body_bytes)
