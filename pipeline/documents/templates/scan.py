"""Scans one unit of a dump for templates: their pages, their uses, and lists of links.

It does not parse articles. It searches the raw bytes for names of templates and lines of the last sections.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.documents.reuse.page_copy import PageCopyWriter
from pipeline.sources.mediawiki.dumps import read_wiki_pages, stored_page
from pipeline.sources.mediawiki.page import MalformedPageError, WikiPage, unescape
from pipeline.sources.mediawiki.page_filter import page_skip_reason
from pipeline.sources.units import Unit
from pipeline.wikitext.back_matter import fold_heading
from pipeline.wikitext.site import TEMPLATE, SiteInfo
from pipeline.wikitext.templates.rules import find_function
from pipeline.wikitext.templates.table import fold_name
from pipeline.wikitext.templates.transclusion import Included, included, template_name
from schemas.columns.templates import SCANNED

MODULE = 828
_BATCH_BYTES = 4 << 20
_LAST_SECTIONS = 8
_MAX_SECTION_BYTES = 20_000
_MAX_HEADING_BYTES = 60
_USE = re.compile(rb"\{\{[ \t\n]*+([^{}|\n#\[\]]{1,200}+)(?=[|}\n])")
_COMMENT = b"&lt;!--"
_HEADING = re.compile(rb"\n(={2,4})[ \t]*+([^\n]{1,80}?)[ \t]*\1[ \t]*(?=\n|\Z)")
_ITEM = re.compile(rb"(?m)^[*#:;]+(.*)$")
_CITATION = re.compile(rb"//|ISBN|isbn|doi|\{\{|&lt;ref|''[^\n]*(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
_BARE_LINK = re.compile(
    rb"\s*(?:''+|&quot;|\xe2\x80\xa2)?\s*\[\[[^\[\]\n]*\]\][\s.,;'\"]*+(?:\([^()\n]{0,30}\))?\s*"
)
_SILENT_LINE = re.compile(rb"(?m)^(?:\s*|[{|!}].*|\[\[[^\[\]|:\n]{1,30}:.*|&lt;.*|[^\n]*\}\}\s*)$")
_MIN_LINKS = 0.7


@dataclass
class _Wiki:
    """The results of the scan of one wiki in one unit."""

    site: SiteInfo
    uses: Counter[bytes] = field(default_factory=Counter)
    headings: Counter[bytes] = field(default_factory=Counter)
    listed: Counter[bytes] = field(default_factory=Counter)


def scan_unit(
    unit: Unit, max_page_chars: int, counts: Counter[str], copy: PageCopyWriter | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of SCANNED rows. Adds pages, templates, modules and bytes of wikitext to ``counts``.

    Writes every page to ``copy``, for stage extract.
    Raises InputError that names the file on damaged input.
    """
    rows: list[dict[str, object]] = []
    wikis: dict[str, _Wiki] = {}
    size = 0
    for number, wiki_range in enumerate(unit.ranges):
        site = SiteInfo(wiki_range.lang, wiki_range.dbname, dict(wiki_range.site_namespaces))
        wiki = wikis.setdefault(wiki_name(wiki_range), _Wiki(site))
        for page, oversize in read_wiki_pages(wiki_range, max_page_chars):
            if copy is not None:
                copy.add(number, stored_page(page, oversize, wiki_range, wiki.site))
            if page is None:
                continue
            counts["pages"] += 1
            counts["wikitext_bytes"] += len(page.raw_text)
            row = _scan_page(page, oversize, wiki_range, wiki, counts)
            if row is not None:
                rows.append(row)
                size += len(page.raw_text)
            if size >= _BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema=SCANNED)
                rows, size = [], 0
    for name, wiki in wikis.items():
        rows += _counted(name, wiki)
    yield pa.RecordBatch.from_pylist(rows, schema=SCANNED)


def wiki_name(unit: Unit) -> str:
    """The name of a wiki: its dbname, or its language if the dump does not give the dbname."""
    return unit.dbname or unit.lang


def _scan_page(
    page: WikiPage, oversize: bool, unit: Unit, wiki: _Wiki, counts: Counter[str]
) -> dict[str, object] | None:
    """The row of a template's page, or None for an article, whose calls and headings are counted."""
    number = page.namespace
    if number is None:
        number = wiki.site.namespace_of_title(page.title)
    if number == MODULE:
        counts["modules"] += 1
    elif number == TEMPLATE and page.model in ("", "wikitext") and not page.deleted:
        counts["templates"] += 1
        try:
            transcluded = Included(too_long=True) if oversize else included(page.text, wiki.site)
        except MalformedPageError:
            counts["malformed"] += 1
            return None
        name = template_name(page.title, wiki.site)
        fields = (page.revision, transcluded.body, transcluded.redirect, transcluded.too_long)
        return _row(wiki_name(unit), "template", name, *fields)
    elif number in unit.namespaces and page_skip_reason(page, wiki.site, unit.namespaces) is None:
        wiki.uses.update(_USE.findall(page.raw_text))
        _count_headings(page.raw_text, wiki)
    return None


def _row(
    wiki: str, what: str, name: str, revision: int = 0, body: str = "", redirect: str = "",
    too_long: bool = False, count: int = 0, listed: int = 0,
) -> dict[str, object]:  # fmt: skip
    return {
        "wiki": wiki, "what": what, "name": name, "revision": revision, "body": body, "redirect": redirect,
        "too_long": too_long, "count": count, "listed": listed,
    }  # fmt: skip


def _count_headings(text: bytes, wiki: _Wiki) -> None:
    """Counts the last sections of an article, and how many of them are lists of links."""
    end, at, sections, at_end = len(text), len(text), 0, True
    while sections < _LAST_SECTIONS and (at := text.rfind(b"\n==", 0, at)) >= 0:
        heading = _HEADING.match(text, at)
        if heading is None:
            continue
        sections += 1
        title = heading[2]
        lists = at_end and _is_list_of_links(
            text[heading.end() : min(end, heading.end() + _MAX_SECTION_BYTES)]
        )
        end, at_end = at, at_end and lists is not False
        if len(title) <= _MAX_HEADING_BYTES and lists is not None:
            wiki.headings[title] += 1
            wiki.listed[title] += lists


def _is_list_of_links(section: bytes) -> bool | None:
    """Whether the text of a section is a list of links or citations, or None without text."""
    items = _ITEM.findall(section)
    prose = len(_SILENT_LINE.sub(b"", _ITEM.sub(b"", section)).strip())
    if not items and not prose:
        return True if b"&lt;references" in section else None
    if not items or prose > sum(map(len, items)) // 4:
        return False
    links = sum(map(_is_link, items))
    return links >= _MIN_LINKS * len(items) and links > 0


def _is_link(item: bytes) -> bool:
    # The most common signs come first. Each is a single fast search.
    return (
        b"//" in item
        or b"{{" in item
        or _BARE_LINK.fullmatch(item) is not None
        or _CITATION.search(item) is not None
    )


def _counted(name: str, wiki: _Wiki) -> Iterator[dict[str, object]]:
    uses: Counter[str] = Counter()
    for raw, count in wiki.uses.items():
        called = _called_template(_text(raw.partition(_COMMENT)[0]), wiki.site)
        if called:
            uses[called] += count
    for called, count in sorted(uses.items()):
        yield _row(name, "use", called, count=count)
    headings: dict[str, list[int]] = {}
    for raw, count in wiki.headings.items():
        counted = headings.setdefault(fold_heading(_plain(_text(raw))), [0, 0])
        counted[0] += count
        counted[1] += wiki.listed[raw]
    for title, (count, listed) in sorted(headings.items()):
        if title:
            yield _row(name, "heading", title, count=count, listed=listed)


def _text(raw: bytes) -> str:
    return unescape(raw.decode("utf-8", "replace"))


def _plain(title: str) -> str:
    return re.sub(r"'''?|\[\[(?:[^\[\]|]*\|)?|\]\]|<[^<>]*>", "", title)


def _called_template(raw: str, site: SiteInfo) -> str:
    """The folded name of a template from the text before the first bar, or '' for a function or a page."""
    prefix, colon, rest = raw.partition(":")
    if colon and site.namespace_of_prefix(prefix) == TEMPLATE:
        return fold_name(rest)
    if colon and (find_function(prefix.strip().lower(), site.lang) is not None or prefix.isupper()):
        return ""
    return fold_name(raw)
