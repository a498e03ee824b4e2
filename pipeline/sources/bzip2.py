"""Reads the blocks of a bzip2 file from any byte range, with libbz2 as the decoder.

A bzip2 stream is a header, blocks of up to 900 kB of text, and a footer. A block starts at any bit, with a
magic number of 48 bits and a checksum. Only the magic number of the next block or of the footer shows where
it ends. Starting at a block, the reader shifts the bits of the stream to whole bytes, prepends a header, and
feeds libbz2 up to the next magic number. If libbz2 then returns text, the block is complete and its checksum
is correct. If not, the magic number is a coincidence inside the block's data, and the reader continues to the
next one.

A range of a file owns the blocks whose magic number starts in it. Positions are bits of the file. The format
follows decompress.c in bzip2 1.0.8.
"""

import bz2
import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from schemas.errors import InputError

READ_BYTES = 1 << 18
OUTPUT_BYTES = 1 << 20
# After its range a unit needs the end of a page, usually some kilobytes.
_TAIL_BYTES = 1 << 16

_BLOCK, _FOOTER = 0x314159265359, 0x177245385090
_MAGIC_BITS, _CRC_BITS = 48, 32
# A magic number that starts at any bit spans at most 7 bytes.
_SPAN = 7
_STREAM_START = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_HEADER_BYTES, _START_BYTES = 4, 10
# 900,000 codes of at most 20 bits, and the tables.
_MOST_BLOCK_BYTES = 5 << 19
# A coincidence happens once in 2^48 bits. A block with this many was crafted deliberately.
_MOST_COINCIDENCES = 16


class _Mark(NamedTuple):
    """A magic number: the bit where it starts, and whether it marks a block."""

    bit: int
    is_block: bool


def _patterns() -> list[tuple[int, bool, int, bytes]]:
    """Returns for both magic numbers and each bit of a byte: number, is_block, bit, last 5 whole bytes."""
    return [
        (magic, magic == _BLOCK, shift, (magic >> shift & (1 << 40) - 1).to_bytes(5, "big"))
        for magic in (_BLOCK, _FOOTER)
        for shift in range(8)
    ]


_PATTERNS = _patterns()


def _find_marks(data: bytes) -> list[_Mark]:
    """Finds the magic numbers that start in ``data``, except in its last 6 bytes."""
    marks = []
    for magic, is_block, shift, inner in _PATTERNS:
        # The last 5 whole bytes of a number follow the byte in which it starts.
        place = data.find(inner, 1)
        while place >= 0:
            window = data[place - 1 : place - 1 + _SPAN]
            number = int.from_bytes(window, "big") >> 8 - shift
            if len(window) == _SPAN and number & (1 << _MAGIC_BITS) - 1 == magic:
                marks.append(_Mark(8 * (place - 1) + shift, is_block))
            place = data.find(inner, place + 1)
    return sorted(marks)


class _Bits:
    """A window that moves forward over the bits of a file, and the magic numbers in it."""

    def __init__(self, file: BinaryIO, byte: int) -> None:
        self._file, self._base, self._data = file, byte, b""
        self._kept = byte
        self._marks: deque[_Mark] = deque()

    @property
    def end(self) -> int:
        """Byte of the file after the window."""
        return self._base + len(self._data)

    @property
    def searched(self) -> int:
        """Every magic number that starts before this bit is known."""
        return 8 * max(self._base, self.end - _SPAN + 1)

    def forget(self) -> None:
        """Lets the next `extend` drop all searched data."""
        self._kept = self.searched // 8

    def extend(self) -> bool:
        """Reads more data and drops what `aligned` has returned. Returns False at the end of the file."""
        self._file.seek(self.end)
        data = self._file.read(READ_BYTES)
        if not data:
            return False
        first = self.searched // 8
        kept = min(self._kept, first)
        self._data = self._data[kept - self._base :] + data
        self._base = kept
        marks = _find_marks(self._data[first - self._base :])
        self._marks += (_Mark(8 * first + bit, is_block) for bit, is_block in marks)
        return True

    def take_mark(self, after: int) -> _Mark | None:
        """Removes and returns the next known magic number after the bit ``after``."""
        while self._marks:
            mark = self._marks.popleft()
            if mark.bit > after:
                return mark
        return None

    def bytes_at(self, byte: int, count: int) -> bytes:
        """Returns ``count`` bytes, or fewer at the end of the file."""
        while self.end < byte + count and self.extend():
            pass
        return self._data[byte - self._base : byte - self._base + count]

    def number(self, bit: int, count: int) -> int | None:
        """Returns ``count`` bits as a number, or None if the file is too short."""
        first, last = bit // 8, -(-(bit + count) // 8)
        data = self.bytes_at(first, last - first)
        if len(data) < last - first:
            return None
        return int.from_bytes(data, "big") >> 8 * last - bit - count & (1 << count) - 1

    def aligned(self, bit: int, count: int) -> bytes:
        """Returns ``count`` bytes that start at ``bit``, which must be in the window."""
        first, shift = divmod(bit, 8)
        self._kept = first + count
        data = np.frombuffer(self._data, np.uint8)[first - self._base :][: count + (shift > 0)]
        return (data[:-1] << shift | data[1:] >> 8 - shift).tobytes() if shift else data.tobytes()


class _BlockReader:
    """Reads consecutive blocks of a file, across the ends of streams."""

    def __init__(self, bits: _Bits, uri: str) -> None:
        self._bits, self._uri = bits, uri
        self.block: int | None = None
        """Bit at which the current block starts, or None after the last one."""
        self.end = _Mark(0, is_block=True)
        """The magic number after the block that was read."""
        self.coincidences: list[int] = []
        """Bits of the magic numbers inside the block that was read."""
        self._crc: int | None = None
        """Checksum over the blocks of the stream, if the reader started at the stream's start."""

    @classmethod
    def at_stream(cls, file: BinaryIO, uri: str) -> "_BlockReader":
        """Returns a reader of the whole file. Raises InputError if it does not start with a bzip2 stream."""
        reader = cls(_Bits(file, 0), uri)
        reader._begin_stream(0)
        return reader

    @classmethod
    def at_block(cls, file: BinaryIO, uri: str, bit: int) -> "_BlockReader":
        """Returns a reader that starts with the block at ``bit``."""
        reader = cls(_Bits(file, bit // 8), uri)
        reader._begin_blocks(bit, crc=None)
        return reader

    def read(self, piece_bytes: int) -> Iterator[bytes]:
        """Yields the text of the current block. Raises InputError for a damaged or truncated block.

        The checksum is verified once the iterator is exhausted.
        """
        if self.block is None:
            return
        self.coincidences = []
        stored = self._bits.number(self.block + _MAGIC_BITS, _CRC_BITS)
        while True:
            mark = self._bits.take_mark(self.block)
            complete = False
            # One byte after the block makes libbz2 return all of its text and check it.
            upto = self._bits.searched if mark is None else mark.bit + 7 + 8
            for piece in self._feed((upto - self._fed) // 8, piece_bytes):
                complete = True
                yield piece
            if complete and mark is not None:
                break
            if complete:
                self._refuse("corrupt: no block follows")
            if mark is None and not self._bits.extend():
                self._truncated()
            if mark is not None and mark.is_block:
                self.coincidences.append(mark.bit)
        if self._crc is not None and stored is not None:
            self._crc = (self._crc << 1 & 0xFFFFFFFF | self._crc >> 31) ^ stored
        self.end = mark

    def advance(self) -> None:
        """Moves to the block after the one that was read. Raises InputError for a damaged end of a stream."""
        if self.end.is_block:
            self.block = self.end.bit
            return
        stored = self._bits.number(self.end.bit + _MAGIC_BITS, _CRC_BITS)
        if stored is None:
            self._truncated()
        if self._crc not in (None, stored):
            self._refuse("corrupt: it is the last of a stream whose checksum is wrong")
        self._begin_stream(-(-(self.end.bit + _MAGIC_BITS + _CRC_BITS) // 8))

    def _begin_stream(self, byte: int) -> None:
        """Moves to the first block of the stream at ``byte``, or to the end of the file."""
        while start := self._bits.bytes_at(byte, _START_BYTES):
            if not start.startswith(b"BZh"[: len(start)]) or (
                len(start) == _START_BYTES and not _STREAM_START.match(start)
            ):
                what = "not a bzip2 file" if byte == 0 else "trailing data that is not a bz2 stream"
                raise InputError(f"{self._uri}: byte {byte}: {what}: {start!r}")
            first = 8 * (byte + _HEADER_BYTES)
            checksum = self._bits.number(first + _MAGIC_BITS, _CRC_BITS)
            if checksum is None:
                raise InputError(
                    f"{self._uri}: truncated: the file ends at byte {self._bits.end}, "
                    f"inside the bz2 stream that starts at byte {byte}"
                )
            if self._bits.number(first, _MAGIC_BITS) == _BLOCK:
                self._begin_blocks(first, crc=0)
                return
            if checksum:
                raise InputError(f"{self._uri}: corrupt: the empty bz2 stream at byte {byte} has a checksum")
            byte += _HEADER_BYTES + (_MAGIC_BITS + _CRC_BITS) // 8
        self.block = None

    def _begin_blocks(self, bit: int, *, crc: int | None) -> None:
        self.block, self._fed, self._crc = bit, bit, crc
        self._decoder = bz2.BZ2Decompressor()
        self._decoder.decompress(b"BZh9")

    def _feed(self, count: int, piece_bytes: int) -> Iterator[bytes]:
        """Feeds ``count`` more bytes to libbz2 and yields the text that it returns."""
        if count <= 0:
            return
        data = self._bits.aligned(self._fed, count)
        self._fed += 8 * count
        while piece := self._decompress(data, piece_bytes):
            yield piece
            data = b""

    def _decompress(self, data: bytes, piece_bytes: int) -> bytes:
        if not data and self._decoder.needs_input:
            return b""
        try:
            return self._decoder.decompress(data, piece_bytes)
        except (OSError, EOFError) as error:
            self._refuse(f"corrupt: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"{self._uri}: the bz2 block at {_place(self.block or 0)} is {what}")

    def _truncated(self) -> NoReturn:
        raise InputError(
            f"{self._uri}: truncated: the file ends at byte {self._bits.end}, "
            f"inside the bz2 block at {_place(self.block or 0)}"
        )


def _place(bit: int) -> str:
    return f"byte {bit // 8} (bit {bit % 8} of it)"


def read_blocks(file: BinaryIO, uri: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yields (byte where a block starts, text) from the first block in [start, end) to the end of the file.

    A text has at most a megabyte. A range in which no block starts yields nothing, but a range that starts
    at 0 starts with the file. Two neighboring ranges never disagree about a block, because a file whose
    blocks hide other blocks at such a boundary is an error. Raises InputError that names file and block.
    """
    first: list[bytes] = []
    if start == 0:
        reader = _BlockReader.at_stream(file, uri)
    else:
        first_block = _first_block(file, uri, start, end)
        if first_block is None:
            return
        reader, first = first_block
    while reader.block is not None:
        byte = reader.block // 8
        pieces = first or reader.read(OUTPUT_BYTES if byte < end else _TAIL_BYTES)
        for piece in pieces:
            yield byte, piece
        if byte < end:
            _refuse_hidden(file, uri, reader, end)
        reader.advance()
        first = []


def _first_block(file: BinaryIO, uri: str, start: int, end: int) -> tuple[_BlockReader, list[bytes]] | None:
    """Returns a reader that has read the first block of the range, and the text of this block."""
    for bit in islice(_block_marks(file, start, end), _MOST_COINCIDENCES):
        reader = _BlockReader.at_block(file, uri, bit)
        try:
            return reader, list(reader.read(OUTPUT_BYTES))
        except InputError:
            # Either the block is damaged, or the magic number is a coincidence.
            if not _is_inside_block(file, uri, bit):
                raise
    return None


def _is_inside_block(file: BinaryIO, uri: str, bit: int) -> bool:
    """Whether an intact block starts before ``bit`` and ends after it."""
    earlier = _block_marks(file, max(0, bit // 8 - _MOST_BLOCK_BYTES), bit // 8 + 1)
    for place in sorted((place for place in earlier if place < bit), reverse=True):
        end = _end_of_block(file, uri, place)
        if end is not None:
            return end > bit
    return False


def _end_of_block(file: BinaryIO, uri: str, bit: int) -> int | None:
    """Returns the bit at which the block at ``bit`` ends, or None when no intact block starts there."""
    reader = _BlockReader.at_block(file, uri, bit)
    try:
        for _ in reader.read(OUTPUT_BYTES):
            pass
    except InputError:
        return None
    return reader.end.bit


def _refuse_hidden(file: BinaryIO, uri: str, reader: _BlockReader, end: int) -> None:
    """Raises InputError if the next range would mistake data inside the current block for a block."""
    behind = [bit for bit in reader.coincidences if bit >= 8 * end]
    hidden = next((bit for bit in behind if _end_of_block(file, uri, bit) is not None), None)
    if hidden is not None or len(behind) >= _MOST_COINCIDENCES:
        raise InputError(
            f"{uri}: the bz2 block at {_place(reader.block or 0)} hides another block in its data at "
            f"{_place(hidden or behind[0])}; compress the file again to read it"
        )


def _block_marks(file: BinaryIO, start: int, end: int) -> Iterator[int]:
    """Yields the bits at which a magic number of a block starts in the bytes [start, end)."""
    bits = _Bits(file, start)
    while True:
        while mark := bits.take_mark(-1):
            if mark.bit >= 8 * end:
                return
            if mark.is_block:
                yield mark.bit
        if bits.searched >= 8 * end or not bits.extend():
            return
        bits.forget()
