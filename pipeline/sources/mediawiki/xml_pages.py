"""Extracts the pages of a MediaWiki XML export from a stream of bytes.

The exporter escapes every ``<`` in a text, so a byte search finds the tags ``<page>`` and ``</page>`` several
times faster than an XML parser. XML also permits comments and CDATA, which the exporter never writes. Pages
that contain them go through a real parser. A malformed file (data between pages, a page inside a page, a
missing end tag of the root) raises an error with its position.
"""

import re
from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

from pipeline.sources.chunks import Chunk
from schemas.errors import InputError

_OPEN, _CLOSE = b"<page>", b"</page>"
_REVISION, _REVISION_END = b"<revision>", b"</revision>"
_GAP = re.compile(rb"(?:\s|<!--.*?-->)*", re.S)
_ROOT_END = re.compile(rb"(?:\s|<!--.*?-->)*</mediawiki\s*>(?:\s|<!--.*?-->)*", re.S)
_SPECIAL = re.compile(rb"<!\[CDATA\[.*?\]\]>|<!--.*?-->|(</page>)", re.S)
# Matches comments and CDATA. A regex search for one literal byte is twice as fast as bytes.find for both.
_DECLARATION = re.compile(rb"<(?=!)")
_HEAD_END = re.compile(rb"</siteinfo\s*>|<siteinfo\s*/>|<page\b|</mediawiki")
_ROOT = re.compile(rb"<mediawiki\b[^>]*>")
_TAIL_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16

# A siteinfo has about 20 kB. Without a limit, every new chunk would search an endless head from its start.
_MOST_HEAD_BYTES = 16 << 20


class PageScanner:
    """Extracts the pages that a unit owns from its chunks.

    ``rooted``: whether the file has a root element, so that a missing end tag means a truncated file.
    ``at_start``: whether the chunks start with the head of the file. A page of more than
    ``max_page_bytes`` is cut to its start, and ``oversize`` is set. ``declares`` is set if the page has
    comments or CDATA. Memory holds one page and two chunks.
    """

    def __init__(
        self, chunks: Iterator[Chunk], uri: str, *, rooted: bool, at_start: bool, max_page_bytes: int
    ) -> None:
        self._chunks, self._uri, self._rooted = chunks, uri, rooted
        self._before_first = not at_start
        self._max_page_bytes = max_page_bytes
        self._buffer, self._at = b"", 0
        self._limit: int | None = None
        self._seen_tag = False
        self._last, self._last_begin = Chunk(b"", True, 0), 0
        self.oversize = False
        self.declares = False

    def pages(self) -> Iterator[bytes]:
        """Yields pages, from ``<page>`` to ``</page>``. Raises InputError for a damaged or truncated file."""
        if not self._pull():
            return
        if not self._before_first:
            self._skip_head()
        while self._seek_open():
            self._before_first = False
            yield self._page()

    def _skip_head(self) -> None:
        """Skips the siteinfo, or the start tag of the root if the dump has no siteinfo."""
        while not (head := _HEAD_END.search(self._buffer)) and self._pull():
            if len(self._buffer) > _MOST_HEAD_BYTES:
                self._refuse(f"no page within the first {_MOST_HEAD_BYTES >> 20} MiB")
        place = head.start() if head else len(self._buffer)
        root = _ROOT.search(self._buffer, 0, place)
        if head and head[0].startswith((b"</siteinfo", b"<siteinfo")):
            self._at = head.end()
        elif root:
            self._at = root.end()
        else:
            self._at = place

    def _pull(self) -> bool:
        """Drops the consumed bytes from the buffer and appends the next chunk."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._buffer = self._buffer[self._at :]
        if self._limit is not None:
            self._limit = max(0, self._limit - self._at)
        elif not chunk.owned:
            self._limit = len(self._buffer)
        self._at = 0
        self._last, self._last_begin = chunk, len(self._buffer)
        self._buffer += chunk.data
        return True

    def _seek_open(self) -> bool:
        """Moves to the next owned ``<page>``. Returns false after the last one."""
        before_first = self._before_first
        while True:
            tag_at = self._buffer.find(_OPEN, self._at)
            if tag_at >= 0:
                if self._limit is not None and tag_at >= self._limit:
                    return False
                if not before_first and not _GAP.fullmatch(self._buffer, self._at, tag_at):
                    gap = self._buffer[self._at : tag_at]
                    self._refuse(f"unexpected data between pages: {_excerpt(gap)}")
                self._at = tag_at
                return True
            # A tag past the limit belongs to the next unit, which then checks the end of the file. Without
            # such a tag, this unit checks it.
            tag = self._buffer.find(b"<", self._at)
            if self._limit is not None and tag >= self._limit:
                return False
            self._seen_tag |= tag >= 0
            if before_first:
                self._at = max(self._at, len(self._buffer) - _TAIL_BYTES)
            elif len(self._buffer) - self._at > _TAIL_BYTES:
                self._refuse(f"unexpected data between pages: {_excerpt(self._buffer[self._at :])}")
            if not self._pull():
                self._check_end()
                return False

    def _check_end(self) -> None:
        tail = self._buffer[self._at :]
        before_first = self._before_first
        if not self._rooted:
            if tail.strip() and not before_first:
                self._refuse(f"unexpected data after the last page: {_excerpt(tail)}")
            return
        if before_first:
            if not self._seen_tag:
                return
            tail = tail[max(0, tail.rfind(b"</mediawiki")) :]
        if _ROOT_END.fullmatch(tail):
            return
        if b"</mediawiki" in tail:
            self._refuse(f"unexpected data around </mediawiki>: {_excerpt(tail)}")
        self._refuse("truncated: the file ends early, without the closing </mediawiki>")

    def _page(self) -> bytes:
        """Returns the page at the current position and moves past it."""
        self.oversize = False
        searched = len(_OPEN)
        while (end := self._find_close(self._at + searched)) < 0:
            searched = max(len(_OPEN), len(self._buffer) - self._at - len(_CLOSE))
            if len(self._buffer) - self._at > self._max_page_bytes:
                self._keep_best_revision()
                searched = len(_OPEN)
                if len(self._buffer) - self._at > self._max_page_bytes:
                    return self._skim()
            if not self._pull():
                self._refuse(f"truncated: the file ends inside page {_title(self._buffer[self._at :])}")
        page = self._buffer[self._at : end]
        self._at = end
        if not self.declares and page.find(_OPEN, len(_OPEN)) >= 0:
            self._refuse(f"another page starts inside page {_title(page)}")
        return page

    def _find_close(self, searched: int) -> int:
        """The position after the ``</page>`` that ends the current page, or -1."""
        close_at = self._buffer.find(_CLOSE, searched)
        if close_at < 0:
            return -1
        self.declares = _DECLARATION.search(self._buffer, self._at, close_at) is not None
        if not self.declares:
            return close_at + len(_CLOSE)
        for match in _SPECIAL.finditer(self._buffer, self._at):
            if match[1] and _sections_closed(self._buffer[self._at : match.start()]):
                return match.end()
        return -1

    def _keep_best_revision(self) -> None:
        """Drops all complete revisions in the buffer except the one with the highest id."""
        first = self._buffer.find(_REVISION, self._at)
        last = self._buffer.rfind(_REVISION)
        if first < 0 or first == last or self._buffer.find(b"<!", self._at) >= 0:
            return
        kept = self._buffer[self._at : first] + best_revision(self._buffer[first:last])
        if self._limit is not None:
            self._limit = max(0, self._limit - last + len(kept))
        self._buffer, self._at = kept + self._buffer[last:], 0

    def _skim(self) -> bytes:
        """Reads to the end of an oversized page, and keeps only its start."""
        self.oversize = True
        head = self._buffer[self._at : self._at + _HEAD_BYTES]
        while (end := self._buffer.find(_CLOSE, self._at)) < 0:
            self._at = max(self._at, len(self._buffer) - len(_CLOSE))
            if not self._pull():
                self._refuse(f"truncated: the file ends inside page {_title(head)}")
        self._at = end + len(_CLOSE)
        return head

    def _refuse(self, what: str) -> NoReturn:
        place = f"near byte {self._last.offset}"
        if self._last.exact:
            place = f"byte {self._last.offset - self._last_begin + self._at}"
        raise InputError(f"{self._uri}: {place}: {what}")


def best_revision(revisions: bytes) -> bytes:
    """Returns the ``<revision>`` element with the highest id."""
    parts = [_REVISION + part for part in revisions.split(_REVISION)[1:]]
    return max(parts, key=_revision_id)


def _revision_id(revision: bytes) -> int:
    match = re.search(rb"<id>\s*(\d{1,19})\s*</id>", revision[:400])
    return int(match[1]) if match else -1


def _sections_closed(data: bytes) -> bool:
    rest = _SPECIAL.sub(b"", data)
    return b"<![CDATA[" not in rest and b"<!--" not in rest


def _excerpt(data: bytes) -> str:
    text = " ".join(data.strip()[:60].decode("utf-8", "replace").split())
    return repr(text)


def _title(page: bytes) -> str:
    match = re.search(rb"<title>([^<]*)</title>", page[:2000])
    return repr(match[1].decode("utf-8", "replace")) if match else _excerpt(page)


def plain_page(page: bytes) -> bytes:
    """Rewrites the page without comments and CDATA, as the exporter would write it.

    Raises ValueError when the page is not well-formed XML or uses an entity that XML does not define.
    """
    out: list[str] = []
    parser = expat.ParserCreate("utf-8")

    def start(name: str, attributes: dict[str, str]) -> None:
        out.append(
            f"<{name}" + "".join(f' {key}="{_escape(value)}"' for key, value in attributes.items()) + ">"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: out.append(f"</{name}>")
    parser.CharacterDataHandler = lambda text: out.append(_escape(text))
    try:
        parser.Parse(page, True)
    except expat.ExpatError as error:
        raise ValueError(str(error)) from error
    return "".join(out).encode("utf-8")


def _escape(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace('"', "&quot;")
