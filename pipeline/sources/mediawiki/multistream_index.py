"""Reads the index of a multistream dump: lines ``offset:page id:title``, one offset per 100 pages or so."""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from cluster import storage
from pipeline.sources.chunks import compression_of, read_chunks
from schemas.errors import InputError
from schemas.redaction import has_query

_LINE = re.compile(rb"^(\d+):\d+:.*$", re.M)
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class MultistreamIndex:
    """The start and number of pages of each stream with pages, and the size of the dump in bytes."""

    offsets: list[int]
    pages: list[int]
    size: int

    def cuts(self, unit_bytes: int) -> list[tuple[int, int, int | None]]:
        """(start, end, pages) of units that hold whole streams and about ``unit_bytes`` each."""
        places, firsts = [0], [0]
        while (at := bisect_left(self.offsets, places[-1] + unit_bytes)) < len(self.offsets):
            places.append(self.offsets[at])
            firsts.append(at)
        places.append(self.size)
        firsts.append(len(self.offsets))
        return [
            (places[i], places[i + 1], sum(self.pages[firsts[i] : firsts[i + 1]]))
            for i in range(len(places) - 1)
        ]


def is_index_name(name: str) -> bool:
    """Whether a file name is that of a multistream index."""
    return re.search(r"multistream-index\d*\.txt", name) is not None


def find_index(uri: str) -> str | None:
    """Finds the index of a dump by Wikimedia's file names. None without one, and for a signed URL."""
    if has_query(uri):
        return None
    folder, slash, name = uri.rpartition("/")
    match = re.fullmatch(r"(.*multistream)(\d*)\.xml(-p\d+p\d+)?\.bz2", name)
    if not match:
        return None
    index = f"{folder}{slash}{match[1]}-index{match[2]}.txt{match[3] or ''}.bz2"
    return index if storage.exists(index) else None


def read_index(uri: str, dump_uri: str, dump_size: int) -> MultistreamIndex:
    """Reads offsets and page counts. Raises InputError if the index is damaged or of another dump."""
    counts: Counter[bytes] = Counter()
    compression = compression_of(uri, storage.read_range(uri, 0, 16))
    rest = b""
    size = storage.size(uri)
    for chunk in read_chunks(uri, compression, 0, size, size):
        lines, newline, rest = (rest + chunk.data).rpartition(b"\n")
        _count(counts, lines + newline, uri)
        if len(rest) > _MAX_LINE_BYTES:
            raise InputError(f"{uri}: not an index of a multistream dump: a line of more than 1 MiB")
    _count(counts, rest, uri)
    streams = sorted((int(offset), pages) for offset, pages in counts.items())
    if streams and streams[-1][0] >= dump_size:
        raise InputError(
            f"{dump_uri}: truncated: {uri} lists a stream at byte {streams[-1][0]}, "
            f"but the dump ends at byte {dump_size}"
        )
    return MultistreamIndex([offset for offset, _ in streams], [pages for _, pages in streams], dump_size)


def _count(counts: Counter[bytes], lines: bytes, uri: str) -> None:
    offsets = _LINE.findall(lines)
    if len(offsets) != len(lines.splitlines()):
        bad = next(line for line in lines.splitlines() if not _LINE.fullmatch(line))
        raise InputError(f"{uri}: not an index of a multistream dump: {bad[:60]!r}")
    counts.update(offsets)
