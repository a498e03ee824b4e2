"""Writes bzip2 files bit by bit, with streams at any bit and blocks whose data contains any bytes.

These blocks code most symbols with 8 bits, so that their data is a sequence of given bytes. The data can
contain magic numbers and whole blocks that are not blocks of the file.
"""

import bz2
import zlib
from collections.abc import Iterable

BLOCK, FOOTER = 0x314159265359, 0x177245385090
# Symbols of a block that uses all 256 bytes: runs (0, 1), 255 places of the move-to-front list, the end.
_SYMBOLS, _END = 258, 257
_SHORT = 254
"""Symbols with a code of 8 bits, the symbol itself. The last four have codes of 9 bits."""


def bits_of(value: int, count: int) -> str:
    """``count`` bits of a number."""
    return f"{value:0{count}b}"


def to_bits(data: bytes) -> str:
    """Bytes as bits."""
    return bits_of(int.from_bytes(data, "big"), 8 * len(data)) if data else ""


def stream(blocks: Iterable[str]) -> bytes:
    """A stream of blocks, given as bits."""
    combined, bits = 0, to_bits(b"BZh9")
    for block in blocks:
        combined = (combined << 1 & 0xFFFFFFFF | combined >> 31) ^ int(block[48:80], 2)
        bits += block
    bits += bits_of(FOOTER, 48) + bits_of(combined, 32)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def one_stream(parts: Iterable[bytes]) -> bytes:
    """A stream with one block for each part of a text."""
    blocks = [to_bits(bz2.compress(part)) for part in parts if part]
    return stream(bits[32 : bits.rindex(bits_of(FOOTER, 48))] for bits in blocks)


def block_of(symbols: bytes) -> tuple[str, bytes]:
    """The bits of a block whose data are these bytes, each from 0 to 253, and its decoded text."""
    column = _undo_move_to_front(symbols)
    origin, unsorted = next(
        (origin, unsorted)
        for origin in range(len(column))
        # A block cannot end with four equal bytes without a count.
        if len(set((unsorted := _undo_sort(column, origin))[-4:])) > 1
    )
    text = _undo_repeats(unsorted)
    data = "".join(bits_of(symbol, 8) for symbol in symbols) + "1" * 9
    groups = -(-(len(symbols) + 1) // 50)
    # Two equal tables, because the format requires two, with lengths as differences from 8 bits.
    table = bits_of(8, 5) + "0" * _SHORT + "100" + "0" * (_SYMBOLS - _SHORT - 1)
    head = bits_of(BLOCK, 48) + bits_of(checksum(text), 32) + "0" + bits_of(origin, 24) + "1" * (16 + 256)
    return head + bits_of(2, 3) + bits_of(groups, 15) + "0" * groups + table + table + data, text


def checksum(text: bytes) -> int:
    """The checksum of bzip2, which is zlib's with the bits of every byte and of the sum reversed."""
    mirrored = bytes(int(f"{byte:08b}"[::-1], 2) for byte in text)
    return int(f"{zlib.crc32(mirrored):032b}"[::-1], 2)


def _undo_move_to_front(symbols: bytes) -> bytes:
    places, column = list(range(256)), bytearray()
    run, weight = 0, 1
    for symbol in symbols:
        if symbol < 2:
            run += weight << symbol
            weight <<= 1
            continue
        column += bytes([places[0]]) * run
        run, weight = 0, 1
        places.insert(0, places.pop(symbol - 1))
        column.append(places[0])
    return bytes(column + bytes([places[0]]) * run)


def _undo_sort(column: bytes, origin: int) -> bytes:
    order = sorted(range(len(column)), key=lambda place: (column[place], place))
    text, place = bytearray(), order[origin]
    for _ in column:
        text.append(column[place])
        place = order[place]
    return bytes(text)


def _undo_repeats(data: bytes) -> bytes:
    text, same = bytearray(), 0
    for byte in data:
        if same == 4:
            text += text[-1:] * byte
            same = 0
            continue
        same = same + 1 if same and text[-1] == byte else 1
        text.append(byte)
    return bytes(text)
