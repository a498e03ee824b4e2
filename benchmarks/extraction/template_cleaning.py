"""Measures the effect of learned templates, back matter and holes on real dumps, one row per wiki.

    python -m benchmarks.extraction.template_cleaning DUMP... [--before OLD.json]
        [--json NEW.json] [--out TABLE.md]

The script learns the template table of each dump like a build. Per wiki:
- text dropped: characters of sentences dropped for a hole, as a share of the text with them.
- leftovers: sentences with markup in them (as in cleaning_quality).
- link lists: characters of list items that are links or citations, in the last sections of articles. A bare
  link or an italic title with a year counts only below a heading of back matter: lists of villages, works
  and species at the end of an article are what it is about.
- calls by the source that decided what they show.
A second table shows the effect of each kind of knowledge alone: the text dropped for a hole on pages whose
templates are all in their dump, without rules and table, with the shipped rules, with the table, and with
both. --before adds the shares of an earlier --json, of another version of the code or of --ablate.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from benchmarks.extraction.cleaning_quality import ISSUE, LEFTOVERS
from pipeline.documents.templates.scan import scan_unit
from pipeline.documents.templates.tables import learn_wiki
from pipeline.sources.mediawiki.dumps import plan_dump, read_dump
from pipeline.sources.units import Unit
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.back_matter import fold_heading, may_be_back_matter
from pipeline.wikitext.plain_text import NO_TEMPLATES, TemplateTable, WikitextOptions, plain_text
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.rules import TemplateRules
from pipeline.wikitext.wiki import wiki_of

_MAX_CHARS = 4_000_000
_HEADING = re.compile(r"(?m)^==+([^=\n].*?)==+[ \t]*$")
_ITEM = re.compile(r"^[*#]+(.*)$")
_LINKS_ONLY = re.compile(r"[^\w\[\]{}]*\[\[[^\[\]\n]*\]\][^\w\[\]{}]*$")
_CITATION = re.compile(r"https?://|ISBN|\bdoi\b|\{\{\s*(?:cite|cita|literatur|книга)", re.I)
_TITLE_AND_YEAR = re.compile(r"''[^\n]*(?:1[5-9]|20)\d\d")


def link_items(wikitext: str, learned: frozenset[str]) -> list[str]:
    """The list items of the last sections that contain only links or citations."""
    parts = _HEADING.split(wikitext)
    found: list[str] = []
    for heading, section in zip(parts[-2:0:-2], parts[:1:-2], strict=True):
        is_back_matter = may_be_back_matter(fold_heading(heading), learned)
        lines = [
            line
            for line in section.split("\n")
            if line.strip() and not line.startswith(("{", "[[", "<", "|"))
        ]
        items = [match[1] for line in lines if (match := _ITEM.match(line))]
        links = [
            item
            for item in items
            if _CITATION.search(item)
            or (is_back_matter and (_LINKS_ONLY.match(item) or _TITLE_AND_YEAR.search(item)))
        ]
        if lines and len(links) < 0.7 * len(lines):
            break
        found += links
    return found


def measure(unit: Unit, table: TemplateTable, options: WikitextOptions) -> Counter[str]:
    """Counts over the articles of one dump."""
    site = SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))
    counts: Counter[str] = Counter()
    for page in read_dump(unit, _MAX_CHARS):
        body = getattr(page, "body", None)
        if body is None:
            continue
        text = plain_text(body, site, options, table, page.title)
        counts["articles"] += 1
        counts["chars"] += sum(map(len, text.paragraphs))
        counts["dropped"] += text.dropped_chars
        counts["back_matter"] += text.back_matter_chars
        for paragraph in text.paragraphs:
            for sentence in split_sentences(paragraph, unit.lang):
                counts["sentences"] += 1
                counts["leftovers"] += any(LEFTOVERS[name].search(sentence) for name in ISSUE)
        counts["link_lists"] += link_list_chars(body, text.paragraphs, site, options, table)
        counts.update({f"calls_{knowledge}": count for knowledge, count in text.decided.items()})
    return counts


def link_list_chars(
    wikitext: str, paragraphs: list[str], site: SiteInfo, options: WikitextOptions, table: TemplateTable
) -> int:
    """Characters of link items that are paragraphs of the text."""
    kept = set(paragraphs)
    chars = 0
    for item in link_items(wikitext, table.back_matter):
        for line in plain_text("*" + item, site, options, table).paragraphs:
            chars += len(line) if line in kept else 0
    return chars


def learn(unit: Unit) -> TemplateTable:
    """The table of the wiki of ``unit``."""
    found = [pa.Table.from_batches([batch]) for batch in scan_unit(unit, _MAX_CHARS, Counter())]
    return learn_wiki(found, SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))).table


def pages_of_known_templates(unit: Unit, table: TemplateTable) -> Iterator[tuple[str, str]]:
    """Title and wikitext of the articles that call templates, all of which the dump itself holds."""
    site = SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))
    for page in read_dump(unit, _MAX_CHARS):
        body = getattr(page, "body", None)
        if body is None:
            continue
        called = plain_text(body, site, WikitextOptions(), table, page.title).templates
        if called and all(table.find(name) is not None for name in called):
            yield page.title, body


def knowledge_row(unit: Unit, table: TemplateTable) -> str:
    """A line of the second table, or '' for a dump without such pages."""
    site = SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))
    pages = list(pages_of_known_templates(unit, table))
    cells = []
    for has_rules, used in ((False, NO_TEMPLATES), (True, NO_TEMPLATES), (False, table), (True, table)):
        wiki_of.cache_clear()
        counts: Counter[str] = Counter()
        none = patch("pipeline.wikitext.wiki.built_in_rules", lambda _: TemplateRules({}))
        with none if not has_rules else patch.dict({}):
            for title, body in pages:
                text = plain_text(body, site, WikitextOptions(), used, title)
                counts["chars"] += sum(map(len, text.paragraphs))
                counts["dropped"] += text.dropped_chars
        cells.append(f"{counts['dropped']:,} ({share(counts, 'dropped', 'chars', 'dropped')})")
    wiki_of.cache_clear()
    return f"| {unit.dbname or unit.lang} | {len(pages)} | {' | '.join(cells)} |" if pages else ""


def share(counts: dict[str, int], part: str, whole: str, rest: str = "") -> str:
    """``part`` as a share of ``whole``, to which ``rest`` is added."""
    return f"{counts.get(part, 0) / max(1, counts[whole] + counts.get(rest, 0)):.2%}"


def row(wiki: str, counts: dict[str, int], before: dict[str, int] | None) -> str:
    """A line of the table."""
    cells = [wiki, f"{counts['articles']}", f"{counts['chars'] / 1e6:.2f}"]
    for part, whole, rest in (
        ("dropped", "chars", "dropped"), ("leftovers", "sentences", ""), ("link_lists", "chars", ""),
    ):  # fmt: skip
        cells += [share(before, part, whole, rest) if before else "", share(counts, part, whole, rest)]
    calls = {name: counts.get(f"calls_{name}", 0) for name in ("learned", "built_in", "unknown")}
    total = max(1, sum(calls.values()))
    cells += [f"{count / total:.1%}" for count in calls.values()]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", type=Path, nargs="+")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ablate", action="store_true", help="no table, and back matter kept")
    arguments = parser.parse_args()
    options = WikitextOptions(back_matter="keep" if arguments.ablate else "drop")
    results: dict[str, dict[str, int]] = {}
    alone: list[str] = []
    for dump in arguments.dumps:
        (unit,) = plan_dump(source="benchmark", uri=str(dump), name=dump.name, unit_bytes=1 << 40)
        table = NO_TEMPLATES if arguments.ablate else learn(unit)
        results[unit.dbname or unit.lang] = dict(sorted(measure(unit, table, options).items()))
        alone.append(knowledge_row(unit, table))
    before = json.loads(arguments.before.read_text()) if arguments.before else {}
    lines = [
        "# Templates, back matter and holes on real dumps",
        "",
        "Shares before and after, and calls by the source that decided what they show. Dumps: "
        + ", ".join(dump.name for dump in arguments.dumps)
        + ".",
        "",
        "| wiki | articles | M chars | dropped before | after | leftovers before | after "
        "| link lists before | after | learned | shipped rules | unknown |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row(wiki, counts, before.get(wiki)) for wiki, counts in results.items()),
        "",
        "| wiki | pages whose templates are all in the dump | characters dropped with neither "
        "| with shipped rules | with the table | with both |",
        "|---|---:|---:|---:|---:|---:|",
        *filter(None, alone),
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
