"""The index of a part: the result of extraction for each page, and everything that the result depends on.

A page has the same text as in an earlier build if the rules (`rules_version`) and its digest are the same,
and if every lookup in the template table of its wiki gives the same answer in the new table. The answers are
compared for each page, because every month some templates of a wiki change, but few of any one page.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipeline.documents.cleaning import LookedUp
from pipeline.sources.documents import RawDocument
from pipeline.wikitext.back_matter import is_learned
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.wiki import Wiki

PAGES = pa.schema(
    [
        # The statistics of this column show which row groups may have a page.
        pa.field("page_id", pa.int64(), nullable=False),
        # Digest of the wiki, the title and the wikitext, which is escaped as in the dump.
        pa.field("digest", pa.binary(16), nullable=False),
        # The templates (t) and headings (h) that were looked up, one on each line, and a hash of the answers.
        pa.field("looked_up", pa.binary(), nullable=False),
        pa.field("answers", pa.binary(16), nullable=False),
        # Row of the documents part, or -1 for a skipped page, which has a reason.
        pa.field("row", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        # Bytes of the wikitext in UTF-8.
        pa.field("body_bytes", pa.int64(), nullable=False),
        # The counts of cleaning, as JSON.
        pa.field("counts", pa.string(), nullable=False),
    ]
)
SKIPPED_ROW = -1
ROWS_AT_ONCE = 8192
_MAX_REMEMBERED = 50_000


@dataclass(frozen=True)
class PageRange:
    """The lowest and highest page id of a wiki in a part."""

    wiki: str
    first: int
    last: int


class PageDigests:
    """Digests of the pages of one wiki. ``filtered``: whether filters see source, page id and revision."""

    def __init__(self, site: SiteInfo, source: str, filtered: bool) -> None:
        self._source, self._filtered = source, filtered
        names = sorted((number, list(names)) for number, names in site.namespaces.items())
        self._wiki = hashlib.blake2b(json.dumps([site.lang, site.dbname, names]).encode(), digest_size=16)

    def of(self, page: RawDocument, raw_text: bytes) -> bytes:
        """16 bytes. ``raw_text`` is the body as the dump stores it: escaped, in UTF-8."""
        digest = self._wiki.copy()
        seen = (self._source, page.page_id, str(page.revision)) if self._filtered else ()
        for raw in (
            raw_text,
            *(text.encode("utf-8", "surrogatepass") for text in (page.lang, page.title, *seen)),
        ):
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
        return digest.digest()


def looked_up_lines(looked_up: LookedUp) -> bytes:
    """The names of all lookups, one on each line, in a fixed order."""
    lines = [f"t{name}" for name in looked_up.templates] + [f"h{title}" for title in looked_up.headings]
    return "\n".join(sorted(lines)).encode("utf-8", "surrogatepass")


class Answers:
    """The answers of a wiki's template table and the built-in rules to the lookups of pages."""

    def __init__(self, wiki: Wiki) -> None:
        self._wiki = wiki
        self._of_line: dict[bytes, bytes] = {}
        self._of_lines: dict[bytes, bytes] = {}

    def of(self, lines: bytes) -> bytes:
        """Hash of the answers to all of `looked_up_lines`, 16 bytes."""
        known = self._of_lines.get(lines)
        if known is None:
            hash_of = self._of_line.get
            hashes = [hash_of(line) or self._line(line) for line in lines.split(b"\n")] if lines else []
            known = hashlib.blake2b(b"".join(hashes), digest_size=16).digest()
            if len(self._of_lines) < _MAX_REMEMBERED:
                self._of_lines[lines] = known
        return known

    def _line(self, line: bytes) -> bytes:
        kind, name = line[:1], line[1:].decode("utf-8", "surrogatepass")
        answer = (
            repr(tuple(self._wiki.facts_of(name)))
            if kind == b"t"
            else str(is_learned(name, self._wiki.templates.back_matter))
        )
        known = hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if len(self._of_line) < _MAX_REMEMBERED:
            self._of_line[line] = known
        return known


@dataclass(frozen=True)
class PageRecord:
    """A row of the index."""

    digest: bytes
    looked_up: bytes
    answers: bytes
    row: int
    reason: str
    body_bytes: int
    counts: str


class PageRecords:
    """Collects the index rows of one part and passes them to ``sink``, some thousands at a time."""

    def __init__(self, sink: Callable[[pa.RecordBatch], None]) -> None:
        self._sink = sink
        self._page_ids: list[int] = []
        self._records: list[PageRecord] = []
        self._ranges: dict[str, tuple[int, int]] = {}

    def add(self, wiki: str, page_id: int, record: PageRecord) -> None:
        """Adds the record of a page."""
        self._page_ids.append(page_id)
        self._records.append(record)
        first, last = self._ranges.get(wiki, (page_id, page_id))
        self._ranges[wiki] = (min(first, page_id), max(last, page_id))
        if len(self._records) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Passes the remaining rows to the sink."""
        if self._records:
            columns = {name: [getattr(one, name) for one in self._records] for name in PAGES.names[1:]}
            self._sink(pa.RecordBatch.from_pydict({"page_id": self._page_ids, **columns}, schema=PAGES))
            self._page_ids, self._records = [], []

    def ranges(self) -> list[PageRange]:
        """The page ids of each wiki."""
        return [PageRange(wiki, *ids) for wiki, ids in sorted(self._ranges.items())]
