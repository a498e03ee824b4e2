"""Reads a source file as decompressed chunks of bounded size and marks where a unit's range ends.

A unit owns the records that start in its range and reads past the end of the range to finish the last one.
A plain or bz2 file can be split anywhere. In a bz2 file, a range owns the blocks that start in it. Files in
other compressions cannot be split.
"""

import codecs
import hashlib
import io
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

from cluster import storage
from cluster.compressed import open_compressed
from pipeline.sources.bzip2 import OUTPUT_BYTES, read_blocks
from schemas.errors import InputError
from schemas.redaction import public_uri

_PROBE_BYTES = 1 << 16

BOMB_BYTES = 1 << 30
_BOMB_RATIO = 200
"""A file that exceeds both limits is a decompression bomb. Text grows about tenfold."""


def is_bomb(stored: int, decompressed: int) -> bool:
    """Whether ``decompressed`` bytes from ``stored`` bytes are too many for text."""
    return decompressed > max(BOMB_BYTES, _BOMB_RATIO * stored)


_SUFFIXES = {".bz2": "bz2", ".gz": "gz", ".zst": "zst", ".xz": "xz"}
_NAMES = {"bz2": "bzip2", "gz": "gzip", "zst": "Zstandard", "xz": "xz"}
_MAGIC = {"bz2": b"BZh", "gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "xz": b"\xfd7zXZ\x00"}


@dataclass(frozen=True)
class Chunk:
    """Decompressed bytes. ``owned``: whether the records that start in them belong to the unit."""

    data: bytes
    owned: bool
    offset: int
    """Byte of the stored file at or shortly before this chunk, for messages."""
    exact: bool = False
    """Whether the chunk starts exactly at ``offset``."""


def compression_of(uri: str, head: bytes) -> str:
    """Detects the compression from the file's suffix. Without a known suffix, uses the first bytes.

    Raises InputError when the suffix and the first bytes disagree.
    """
    name = public_uri(uri).lower()
    compression = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "")
    if not compression:
        return next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), "")
    if not head.startswith(_MAGIC[compression]):
        page = "; it is an HTML page, perhaps a server's error message" if looks_like_html(head) else ""
        raise InputError(f"{uri}: not a {_NAMES[compression]} file: it starts with {head[:12]!r}{page}")
    return compression


def looks_like_html(head: bytes) -> bool:
    """Whether the first bytes look like a web page."""
    return re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body)\b", head, re.I) is not None


def read_chunks(uri: str, compression: str, start: int, end: int, size: int) -> Iterator[Chunk]:
    """Yields the bytes of ``uri`` from the first record boundary in [start, end) to the end of the file.

    The consumer stops once it has finished its last record. A range in which no bz2 block starts yields
    nothing. Raises InputError with the file and the byte where the data is damaged, and when the file does
    not have ``size`` bytes, before or after reading.
    """
    with storage.open_read(uri) as file:
        _check_size(uri, size, file.seek(0, io.SEEK_END))
        file.seek(0)
        try:
            if compression == "bz2":
                decompressed = 0
                for place, data in read_blocks(file, uri, start, end):
                    decompressed += len(data)
                    _refuse_bomb(uri, compression, place - start, decompressed)
                    yield Chunk(data, place < end, place)
            elif compression:
                yield from _whole_chunks(file, uri, compression)
            else:
                yield from _plain_chunks(file, start, end)
        except InputError:
            _check_still(uri, size)
            raise
        _check_still(uri, size)


def _check_still(uri: str, planned: int) -> None:
    # Object stores and web servers do not continue a read in another version of a file.
    if storage.scheme(uri) == "file":
        check_size(uri, planned)


def check_size(uri: str, planned: int) -> None:
    """Raises InputError if the size of a file has changed since the planning.

    Raises FileNotFoundError when it is gone.
    """
    _check_size(uri, planned, storage.size(uri))


def _check_size(uri: str, planned: int, size: int) -> None:
    if size != planned:
        raise InputError(
            f"{uri}: changed: {planned} bytes when the build was planned, {size} bytes now; "
            "wait until the file is complete, then start the build again"
        )


def transcode(chunks: Iterator[Chunk], uri: str, encoding: str) -> Iterator[Chunk]:
    """Converts the chunks to UTF-8. Raises InputError where the bytes are not valid ``encoding``."""
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
    read = open_compressed(file, compression).read
    offset = decompressed = 0
    while True:
        try:
            data = read(OUTPUT_BYTES)
        except (EOFError, OSError, lzma.LZMAError) as error:
            text = str(error)
            cut = "truncated: " if isinstance(error, EOFError) or "Truncated" in text else ""
            raise InputError(
                f"{uri}: {cut}cannot read the {_NAMES[compression]} data near byte {offset}: {text}"
            ) from error
        if not data:
            return
        yield Chunk(data, True, offset)
        offset = file.tell()
        decompressed += len(data)
        _refuse_bomb(uri, compression, offset, decompressed)


def _refuse_bomb(uri: str, compression: str, stored: int, decompressed: int) -> None:
    if is_bomb(stored, decompressed):
        raise InputError(
            f"{uri}: {stored} bytes of {_NAMES[compression]} data became {decompressed} bytes, "
            "too many for text"
        )


@dataclass(frozen=True)
class Probe:
    """Facts about a file for planning, read in two or three requests."""

    size: int
    head: bytes
    fingerprint: str
    """Hash of the size and of the first and last bytes, to notice that a file was replaced.
    The last bytes of bz2 and gzip files contain checksums of the whole file."""


def probe(uri: str) -> Probe:
    """Probes a file. Raises InputError for an empty file, FileNotFoundError for a missing one."""
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
    """Splits ``size`` bytes into [start, end) ranges of nearly equal length, at most ``unit_bytes`` each."""
    count = -(-size // unit_bytes)
    return list(pairwise(size * number // count for number in range(count + 1)))
