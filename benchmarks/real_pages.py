"""Reads the pages of all dumps in a folder for the cleaning benchmarks. Tolerates odd files."""

import bz2
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from pipeline.text.languages import WIKI_CODES, is_redirect
from pipeline.wikitext.site import FILE, SiteInfo

_FILE_WIKI = re.compile(r"^([a-z]{2,}(?:[_-][a-z]+)*?)wiki(?:-|$)")
_OTHER_MODELS = (
    "json",
    "Scribunto",
    "css",
    "javascript",
    "sanitized-css",
    "wikibase-item",
    "wikibase-property",
)


@dataclass(frozen=True)
class RealPage:
    """A content page and the wiki that it is from."""

    file: str
    site: SiteInfo
    title: str
    wikitext: str


def real_pages(folder: Path) -> Iterator[RealPage]:
    """Articles (namespace 0, no redirects) of every .xml and .xml.bz2 file, each page once per wiki."""
    seen: set[tuple[str, str]] = set()
    paths = (
        path for path in folder.rglob("*") if path.suffix in (".xml", ".bz2") and "index" not in path.name
    )
    for path in sorted(paths):
        for page in pages_of_file(path):
            key = (page.site.lang, page.title)
            if key not in seen:
                seen.add(key)
                yield page


def pages_of_file(path: Path) -> Iterator[RealPage]:
    """The articles of one file, whose wiki is that of the file's name, otherwise that of its siteinfo."""
    data = path.read_bytes()
    if path.suffix == ".bz2":
        data = bz2.decompress(data)
    if b"<mediawiki" not in data[:2000] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        data = b"<mediawiki>" + re.sub(rb"^\s*<\?xml[^>]*\?>", b"", data) + b"</mediawiki>"
    named = _FILE_WIKI.match(path.name)
    lang = named.group(1).replace("_", "-") if named else "en"
    namespaces: dict[int, tuple[str, ...]] = {}
    site: SiteInfo | None = None
    try:
        for _, node in ElementTree.iterparse(io.BytesIO(data)):
            tag = node.tag.rpartition("}")[2]
            if tag == "namespace":
                namespaces[int(node.get("key", "0"))] = (node.text or "",)
            elif tag == "dbname" and named is None:
                lang = (node.text or "enwiki").removesuffix("wiki").replace("_", "-")
            elif tag == "page":
                site = site or SiteInfo(lang, f"{lang}wiki", _trusted(namespaces, lang))
                page = _page(path, site, node)
                if page is not None:
                    yield page
                node.clear()
    except ElementTree.ParseError:
        return  # a damaged file: pages before the damage count


def _trusted(namespaces: dict[int, tuple[str, ...]], lang: str) -> dict[int, tuple[str, ...]]:
    """Whether siteinfo can be trusted. Some excerpts have English siteinfo above another wiki's pages."""
    english = namespaces.get(FILE, ("",))[0] in ("", "File")
    return {} if english and lang not in ("en", "simple") else namespaces


def _page(path: Path, site: SiteInfo, node: ElementTree.Element) -> RealPage | None:
    fields = {child.tag.rpartition("}")[2]: child.text or "" for child in node.iter()}
    is_article = fields.get("ns", "0") == "0" and fields.get("model", "wikitext") not in _OTHER_MODELS
    text = fields.get("text", "")
    if (
        site.lang not in WIKI_CODES
        or not is_article
        or "redirect" in fields
        or not text.strip()
        or is_redirect(text)
    ):
        return None
    return RealPage(path.name, site, fields.get("title", ""), text)
