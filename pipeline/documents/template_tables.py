"""Makes the table of a wiki's templates from the scans of its units, and converts it from and to a file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_analysis import Analysis, learn_templates
from pipeline.wikitext.templates.table import Entry, TemplateTable
from pipeline.wikitext.templates.transclusion import Included
from schemas.columns.templates import FOUND, TABLE

ALIAS = "alias"
_MIN_SECTIONS = 5
_MIN_LISTED = 0.8


def learn_wiki(found: Iterable[pa.Table], site: SiteInfo) -> Analysis:
    """The table of one wiki from its FOUND rows, in any order."""
    table = pa.concat_tables([FOUND.empty_table(), *found])
    by_what = {what: table.filter(pc.equal(table["what"], what)) for what in ("template", "use", "heading")}
    uses = _sums(by_what["use"], "count")
    seen, listed = _sums(by_what["heading"], "count"), _sums(by_what["heading"], "listed")
    headings = frozenset(
        title
        for title, count in seen.items()
        if count >= _MIN_SECTIONS and listed[title] >= _MIN_LISTED * count
    )
    return learn_templates(_newest(by_what["template"]), uses, site, headings)


def _sums(rows: pa.Table, column: str) -> dict[str, int]:
    summed = rows.group_by("name").aggregate([(column, "sum")])
    return dict(zip(summed["name"].to_pylist(), summed[f"{column}_sum"].to_pylist(), strict=True))


def _newest(rows: pa.Table) -> dict[str, Included]:
    """The pages by name. The newest copy of a page counts. Ties are resolved in a fixed way."""
    chosen: dict[str, tuple[int, str, str, bool]] = {}
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            copy = (row["revision"], row["body"], row["redirect"], row["too_long"])
            if row["name"] not in chosen or copy > chosen[row["name"]]:
                chosen[row["name"]] = copy
    return {
        name: Included(body, redirect, too_long) for name, (_, body, redirect, too_long) in chosen.items()
    }


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
