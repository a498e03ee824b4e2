"""MediaWiki XML dumps: units of one file by byte range, and the pages of a unit.

A bz2 dump is cut where streams begin: at the offsets of the multistream index beside it, or else at even
byte ranges, of which each owns the streams that begin in it. A plain XML file is cut anywhere. A file of
a single bz2 stream, or of another compression, is one unit.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from cluster import storage
from pipeline.site import SiteInfo
from pipeline.skip_reasons import MALFORMED, TOO_LARGE
from pipeline.sources.chunks import (
    STREAM_START,
    Chunk,
    compression_of,
    even_cuts,
    probe,
    read_chunks,
    transcode,
)
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.dump_status import check_status
from pipeline.sources.multistream_index import find_index, read_index
from pipeline.sources.page_filter import page_skip_reason
from pipeline.sources.wiki_header import HEAD_BYTES, head_encoding, parse_header
from pipeline.sources.wiki_page import MalformedPageError, parse_page
from pipeline.sources.xml_pages import PageScanner, plain_page
from pipeline.units import Unit
from schemas.errors import InputError

_SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c"
_STREAMS_BYTES = 8 << 20
# UTF-8 bytes of one character at most, and the longest entity in place of one (&quot;).
_BYTES_PER_CHARACTER = 6


def plan_dump(
    *,
    source: str,
    uri: str,
    name: str,
    lang: str | None = None,
    index: str | None = None,
    namespaces: tuple[int, ...] = (0,),
    unit_bytes: int = 32 << 20,
) -> list[Unit]:
    """The units of one dump file. Raises InputError when it is no dump, or not a finished one."""
    if re.search(r"-stub-(?:articles|meta)", uri.rpartition("/")[2]):
        raise InputError(f"{uri}: a stub dump, which holds no text; take pages-articles of the same date")
    found = probe(uri)
    size = found.size
    check_status(uri, size)
    if found.head.startswith(_SEVEN_ZIP):
        raise InputError(f"{uri}: a 7z archive, which is not read; take the .bz2 of the same dump")
    compression = compression_of(uri, found.head)
    head, encoding = _read_head(uri, compression, size)
    header = parse_header(head, uri, lang)
    whole = Unit(
        source=source,
        kind="wikimedia",
        uri=uri,
        name=name,
        start=0,
        end=size,
        size=size,
        lang=header.lang,
        compression=compression,
        fingerprint=found.fingerprint,
        encoding=encoding,
        dbname=header.dbname,
        site_namespaces=header.namespaces,
        namespaces=namespaces,
        rooted=header.rooted,
        notes=header.notes,
    )
    return _cut(whole, index, unit_bytes)


def _cut(whole: Unit, index: str | None, unit_bytes: int) -> list[Unit]:
    """The units of a file, given as one: by its index, at even byte ranges, or the one with a note."""
    if whole.compression == "bz2" and (index_uri := index or find_index(whole.uri)):
        cuts = read_index(index_uri, whole.uri, whole.size).cuts(unit_bytes)
        return [replace(whole, start=start, end=end, expected_pages=pages) for start, end, pages in cuts]
    if whole.size <= unit_bytes:
        return [whole]
    if whole.encoding != "utf-8" or whole.compression not in ("", "bz2"):
        note = f"{whole.compression or whole.encoding} data, which cannot be cut: one unit"
    elif whole.compression == "bz2" and not _has_many_streams(whole.uri, whole.size):
        note = "a single bz2 stream, which cannot be cut: one unit"
    else:
        return [replace(whole, start=start, end=end) for start, end in even_cuts(whole.size, unit_bytes)]
    return [replace(whole, notes=(*whole.notes, note))]


def _read_head(uri: str, compression: str, size: int) -> tuple[bytes, str]:
    """The file up to the end of its siteinfo or its first page, in UTF-8, and its encoding."""
    chunks = read_chunks(uri, compression, 0, size)
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


def _has_many_streams(uri: str, size: int) -> bool:
    """Whether a second bz2 stream begins near the start: multistream dumps begin with a short one."""
    beginning = storage.read_range(uri, 0, min(size, _STREAMS_BYTES))
    return STREAM_START.search(beginning, 1) is not None


def read_dump(unit: Unit, max_page_chars: int) -> Iterator[RawDocument | Skip]:
    """Every page that the unit owns, as a document or with the reason to leave it out.

    Raises InputError on a damaged or cut file, or when the index lists another number of pages.
    """
    site = SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces))
    chunks = read_chunks(unit.uri, unit.compression, unit.start, unit.end)
    if unit.encoding != "utf-8":
        chunks = transcode(chunks, unit.uri, unit.encoding)
    limit = _BYTES_PER_CHARACTER * max_page_chars
    scanner = PageScanner(
        chunks, unit.uri, rooted=unit.rooted, at_start=unit.start == 0, max_page_bytes=limit
    )
    seen = 0
    for raw in scanner.pages():
        seen += 1
        yield _read_page(raw, unit, site, scanner)
    if unit.expected_pages is not None and seen != unit.expected_pages:
        raise InputError(
            f"{unit.uri}: bytes {unit.start} to {unit.end}: {seen} pages, but the index lists "
            f"{unit.expected_pages}: the dump is incomplete or the index belongs to another one"
        )


def _read_page(raw: bytes, unit: Unit, site: SiteInfo, scanner: PageScanner) -> RawDocument | Skip:
    """``raw`` is the page at which ``scanner`` stands."""
    oversize = scanner.oversize
    try:
        page = parse_page(plain_page(raw) if scanner.declares and not oversize else raw)
        reason = page_skip_reason(page, site, unit.namespaces) or (TOO_LARGE if oversize else None)
        if reason is None:
            return RawDocument(page.page_id, page.revision, page.title, unit.lang, page.text, "wikitext")
    except (MalformedPageError, ValueError):
        return Skip("", "", unit.lang, MALFORMED)
    return Skip(page.page_id, page.title, unit.lang, reason)
