"""Splits MediaWiki XML dumps into units by byte range, and reads the pages of a unit.

A bz2 dump is split at the offsets in its multistream index, or into even byte ranges. A range owns
the pages that start in its bz2 blocks. A plain XML file can be split anywhere. A file in another compression
is one unit.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from pipeline.config import Source
from pipeline.sources.chunks import (
    Chunk,
    compression_of,
    even_cuts,
    probe,
    read_chunks,
    transcode,
)
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.mediawiki.content_exports import export_of, listed_hash, select_files, web_files
from pipeline.sources.mediawiki.dump_status import STATUS_NAMES, check_status
from pipeline.sources.mediawiki.header import HEAD_BYTES, head_encoding, page_url, parse_header
from pipeline.sources.mediawiki.multistream_index import find_index, is_index_name, read_index
from pipeline.sources.mediawiki.page import MalformedPageError, WikiPage, decoded_text, parse_page
from pipeline.sources.mediawiki.page_filter import page_skip_reason
from pipeline.sources.mediawiki.xml_pages import PageScanner, plain_page
from pipeline.sources.units import Unit
from pipeline.wikitext.site import SiteInfo
from schemas.errors import ConfigError, InputError
from schemas.redaction import public_uri
from schemas.skip_reasons import MALFORMED, TOO_LARGE

_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
# A character takes at most 4 bytes in UTF-8 and 6 as the longest entity (&quot;).
_BYTES_PER_CHARACTER = 6


class WikimediaReader(FileReader):
    """Reads the dumps of Wikimedia wikis and of other MediaWiki sites."""

    def accompanies(self, name: str) -> bool:
        """Whether the file is an index, a status file, a list of checksums or a marker such as _SUCCESS."""
        is_checksum = re.search(r"(?i)(?:md5|sha1|sha256)sums?\b", name) is not None
        return super().accompanies(name) or is_index_name(name) or name in STATUS_NAMES or is_checksum

    def match(self, pattern: str) -> Iterable[SourceFile]:
        """Finds the files of one path, including a folder of Content File Exports on a web server."""
        exports = web_files(pattern)
        return super().match(pattern) if exports is None else exports

    def files(self, source: Source) -> list[SourceFile]:
        """Finds the files of the source, of one Content File Export for each wiki."""
        return select_files(source, super().files(source))

    def plan(self, source: Source) -> list[Unit]:
        """Plans the units of all dumps. Raises ConfigError for two wikis of one language."""
        files = self.files(source) if source.index is not None else []
        if source.index is not None and len(files) != 1:
            raise ConfigError(
                f"source {source.name}: `index` requires a source with one file, but it has {len(files)}"
            )
        units = super().plan(source)
        _check_wikis(source, units)
        return units

    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """Plans the units of one dump."""
        return plan_dump(
            source=source.name,
            uri=file.uri,
            name=file.name,
            lang=source.lang,
            index=source.index,
            namespaces=tuple(source.namespaces),
            unit_bytes=self.extraction.unit_bytes,
            sha256=listed_hash(file.uri) if source.check_hashes and export_of(file.uri) else "",
        )

    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """Reads the pages of a unit."""
        return read_dump(unit, self.extraction.max_page_chars)


def _check_wikis(source: Source, units: list[Unit]) -> None:
    """Two wikis of one language share page ids, so they must not be in one source."""
    wikis: dict[str, dict[str, str]] = defaultdict(dict)
    for unit in units:
        wikis[unit.lang].setdefault(unit.dbname, unit.uri)
    for lang, by_name in wikis.items():
        if len(by_name) > 1:
            (first, first_uri), (second, second_uri), *_ = by_name.items()
            raise ConfigError(
                f"source {source.name}: {first_uri} ({first}) and {second_uri} ({second}) are two wikis of "
                f"language {lang}; put them into two sources"
            )


def plan_dump(
    *,
    source: str,
    uri: str,
    name: str,
    lang: str | None = None,
    index: str | None = None,
    namespaces: tuple[int, ...] = (0,),
    unit_bytes: int = 32 << 20,
    sha256: str = "",
) -> list[Unit]:
    """Plans the units of one dump file. Raises InputError for an unfinished dump or another kind of file."""
    if re.search(r"-stub-(?:articles|meta)", name):
        raise InputError(f"{uri}: a stub dump, which has no text; use pages-articles of the same date")
    probed = probe(uri)
    size = probed.size
    check_status(uri, size)
    if probed.head.startswith(_SEVEN_ZIP):
        raise InputError(f"{uri}: 7z archives are not supported; use the .bz2 of the same dump")
    compression = compression_of(uri, probed.head)
    head, encoding = _read_head(uri, compression, size)
    header = parse_header(head, public_uri(uri), lang)
    file_unit = Unit(
        source=source,
        kind="wikimedia",
        uri=uri,
        name=name,
        start=0,
        end=size,
        size=size,
        lang=header.lang,
        compression=compression,
        sha256=sha256,
        fingerprint=probed.fingerprint,
        encoding=encoding,
        dbname=header.dbname,
        site_namespaces=header.namespaces,
        namespaces=namespaces,
        rooted=header.rooted,
        page_prefix=header.page_prefix,
        notes=header.notes,
    )
    return _cut(file_unit, index, unit_bytes)


def _cut(file_unit: Unit, index: str | None, unit_bytes: int) -> list[Unit]:
    """Splits a file by its index or into even byte ranges, or keeps it as one unit."""
    if file_unit.compression == "bz2" and (index_uri := index or find_index(file_unit.uri)):
        cuts = read_index(index_uri, file_unit.uri, file_unit.size).cuts(unit_bytes)
        return [replace(file_unit, start=start, end=end, expected_pages=pages) for start, end, pages in cuts]
    if file_unit.size <= unit_bytes:
        return [file_unit]
    if file_unit.encoding != "utf-8" or file_unit.compression not in ("", "bz2"):
        note = f"{file_unit.compression or file_unit.encoding} data cannot be split: one unit"
        return [replace(file_unit, notes=(*file_unit.notes, note))]
    return [replace(file_unit, start=start, end=end) for start, end in even_cuts(file_unit.size, unit_bytes)]


def _read_head(uri: str, compression: str, size: int) -> tuple[bytes, str]:
    """Reads up to the end of the siteinfo or the first page. Returns this in UTF-8, and the encoding."""
    chunks = read_chunks(uri, compression, 0, size, size)
    first = next(chunks, None)
    if first is None:
        raise InputError(f"{uri}: empty file (0 bytes of text)")
    encoding = head_encoding(first.data[:400], uri)
    pieces: Iterator[Chunk] = chain((first,), chunks)
    if encoding != "utf-8":
        pieces = transcode(pieces, uri, encoding)
    head = b""
    for chunk in pieces:
        head += chunk.data
        if len(head) > HEAD_BYTES or re.search(rb"</siteinfo>|<page>|<!DOCTYPE", head):
            break
    return head, encoding


_STUB_PAGES = 100
"""A unit with this many pages without text, and none with text, belongs to a stub dump."""


def read_dump(unit: Unit, max_page_chars: int) -> Iterator[RawDocument | Skip]:
    """Yields every page that the unit owns, as a document or with the reason to skip it.

    Raises InputError for a damaged or truncated file, for a stub dump, and if the number of pages differs
    from the index.
    """
    for page in read_stored_pages(unit, max_page_chars):
        yield page.decoded() if isinstance(page, StoredPage) else page


@dataclass(frozen=True)
class StoredPage:
    """A page as the dump stores it. Its text stays undecoded, because the caller may already have it."""

    head: RawDocument
    """Everything except the body, which is empty."""
    raw_text: bytes
    """The body in UTF-8, still escaped."""

    def decoded(self) -> RawDocument | Skip:
        """The whole document, or a malformed page to skip."""
        try:
            return replace(self.head, body=decoded_text(self.raw_text))
        except MalformedPageError:
            return Skip("", "", self.head.lang, MALFORMED)


def read_stored_pages(unit: Unit, max_page_chars: int) -> Iterator[StoredPage | Skip]:
    """Yields the pages of `read_dump` before their text is decoded. Raises the same errors."""
    site = SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))
    for page, oversize in read_wiki_pages(unit, max_page_chars):
        yield stored_page(page, oversize, unit, site)


def read_wiki_pages(unit: Unit, max_page_chars: int) -> Iterator[tuple[WikiPage | None, bool]]:
    """Yields every page that the unit owns, in any namespace, and whether the page is cut.

    A malformed page is None. A page of more than ``max_page_chars`` is cut to its start. Raises InputError
    for a damaged or truncated file, for a stub dump, and if the number of pages differs from the index.
    """
    chunks = read_chunks(unit.uri, unit.compression, unit.start, unit.end, unit.size)
    if unit.encoding != "utf-8":
        chunks = transcode(chunks, unit.uri, unit.encoding)
    limit = _BYTES_PER_CHARACTER * max_page_chars
    scanner = PageScanner(
        chunks, unit.uri, rooted=unit.rooted, at_start=unit.start == 0, max_page_bytes=limit
    )
    pages_seen = present = left_out = 0
    for raw in scanner.pages():
        pages_seen += 1
        oversize = scanner.oversize
        page: WikiPage | None = None
        with suppress(MalformedPageError, ValueError):
            page = parse_page(plain_page(raw) if scanner.declares and not oversize else raw)
        if page is not None:
            present += bool(page.raw_text)
            left_out += page.lacks_text
        yield page, oversize
    # A late unit of an intact dump may hold only a page or two, whose text is missing.
    if not present and (left_out >= _STUB_PAGES or (left_out and unit.start == 0)):
        raise InputError(f"{unit.uri}: a stub dump, which has no text; use pages-articles of the same date")
    if unit.expected_pages is not None and pages_seen != unit.expected_pages:
        raise InputError(
            f"{unit.uri}: bytes {unit.start} to {unit.end}: {pages_seen} pages, but the index lists "
            f"{unit.expected_pages}: the dump is incomplete, or the index belongs to another dump"
        )


def stored_page(page: WikiPage | None, oversize: bool, unit: Unit, site: SiteInfo) -> StoredPage | Skip:
    """A page from `read_wiki_pages`, as a page to clean or with the reason to skip it."""
    if page is None:
        return Skip("", "", unit.lang, MALFORMED)
    try:
        reason = page_skip_reason(page, site, unit.namespaces) or (TOO_LARGE if oversize else None)
        if reason is None:
            head = RawDocument(
                page_id=page.page_id,
                revision=page.revision,
                title=page.title,
                lang=unit.lang,
                body="",
                kind="wikitext",
                source_id=page.page_id,
                timestamp=page.timestamp or None,
                url=page_url(unit.page_prefix, page.title),
            )
            return StoredPage(head, page.raw_text)
    except (MalformedPageError, ValueError):
        return Skip("", "", unit.lang, MALFORMED)
    return Skip(page.page_id, page.title, unit.lang, reason)
