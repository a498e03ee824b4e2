"""Stage templates: learns what the templates of every wiki show, before any article is cleaned.

The first round scans the units. The second makes the table of each wiki from the scans of its units. Both
commit their results. The tables are small, and every worker reads the ones that it needs once.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.documents.reuse.hashed_file import HashedFile
from pipeline.documents.reuse.page_copy import PAGE_COPY, PageCopy, PageCopyWriter, is_worth_a_copy
from pipeline.documents.templates.scan import scan_unit, wiki_name
from pipeline.documents.templates.tables import learn_wiki, table_of_rows, table_rows
from pipeline.engine.commit import Marker, NoCounts, PartWriter, StageFolder, stable_hash
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import map_items
from pipeline.sources.units import Unit
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.table import NO_TEMPLATES, TemplateTable
from pipeline.wikitext.wiki import KEPT_WIKIS
from schemas.columns.documents import DOCUMENTS_VERSION
from schemas.columns.templates import SCANNED, TABLE, TEMPLATES_VERSION
from schemas.errors import CorpusError, InputError
from schemas.json_text import parse_json

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POINTER = "work/templates.json"
"""Names the folder of the tables that the build used."""


@dataclass(frozen=True)
class ScanCounts:
    """The counts of one scanned unit."""

    found: dict[str, int]
    """Pages, templates, modules and bytes of wikitext."""


@dataclass(frozen=True)
class TableCounts:
    """The counts of one wiki, and its learned headings."""

    templates: dict[str, int]
    """Templates by kind, and problems."""
    back_matter: list[str]
    """Headings of sections that are lists of links or citations."""


@dataclass(frozen=True)
class _WikiParts:
    """A wiki that needs a table: one of its files, and the units with its pages."""

    name: str
    file: Unit
    unit_ids: list[str]


@dataclass(frozen=True)
class TableFile:
    """The committed table of one wiki."""

    uri: str
    sha256: str
    back_matter: tuple[str, ...]
    """Learned headings of back matter."""

    def load(self) -> TemplateTable:
        """The table. A process keeps those of the last wikis."""
        return _load(self.uri, self.sha256, self.back_matter)


@lru_cache(maxsize=KEPT_WIKIS)
def _load(uri: str, _: str, back_matter: tuple[str, ...]) -> TemplateTable:
    return table_of_rows(storage.parquet_file(uri).read().cast(TABLE), back_matter)


@dataclass(frozen=True)
class PageCopies:
    """Copies of the pages that stage templates reads, for stage extract.

    Only a build with an earlier corpus makes copies. Without one, the saved time is not worth the space. A
    missing copy does not affect the result, because extract then reads the dump.
    """

    folder: StageFolder[NoCounts]

    @staticmethod
    def create(config: BuildConfig, work_uri: str, units: list[Unit]) -> "PageCopies":
        """The copies of a build, which depend on its units and on the maximum length of a page."""
        records = [unit.to_record() for unit in units]
        limit = config.extraction.max_page_chars
        return PageCopies(
            StageFolder.create(work_uri, "page-copies", NoCounts, DOCUMENTS_VERSION, records, limit)
        )

    @contextmanager
    def writer(self, unit: Unit) -> Iterator[PageCopyWriter | None]:
        """Yields a writer for the pages of a unit, then commits them. None if a copy saves no time."""
        if not is_worth_a_copy(unit):
            yield None
            return
        name = f"{unit.unit_id}.parquet"
        with PartWriter(PAGE_COPY, self.folder.path(name), name) as part:
            copy = PageCopyWriter(part.write)
            yield copy
            copy.flush()
            self.folder.commit(unit.unit_id, [part.finish()], NoCounts())

    def find(self, unit: Unit) -> PageCopy | None:
        """The copy of a unit, or None without one. Raises CorpusError if it is damaged."""
        marker = self.folder.marker(unit.unit_id) if is_worth_a_copy(unit) else None
        if marker is None:
            return None
        file = marker.files[0]
        return PageCopy(HashedFile(self.folder.path(file.path), file.sha256))

    def remove(self) -> None:
        """Removes all copies."""
        storage.delete_prefix(self.folder.uri)


@dataclass(frozen=True)
class TemplatesResult:
    """The tables and counts by wiki."""

    files: Mapping[str, TableFile] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Wiki -> templates by kind, and problems."""

    def table_of(self, unit: Unit) -> TemplateTable:
        """The learned table of the unit's wiki, or an empty one for other kinds of sources."""
        file = self.files.get(wiki_name(unit)) if unit.kind == "wikimedia" else None
        return NO_TEMPLATES if file is None else file.load()

    def identity(self) -> list[list[Any]]:
        """What the result of cleaning depends on."""
        return [[wiki, file.sha256, list(file.back_matter)] for wiki, file in sorted(self.files.items())]


def run_templates(
    config: BuildConfig, work_uri: str, units: list[Unit], copies: PageCopies | None = None
) -> TemplatesResult:
    """Learns the missing tables, and writes all pages that it reads to ``copies``.

    Raises InputError that names the faulty file.
    """
    units = [unit for unit in units if unit.kind == "wikimedia"]
    if not units or not config.extraction.learn_templates:
        return TemplatesResult()
    limit = config.extraction.max_page_chars
    records = [unit.to_record() for unit in units]
    versions = (TEMPLATES_VERSION, DOCUMENTS_VERSION)
    scanned = StageFolder.create(work_uri, "templates", ScanCounts, *versions, records, limit)
    _scan(units, scanned, limit, copies)
    markers = scanned.finished()
    parts = {unit.unit_id: markers[unit.unit_id].files[0].sha256 for unit in units}
    tables = StageFolder.create(work_uri, "template-tables", TableCounts, *versions, parts)
    return _learn(units, scanned, tables)


def stored_bytes(unit: Unit) -> int:
    """Stored bytes that a unit reads."""
    return sum(file.stored_bytes for file in unit.ranges)


def _scan(units: list[Unit], folder: StageFolder[ScanCounts], limit: int, copies: PageCopies | None) -> None:
    finished = folder.finished()
    pending = [unit for unit in units if unit.unit_id not in finished]
    progress = Progress("templates", len(pending), skipped=len(units) - len(pending))

    def work(unit: Unit) -> int:
        marker = folder.marker(unit.unit_id) or scan_one(unit, folder, limit, copies)
        return marker.counts.found.get("wikitext_bytes", 0)

    for wikitext_bytes in map_items(pending, work, stored_bytes):
        progress.advance(wikitext_bytes)


def scan_one(
    unit: Unit, folder: StageFolder[ScanCounts], limit: int, copies: PageCopies | None = None
) -> Marker[ScanCounts]:
    """Scans one unit and commits its copy and the result. Raises InputError that names the faulty file."""
    counts: Counter[str] = Counter()
    name = f"{unit.unit_id}.parquet"
    copying = nullcontext() if copies is None else copies.writer(unit)
    with PartWriter(SCANNED, folder.path(name), name) as writer, copying as copy:
        try:
            for batch in scan_unit(unit, limit, counts, copy):
                writer.write(batch)
        except FileNotFoundError as error:
            raise InputError(
                f"{error}: existed when the build was planned; check that every node can read it"
            ) from error
        file = writer.finish()
    return folder.commit(unit.unit_id, [file], ScanCounts(dict(sorted(counts.items()))))


def _learn(
    units: list[Unit], scanned: StageFolder[ScanCounts], folder: StageFolder[TableCounts]
) -> TemplatesResult:
    """Makes the tables of all wikis, each from the units with its pages."""
    parts: dict[str, list[str]] = {}
    files: dict[str, Unit] = {}
    for unit in units:
        for file in unit.ranges:
            wiki = wiki_name(file)
            files.setdefault(wiki, file)
            if unit.unit_id not in parts.setdefault(wiki, []):
                parts[wiki].append(unit.unit_id)
    finished = folder.finished()
    pending = [wiki for wiki in sorted(parts) if _file_name(wiki) not in finished]
    progress = Progress("template tables", len(pending), skipped=len(parts) - len(pending))

    def work(wiki: _WikiParts) -> int:
        marker = folder.marker(_file_name(wiki.name)) or learn_one(wiki, scanned, folder)
        return marker.files[0].bytes

    items = [_WikiParts(wiki, files[wiki], parts[wiki]) for wiki in pending]
    for table_bytes in map_items(items, work, lambda wiki: len(wiki.unit_ids) << 20):
        progress.advance(table_bytes)
    _point_to(folder, sorted(parts))
    return collect(folder, sorted(parts))


def _point_to(folder: StageFolder[TableCounts], wikis: list[str]) -> None:
    """Names the folder of this build's tables, for `bertmill templates`."""
    work_uri, _, name = folder.uri.rpartition("/")
    pointer = {"folder": f"work/{name}", "stage_hash": folder.stage_hash, "wikis": wikis}
    raw = json.dumps(pointer, sort_keys=True, ensure_ascii=False).encode()
    uri = storage.join(work_uri, "templates.json")
    # A second run of a finished build changes no file.
    if not storage.exists(uri) or storage.read_bytes(uri) != raw:
        storage.put_bytes(uri, raw)


def learn_one(
    wiki: _WikiParts, scanned: StageFolder[ScanCounts], folder: StageFolder[TableCounts]
) -> Marker[TableCounts]:
    """Makes the table of one wiki and commits it."""
    site = SiteInfo(wiki.file.lang, wiki.file.dbname, dict(wiki.file.site_namespaces))
    analysis = learn_wiki(_ScannedRows(wiki, scanned), site)
    name = f"{_file_name(wiki.name)}.parquet"
    with PartWriter(TABLE, folder.path(name), name) as writer:
        writer.write(table_rows(analysis.table))
        file = writer.finish()
    counts = TableCounts(dict(sorted(analysis.counts.items())), sorted(analysis.table.back_matter))
    return folder.commit(_file_name(wiki.name), [file], counts)


@dataclass(frozen=True)
class _ScannedRows:
    """The SCANNED rows of a wiki, read one unit at a time in every iteration."""

    wiki: _WikiParts
    scanned: StageFolder[ScanCounts]

    def __iter__(self) -> Iterator[pa.Table]:
        for unit_id in self.wiki.unit_ids:
            rows = storage.parquet_file(self.scanned.path(f"{unit_id}.parquet")).read().cast(SCANNED)
            yield rows.filter(pc.equal(rows["wiki"], self.wiki.name))


def _file_name(wiki: str) -> str:
    """A valid file name for a wiki. A dump may have any name."""
    return wiki if _SAFE_NAME.fullmatch(wiki) else f"wiki-{stable_hash(wiki)[:16]}"


def collect(folder: StageFolder[TableCounts], wikis: list[str]) -> TemplatesResult:
    """The committed tables in ``folder``."""
    markers = folder.finished()
    files: dict[str, TableFile] = {}
    counts: dict[str, dict[str, int]] = {}
    for wiki in wikis:
        marker = markers[_file_name(wiki)]
        file = marker.files[0]
        files[wiki] = TableFile(folder.path(file.path), file.sha256, tuple(marker.counts.back_matter))
        counts[wiki] = marker.counts.templates
    return TemplatesResult(files, counts)


def open_tables(corpus_uri: str) -> TemplatesResult:
    """The tables of a corpus. Raises CorpusError if its build has none."""
    uri = storage.join(corpus_uri, _POINTER)
    try:
        record = parse_json(storage.read_bytes(uri))
        folder = StageFolder(storage.join(corpus_uri, record["folder"]), record["stage_hash"], TableCounts)
        return collect(folder, record["wikis"])
    except FileNotFoundError:
        raise CorpusError(f"{uri}: no such file; the build has no template tables") from None
    except (ValueError, TypeError, KeyError) as error:
        raise CorpusError(f"{uri}: damaged: {error}") from None
