"""Makes the table of a wiki's templates from the scans of its units, and converts it from and to a file."""

import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.documents.templates.pages import TemplatePages
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_analysis import Analysis, learn_templates
from pipeline.wikitext.templates.table import Entry, TemplateTable
from pipeline.wikitext.templates.transclusion import Included
from schemas.arrays import I32, I64
from schemas.columns.templates import SCANNED, TABLE

ALIAS = "alias"
_MIN_SECTIONS = 5
_MIN_LISTED = 0.8
_PENDING_ROWS = 1 << 20
_SLOTS = 1 << 24
"""Slots in which sections are counted by a hash of their heading, of four bytes each."""


def learn_wiki(scans: Iterable[pa.Table], site: SiteInfo) -> Analysis:
    """The table of one wiki from its SCANNED rows, in any order. Iterates over ``scans`` twice.

    Memory has the names of the templates, the pages that articles use, and the headings that occur several
    times, whatever the size of the wiki.
    """
    uses, sections = _Sums("count"), np.zeros(_SLOTS, np.int32)
    with tempfile.TemporaryFile() as file:
        pages = TemplatePages(file)
        for table in scans:
            uses.add(_rows(table, "use"))
            headings = _rows(table, "heading")
            np.add.at(sections, _slots(headings["name"]), headings["count"].to_numpy())
            _add_pages(_rows(table, "template"), pages)
        used = uses.rows()
        counts = dict(zip(used["name"].to_pylist(), used["count"].to_pylist(), strict=True))
        return learn_templates(pages, counts, site, _back_matter(scans, sections))


def _rows(table: pa.Table, what: str) -> pa.Table:
    return table.filter(pc.equal(table["what"], what))


def _slots(names: pa.ChunkedArray) -> I64:
    """The slot of each name."""
    raw = names.cast(pa.binary()).to_pylist()
    return np.fromiter(map(zlib.crc32, raw), dtype=np.int64, count=len(raw)) % _SLOTS


def _back_matter(scans: Iterable[pa.Table], sections: I32) -> frozenset[str]:
    """The headings of sections that are usually lists.

    ``sections`` has the sections of each slot. Most headings of a large wiki occur once or twice. Only those
    in slots with enough sections are added up, which include a few rare headings that share a slot.
    """
    sums = _Sums("count", "listed")
    for table in scans:
        headings = _rows(table, "heading")
        sums.add(headings.filter(pa.array(sections[_slots(headings["name"])] >= _MIN_SECTIONS)))
    return _listed_headings(sums.rows())


class _Sums:
    """Sums of columns of rows by name. Adds up now and then, so that memory depends on the names alone."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._sums = SCANNED.empty_table().select(["name", *columns])
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, rows: pa.Table) -> None:
        """Takes SCANNED rows."""
        self._pending.append(rows.select(self._sums.column_names))
        self._pending_rows += rows.num_rows
        if self._pending_rows > max(_PENDING_ROWS, self._sums.num_rows):
            self.rows()

    def rows(self) -> pa.Table:
        """One row for each name, in any order."""
        table = pa.concat_tables([self._sums, *self._pending])
        summed = table.group_by("name").aggregate([(column, "sum") for column in self._columns])
        names = ["name", *(f"{column}_sum" for column in self._columns)]
        self._sums = summed.select(names).rename_columns(self._sums.column_names).cast(self._sums.schema)
        self._pending, self._pending_rows = [], 0
        return self._sums


def _listed_headings(rows: pa.Table) -> frozenset[str]:
    """The headings of sections that are usually lists. Only these become Python strings."""
    count, listed = rows["count"], rows["listed"]
    often = pc.greater_equal(count, _MIN_SECTIONS)
    mostly = pc.greater_equal(
        pc.cast(listed, pa.float64()), pc.multiply(pc.cast(count, pa.float64()), _MIN_LISTED)
    )
    return frozenset(rows["name"].filter(pc.and_(often, mostly)).to_pylist())


def _add_pages(rows: pa.Table, pages: TemplatePages) -> None:
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            pages.add(row["name"], row["revision"], Included(row["body"], row["redirect"], row["too_long"]))


def table_rows(table: TemplateTable) -> pa.Table:
    """TABLE rows, templates and then aliases, both in the order of their names."""
    rows: list[dict[str, object]] = [
        {
            "name": entry.name, "kind": entry.kind, "target": "", "sure": entry.sure, "body": entry.body,
            "arguments": list(entry.arguments), "why": entry.why, "uses": entry.uses,
        }
        for _, entry in sorted(table.entries.items())
    ]  # fmt: skip
    rows += [
        {
            "name": alias, "kind": ALIAS, "target": target, "sure": True, "body": None, "arguments": [],
            "why": "", "uses": 0,
        }
        for alias, target in sorted(table.aliases.items())
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=TABLE)


def table_of_rows(rows: pa.Table, back_matter: Iterable[str]) -> TemplateTable:
    """The table from the result of `table_rows`."""
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    for row in rows.to_pylist():
        name, kind, target = row.pop("name"), row.pop("kind"), row.pop("target")
        if kind == ALIAS:
            aliases[name] = target
        else:
            entries[name] = Entry(name, kind, arguments=tuple(row.pop("arguments")), **row)
    return TemplateTable(entries, aliases, frozenset(back_matter))


def describe(table: TemplateTable, counts: Mapping[str, int]) -> Iterator[str]:
    """Lines for display: the counts, the headings, then every template, most used first."""
    kinds = Counter(entry.kind for entry in table.entries.values())
    yield f"{len(table.entries)} templates, {len(table.aliases)} redirects"
    yield "by kind: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    yield "counted: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    yield "headings of back matter: " + (", ".join(sorted(table.back_matter)) or "none")
    for entry in sorted(table.entries.values(), key=lambda entry: (-entry.uses, entry.name)):
        shown = "" if entry.body is None else " ".join(entry.body.split())
        unsure = "" if entry.sure else f" (not sure: {entry.why or 'a table'})"
        arguments = f" [{', '.join(entry.arguments)}]" if entry.arguments else ""
        yield f"{entry.uses:>9,} {entry.kind:<12}{entry.name}{arguments}{unsure} {shown[:160]}".rstrip()
