"""The pages of one unit: finds them in an earlier build, and makes the index with which a later one does."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

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
from pipeline.sources.documents import RawDocument
from pipeline.sources.units import Unit
from pipeline.wikitext.plain_text import TemplateTable
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.wiki import wiki_of


class UnitPages:
    """The index of one unit's part, whose PAGES rows go to ``sink``, and what of it was reused."""

    def __init__(self, sink: Callable[[pa.RecordBatch], None], previous: PreviousPages | None = None) -> None:
        self.records = PageRecords(sink)
        self._previous = previous
        self._counts: Counter[str] = Counter()

    def of_file(
        self, file: Unit, site: SiteInfo, table: TemplateTable, config: BuildConfig
    ) -> "FilePages | None":
        """The pages of one file of the unit. None where nothing is indexed: outside of Wikimedia sources."""
        if file.kind != "wikimedia":
            return None
        digests = PageDigests(site, file.source, bool(config.extraction.filters))
        answers = Answers(wiki_of(site, wikitext_options(config), table))
        return FilePages(
            site.dbname or site.lang, digests, answers, self.records, self._previous, self._counts
        )

    @property
    def reused(self) -> Reused:
        """How much of the unit was found in the earlier build; all zero without one."""
        return Reused(**self._counts)


class FilePages:
    """The pages of one file. Every page is given to one of the methods ``record_…``."""

    def __init__(
        self,
        wiki: str,
        digests: PageDigests,
        answers: Answers,
        records: PageRecords,
        previous: PreviousPages | None,
        counts: Counter[str],
    ) -> None:
        self._wiki, self._digests, self._answers = wiki, digests, answers
        self._records, self._previous, self._counts = records, previous, counts

    def digest(self, page: RawDocument, body: bytes) -> bytes:
        """The digest of a page, whose body in UTF-8 is ``body``."""
        return self._digests.of(page, body)

    def find(self, page: RawDocument, digest: bytes, raw_bytes: int) -> KnownPage | None:
        """What the earlier build made of the page; None to clean it."""
        if self._previous is None:
            return None
        found = self._previous.find(self._wiki, int(page.page_id), digest, self._answers)
        self._counts.update(pages=1, bytes=raw_bytes)
        if found is not None:
            self._counts.update(reused=1, reused_bytes=raw_bytes)
        return found

    def record_known(self, page: RawDocument, known: KnownPage, row: int) -> None:
        """Adds a page that was found to the index. ``row`` is that of its document."""
        row = SKIPPED_ROW if known.text is None else row
        self._records.add(self._wiki, int(page.page_id), replace(known.record, row=row))

    def record_skipped(self, page: RawDocument, digest: bytes, skipped: Skipped) -> None:
        """Adds a page that cleaning has skipped."""
        self._record(page, digest, skipped.looked_up, SKIPPED_ROW, skipped.reason, b"", {})

    def record_document(
        self, page: RawDocument, digest: bytes, cleaned: Cleaned, row: int, hashed: bytes
    ) -> None:
        """Adds a page that became a document: its row, and the hash of its text."""
        self._record(page, digest, cleaned.looked_up, row, "", hashed, cleaned.counts)

    def _record(
        self,
        page: RawDocument,
        digest: bytes,
        looked_up: LookedUp,
        row: int,
        reason: str,
        hashed: bytes,
        counts: Mapping[str, int],
    ) -> None:
        lines = looked_up_lines(looked_up)
        answers = self._answers.of(lines)
        record = PageRecord(digest, lines, answers, row, reason, hashed, json.dumps(counts))
        self._records.add(self._wiki, int(page.page_id), record)
