"""Looks up pages in the parts of an earlier build, by wiki, page id and digest.

The index of a large build has gigabytes. The driver holds only the range of page ids of each part. A worker
reads row groups of the index of the parts whose range has the page, one after the other as the page ids of a
dump ascend, and then the row groups that it needs of the documents.
"""

import bisect
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.documents.reuse.hashed_file import HashedFile, readable
from pipeline.documents.reuse.page_index import PAGES, SKIPPED_ROW, Answers, PageRange, PageRecord
from pipeline.documents.rows import TEXT_COLUMNS, StoredText
from schemas.arrays import I64

# Limits of the parts that a worker holds open, and of the row groups of each index. A lookup uses no more.
_MAX_OPEN = 4
_PAGES_PER_READ = 256
_ROW_GROUPS = 2


@dataclass(frozen=True)
class PreviousPart:
    """A part of the earlier build and its index."""

    unit_id: str
    documents: HashedFile
    pages: HashedFile
    ranges: tuple[PageRange, ...]


@dataclass(frozen=True)
class KnownPage:
    """The result of an earlier build for a page: its row of the index, and the text of a document."""

    record: PageRecord
    text: StoredText | None

    @property
    def counts(self) -> dict[str, int]:
        """What cleaning counted."""
        counts: dict[str, int] = json.loads(self.record.counts)
        return counts


class PreviousPages:
    """The pages of an earlier build by wiki. Pickles are small, because lookups open the parts on demand."""

    def __init__(self, parts: Iterable[PreviousPart]) -> None:
        by_wiki: dict[str, list[tuple[PageRange, PreviousPart]]] = {}
        for part in parts:
            for pages in part.ranges:
                by_wiki.setdefault(pages.wiki, []).append((pages, part))
        self._wikis = {wiki: _Ranges(ranges) for wiki, ranges in by_wiki.items()}

    def __len__(self) -> int:
        """Number of page ranges."""
        return sum(len(ranges.parts) for ranges in self._wikis.values())

    def units_with(self, ranges: Iterable[PageRange]) -> list[str]:
        """The units of the earlier build that have pages in one of ``ranges``."""
        units: dict[str, None] = {}
        for pages in ranges:
            if (wiki_ranges := self._wikis.get(pages.wiki)) is not None:
                units |= dict.fromkeys(part.unit_id for part in wiki_ranges.meeting(pages))
        return list(units)

    def find(self, wiki: str, page_id: int, digest: bytes, answers: Answers) -> KnownPage | None:
        """The earlier result for the page, if everything that it depends on is unchanged.

        Raises CorpusError when a file of the earlier build is missing or damaged.
        """
        ranges = self._wikis.get(wiki)
        for part in ranges.holding(page_id) if ranges is not None else ():
            page = _opened(part).find(page_id, digest, answers)
            if page is not None:
                return page
        return None


class _Intervals:
    """Finds at most _MAX_OPEN of the intervals [first, last] that contain a number."""

    def __init__(self, first: I64, last: I64) -> None:
        self._first, self._last = first, last
        self._bounds = np.unique(np.concatenate((first, last + 1))).tolist()
        self._cache: dict[int, list[int]] = {}

    def holding(self, number: int) -> list[int]:
        """Their indices, ascending. All numbers between two adjacent bounds have the same answer."""
        segment = bisect.bisect_right(self._bounds, number)
        if segment not in self._cache:
            places = np.flatnonzero((self._first <= number) & (number <= self._last))
            self._cache[segment] = places[:_MAX_OPEN].tolist()
        return self._cache[segment]


class _Ranges:
    """The parts with pages of one wiki."""

    def __init__(self, ranges: Sequence[tuple[PageRange, PreviousPart]]) -> None:
        self.parts = [part for _, part in ranges]
        self._first = np.array([pages.first for pages, _ in ranges], np.int64)
        self._last = np.array([pages.last for pages, _ in ranges], np.int64)
        self._intervals = _Intervals(self._first, self._last)

    def meeting(self, pages: PageRange) -> list[PreviousPart]:
        """The parts whose range overlaps ``pages``."""
        places = np.flatnonzero((self._first <= pages.last) & (pages.first <= self._last))
        return [self.parts[place] for place in places]

    def holding(self, page_id: int) -> list[PreviousPart]:
        """At most _MAX_OPEN of the parts whose range contains the page."""
        return [self.parts[place] for place in self._intervals.holding(page_id)]


@lru_cache(maxsize=_MAX_OPEN)
def _opened(part: PreviousPart) -> "_OpenPart":
    return _OpenPart(part)


class _OpenPart:
    """A part with some of its row groups in memory."""

    def __init__(self, part: PreviousPart) -> None:
        self._uri = part.pages.uri
        self._documents = _Documents(part.documents)
        with readable(self._uri):
            self._file = part.pages.open()
            if self._file.schema_arrow != PAGES:
                raise ValueError("its columns are not those of a page index")
            self._page_ids = _Intervals(*_page_ids(self._file.metadata))
        self._groups: OrderedDict[int, dict[bytes, PageRecord]] = OrderedDict()
        self._lookups = self._read = 0

    def find(self, page_id: int, digest: bytes, answers: Answers) -> KnownPage | None:
        self._lookups += 1
        for group in self._page_ids.holding(page_id):
            record = self._group(group).get(digest)
            if record is not None:
                if answers.of(record.looked_up) != record.answers:
                    return None
                is_document = record.row != SKIPPED_ROW
                text = self._documents.text(record.row) if is_document else None
                return KnownPage(record, text)
        return None

    def _group(self, group: int) -> dict[bytes, PageRecord]:
        records = self._groups.get(group)
        if records is not None:
            return records
        # A dump with unordered pages would read a row group for each of its pages.
        if self._read > _MAX_OPEN + self._lookups // _PAGES_PER_READ:
            return {}
        self._read += 1
        with readable(self._uri):
            columns = self._file.read_row_group(group).select(PAGES.names[1:]).to_pydict().values()
            records = {values[0]: PageRecord(*values) for values in zip(*columns, strict=True)}
        self._groups[group] = records
        if len(self._groups) > _MAX_OPEN:
            self._groups.popitem(last=False)
        return records


def _page_ids(metadata: pq.FileMetaData) -> tuple[I64, I64]:
    """The lowest and highest page id of each row group."""
    columns = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
    return np.array([one.min for one in columns], np.int64), np.array([one.max for one in columns], np.int64)


class _Documents:
    """The texts of a part, read by row group."""

    def __init__(self, file: HashedFile) -> None:
        self._uri = file.uri
        self._groups: OrderedDict[int, _Texts] = OrderedDict()
        with readable(file.uri):
            self._file = file.open()
            metadata = self._file.metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._ends = np.cumsum(sizes).tolist()

    def text(self, row: int) -> StoredText:
        """The text of a row."""
        group = bisect.bisect_right(self._ends, row)
        with readable(self._uri):
            texts = self._group(group)
        place = row - (self._ends[group - 1] if group else 0)
        return StoredText(texts.batch, place, texts.text_bytes[place], texts.sentences[place])

    def _group(self, group: int) -> "_Texts":
        texts = self._groups.get(group)
        if texts is None:
            table = self._file.read_row_group(group, columns=list(TEXT_COLUMNS)).combine_chunks()
            batch = table.select(TEXT_COLUMNS).to_batches()[0]
            sentences = pc.list_value_length(batch["sentences"]).to_pylist()
            texts = _Texts(batch, batch["text_bytes"].to_pylist(), sentences)
            self._groups[group] = texts
            if len(self._groups) > _ROW_GROUPS:
                self._groups.popitem(last=False)
        return texts


@dataclass(frozen=True)
class _Texts:
    """A row group of documents: TEXT_COLUMNS, and the bytes and sentences of each text."""

    batch: pa.RecordBatch
    text_bytes: list[int]
    sentences: list[int]


@dataclass(frozen=True)
class Reused:
    """Counts of reused pages. All zero without an earlier build."""

    pages: int = 0
    """Pages that were looked up: all pages of Wikimedia sources that pass the first filter."""
    reused: int = 0
    bytes: int = 0
    """UTF-8 bytes of the wikitext of ``pages``."""
    reused_bytes: int = 0


def total_reused(counts: Iterable[Reused]) -> Reused:
    """The sums."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(vars(one))
    return Reused(**total)


def reused_text(reused: Reused) -> str:
    """One line for the log.

    >>> reused_text(Reused(pages=2000, reused=1900, bytes=8_000_000, reused_bytes=6_000_000))
    'reused 1,900 of 2,000 pages (95.0%) and 6.0 of 8.0 MB of wikitext of the previous build'
    """
    share = 100 * reused.reused / max(1, reused.pages)
    return (
        f"reused {reused.reused:,} of {reused.pages:,} pages ({share:.1f}%) and "
        f"{reused.reused_bytes / 1e6:,.1f} of {reused.bytes / 1e6:,.1f} MB of wikitext of the previous build"
    )
