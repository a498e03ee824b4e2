"""Copies the pages of a unit. Stage templates writes the copy while reading the dump. Stage extract reads it.

With an earlier build, extract spends most of its time on decompressing bzip2, at 40 MB/s. Writing the
copy in Zstandard takes about a sixth of that time. It has the pages in the order of `read_stored_pages`.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from pipeline.documents.reuse.hashed_file import HashedFile, readable
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import StoredPage
from pipeline.sources.units import Unit
from schemas.redaction import public_uri

PAGE_COPY = pa.schema(
    [
        # Index of the page's file among the ranges of the unit.
        pa.field("file", pa.int32(), nullable=False),
        pa.field("page_id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        # Empty for a page to clean. A skipped page has only the columns up to here.
        pa.field("reason", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("timestamp", pa.string()),
        pa.field("url", pa.string()),
        # Escaped, as the dump stores it.
        pa.field("raw_text", pa.binary(), nullable=False),
    ]
)
_SLOW = {"bz2", "xz"}
_BATCH_ROWS = 8192
_BATCH_BYTES = 4 << 20

_Row = tuple[int, str, str, str, int, str | None, str | None, bytes]


def is_worth_a_copy(unit: Unit) -> bool:
    """Whether a copy makes reading the unit faster, which is so for dumps that decompress slowly."""
    return unit.kind == "wikimedia" and any(file.compression in _SLOW for file in unit.ranges)


class PageCopyWriter:
    """Collects the pages of a unit and passes PAGE_COPY rows to ``sink``. Memory holds one batch."""

    def __init__(self, sink: Callable[[pa.RecordBatch], None]) -> None:
        self._sink = sink
        self._rows: list[_Row] = []
        self._bytes = 0

    def add(self, file: int, page: StoredPage | Skip) -> None:
        """Adds the next page. Files come in order."""
        if self._rows and (file != self._rows[0][0] or self._is_full()):
            self.flush()
        if isinstance(page, Skip):
            self._rows.append((file, page.page_id, page.title, page.reason, 0, None, None, b""))
            return
        head = page.head
        self._rows.append(
            (file, head.page_id, head.title, "", head.revision, head.timestamp, head.url, page.raw_text)
        )
        self._bytes += len(page.raw_text)

    def _is_full(self) -> bool:
        return self._bytes >= _BATCH_BYTES or len(self._rows) >= _BATCH_ROWS

    def flush(self) -> None:
        """Passes the remaining rows to the sink."""
        if self._rows:
            columns = map(list, zip(*self._rows, strict=True))
            self._sink(
                pa.RecordBatch.from_pydict(dict(zip(PAGE_COPY.names, columns, strict=True)), schema=PAGE_COPY)
            )
            self._rows, self._bytes = [], 0


class PageCopy:
    """The copy of a unit's pages. Every batch of the writer is a row group of one file.

    Its methods raise CorpusError if the copy is missing or damaged.
    """

    def __init__(self, copy: HashedFile) -> None:
        self._uri = copy.uri
        folder = public_uri(copy.uri).rpartition("/")[0]
        self._remedy = f"remove the folder {folder} and run again"
        with readable(self._uri, "", self._remedy):
            self._parquet = copy.open()
            if self._parquet.schema_arrow != PAGE_COPY:
                raise ValueError("its columns are not those of a page copy")
            metadata = self._parquet.metadata
            statistics = [
                metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)
            ]
            self._files = [one.min for one in statistics]

    def pages(self, number: int, file: Unit) -> Iterator[StoredPage | Skip]:
        """Yields the result of `read_stored_pages` for ``file``, which is number ``number`` of the unit."""
        for group, group_file in enumerate(self._files):
            if group_file != number:
                continue
            with readable(self._uri, "", self._remedy):
                columns = self._parquet.read_row_group(group).to_pydict().values()
            for row in zip(*columns, strict=True):
                yield _page(row, file)


def _page(row: _Row, file: Unit) -> StoredPage | Skip:
    _, page_id, title, reason, revision, timestamp, url, raw_text = row
    if reason:
        return Skip(page_id, title, file.lang, reason)
    head = RawDocument(
        page_id=page_id,
        revision=revision,
        title=title,
        lang=file.lang,
        body="",
        kind="wikitext",
        source_id=page_id,
        timestamp=timestamp,
        url=url,
    )
    return StoredPage(head, raw_text)
