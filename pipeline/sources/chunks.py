"""Bytes of a source file, decompressed, in bounded pieces, with a mark where a unit's range ends.

A unit owns the records that begin in its range and reads on past its end to finish the last one. A bz2
file is cut where its streams begin (Wikimedia's multistream dumps, pbzip2): the range owns the streams
that start inside it. A plain file is cut anywhere. Other compressions cannot be cut.
"""

import bz2
import codecs
import hashlib
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, BinaryIO, cast

import pyarrow as pa

from cluster import storage
from schemas.errors import InputError

READ_BYTES = 1 << 18
OUTPUT_BYTES = 1 << 20
_PROBE_BYTES = 1 << 16

# Stream header and the magic number of a first block, or of the end of an empty stream.
STREAM_START = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_STREAM_START_BYTES = 10

_SUFFIXES = {".bz2": "bz2", ".gz": "gz", ".zst": "zst", ".xz": "xz"}
_NAMES = {"bz2": "bzip2", "gz": "gzip", "zst": "Zstandard", "xz": "xz"}
_MAGIC = {"bz2": b"BZh", "gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "xz": b"\xfd7zXZ\x00"}


@dataclass(frozen=True)
class Chunk:
    """Decompressed bytes. ``owned``: records that begin in them belong to the unit."""

    data: bytes
    owned: bool
    offset: int
    """Byte of the stored file at or shortly before this piece, for messages."""
    exact: bool = False
    """Whether the piece begins exactly at ``offset``."""


def compression_of(uri: str, head: bytes) -> str:
    """The compression that the name tells, or the first bytes where the name tells none.

    Raises InputError when the name and the first bytes contradict each other.
    """
    named = next((kind for suffix, kind in _SUFFIXES.items() if uri.lower().endswith(suffix)), "")
    if not named:
        return next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), "")
    if not head.startswith(_MAGIC[named]):
        page = (
            "; it is an HTML page, such as a server sends instead of a file" if looks_like_html(head) else ""
        )
        raise InputError(f"{uri}: not a {_NAMES[named]} file: it begins with {head[:12]!r}{page}")
    return named


def looks_like_html(head: bytes) -> bool:
    """Whether the first bytes are those of a web page."""
    return re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body)\b", head, re.I) is not None


def read_chunks(uri: str, compression: str, start: int, end: int) -> Iterator[Chunk]:
    """The bytes of ``uri`` from the first record boundary in [start, end) to the end of the file.

    The consumer stops when it has finished its last record. Nothing is given when no bz2 stream
    begins in the range. Raises InputError that names the file and the place of a damage.
    """
    with storage.open_read(uri) as file:
        if compression == "bz2":
            yield from _bz2_chunks(file, uri, start, end)
        elif compression:
            yield from _whole_chunks(file, uri, compression)
        else:
            yield from _plain_chunks(file, start, end)


def transcode(chunks: Iterator[Chunk], uri: str, encoding: str) -> Iterator[Chunk]:
    """The same text in UTF-8. Raises InputError where the bytes are not in ``encoding``."""
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    try:
        for chunk in chunks:
            offset = chunk.offset
            yield Chunk(decoder.decode(chunk.data).encode("utf-8"), chunk.owned, offset)
        yield Chunk(decoder.decode(b"", final=True).encode("utf-8"), True, offset)
    except UnicodeError as error:
        raise InputError(f"{uri}: near byte {offset}: not {encoding} text: {error}") from error


def _plain_chunks(file: BinaryIO, start: int, end: int) -> Iterator[Chunk]:
    file.seek(start)
    position = start
    while data := file.read(OUTPUT_BYTES):
        own = max(0, min(len(data), end - position))
        if own:
            yield Chunk(data[:own], True, position, exact=True)
        if own < len(data):
            yield Chunk(data[own:], False, position + own, exact=True)
        position += len(data)


def _whole_chunks(file: BinaryIO, uri: str, compression: str) -> Iterator[Chunk]:
    read = _open_whole(file, compression).read
    offset = 0
    while True:
        try:
            data = read(OUTPUT_BYTES)
        except (EOFError, OSError, lzma.LZMAError) as error:
            text = str(error)
            cut = "truncated: " if isinstance(error, EOFError) or "Truncated" in text else ""
            raise InputError(
                f"{uri}: {cut}the {_NAMES[compression]} data near byte {offset} cannot be read: {text}"
            ) from error
        if not data:
            return
        yield Chunk(data, True, offset)
        offset = file.tell()


def _open_whole(file: BinaryIO, compression: str) -> IO[bytes]:
    """The decompressed bytes of all members of the file; a cut one raises EOFError or OSError."""
    if compression == "xz":
        return lzma.open(file)
    name = {"gz": "gzip", "zst": "zstd"}[compression]
    return cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(file, mode="r"), name))


@dataclass(frozen=True)
class Probe:
    """What a plan has to know of a file, in two or three requests."""

    size: int
    head: bytes
    fingerprint: str
    """Hash of size, first and last bytes: differs when another file has taken the place of this one.
    The last bytes of bz2 and gzip files hold checksums of the whole."""


def probe(uri: str) -> Probe:
    """Raises InputError for an empty file, FileNotFoundError for a missing one."""
    size = storage.size(uri)
    if size == 0:
        raise InputError(f"{uri}: empty file (0 bytes)")
    head = storage.read_range(uri, 0, _PROBE_BYTES)
    digest = hashlib.blake2b(str(size).encode() + head, digest_size=8)
    if size > len(head):
        tail = max(len(head), size - _PROBE_BYTES)
        digest.update(storage.read_range(uri, tail, size - tail))
    return Probe(size, head, digest.hexdigest())


def even_cuts(size: int, unit_bytes: int) -> list[tuple[int, int]]:
    """[start, end) ranges of nearly equal length, at most ``unit_bytes``, that cover ``size`` bytes."""
    count = -(-size // unit_bytes)
    return list(pairwise(size * number // count for number in range(count + 1)))


def find_stream(file: BinaryIO, start: int, end: int) -> int | None:
    """Byte in [start, end) at which the first bz2 stream begins, or None."""
    file.seek(start)
    window, base = b"", start
    while base < end and (data := file.read(READ_BYTES)):
        window += data
        if match := STREAM_START.search(window):
            found = base + match.start()
            return found if found < end else None
        drop = max(0, len(window) - _STREAM_START_BYTES + 1)
        window, base = window[drop:], base + drop
    return None


def _bz2_chunks(file: BinaryIO, uri: str, start: int, end: int) -> Iterator[Chunk]:
    first = start if start == 0 else find_stream(file, start, end)
    if first is None:
        return
    streams = _Bz2Streams(file, uri, first)
    while not streams.at_end():
        owned = streams.position < end
        begin = streams.position
        if not owned:
            yield Chunk(b"", False, begin)
        for data in streams.next_stream():
            yield Chunk(data, owned, begin)


class _Bz2Streams:
    """Streams that follow one another in a file, each decompressed in bounded pieces."""

    def __init__(self, file: BinaryIO, uri: str, position: int) -> None:
        self._file, self._uri = file, uri
        self._file.seek(position)
        self._pending = b""
        self.position = position
        """Byte of the file at which the next stream begins."""

    def at_end(self) -> bool:
        if not self._pending:
            self._pending = self._file.read(READ_BYTES)
        return not self._pending

    def next_stream(self) -> Iterator[bytes]:
        begin, fed = self.position, 0
        decompressor = bz2.BZ2Decompressor()
        self._check_start(begin)
        while not decompressor.eof:
            feed = b""
            if decompressor.needs_input:
                if self.at_end():
                    raise InputError(
                        f"{self._uri}: truncated: the bz2 stream at byte {begin} has no end "
                        f"(the file ends at byte {begin + fed})"
                    )
                feed, self._pending = self._pending, b""
                fed += len(feed)
            try:
                data = decompressor.decompress(feed, OUTPUT_BYTES)
            except OSError as error:
                raise InputError(f"{self._uri}: corrupt bz2 stream at byte {begin}: {error}") from error
            if data:
                yield data
        self._pending = decompressor.unused_data
        self.position = begin + fed - len(self._pending)

    def _check_start(self, begin: int) -> None:
        if len(self._pending) < _STREAM_START_BYTES:
            self._pending += self._file.read(READ_BYTES)
        if not self._pending.startswith(b"BZh"):
            what = "not a bzip2 file" if begin == 0 else "trailing data that is not a bz2 stream"
            raise InputError(f"{self._uri}: byte {begin}: {what}: {self._pending[:12]!r}")
