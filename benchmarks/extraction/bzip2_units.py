"""Compares reading one bzip2 stream in 64 units with the rate of plain bz2.

    python benchmarks/extraction/bzip2_units.py DUMP.xml.bz2... [--units 64] [--unit-mb 3]

Prints Markdown. The text of the dumps is compressed as one stream, and its blocks are repeated, bit by bit,
until the stream has units of the size. Rates are MB of compressed bytes per second of processor time of one
core. A unit decodes its blocks and the start of the next one, as a reader of pages does. The benchmark
compares every unit's text with that of the whole file. Exit status 1 when it differs.
"""

import argparse
import bz2
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.sources.bzip2 import OUTPUT_BYTES
from pipeline.sources.chunks import even_cuts, read_chunks

_BLOCK, _FOOTER = 0x314159265359, 0x177245385090


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("dumps", type=Path, nargs="+")
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--unit-mb", type=float, default=3.0)
    arguments = parser.parse_args()
    text = b"".join(bz2.decompress(path.read_bytes()) for path in arguments.dumps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.bz2"
        path.write_bytes(repeated_stream(text, int(arguments.units * arguments.unit_mb * 1e6)))
        size = path.stat().st_size
        plain, units, equal = measure(path, arguments.units)
    print("| file | units | plain bz2 | in units | kept |\n|---|---:|---:|---:|---:|")
    print(
        f"| {size / 1e6:.0f} MB, one stream | {arguments.units} of {size / arguments.units / 1e6:.1f} MB "
        f"| {size / 1e6 / plain:.2f} MB/s | {size / 1e6 / units:.2f} MB/s | {100 * plain / units:.1f} % |"
    )
    return 0 if equal else 1


def repeated_stream(text: bytes, size: int) -> bytes:
    """One stream of about ``size`` bytes that repeats the blocks of ``text``."""
    data = bz2.compress(text)
    bits = int.from_bytes(data, "big")
    unused = next(pad for pad in range(8) if bits >> pad + 32 & (1 << 48) - 1 == _FOOTER)
    count = 8 * (len(data) - 4) - 80 - unused
    blocks = bits >> 80 + unused & (1 << count) - 1
    sums = list(block_sums(blocks, count))
    copies = max(1, round(8 * size / count))
    stream, combined = int.from_bytes(b"BZh9", "big"), 0
    for _ in range(copies):
        stream = stream << count | blocks
        for one in sums:
            combined = (combined << 1 & 0xFFFFFFFF | combined >> 31) ^ one
    stream = (stream << 48 | _FOOTER) << 32 | combined
    pad = -(32 + copies * count + 80) % 8
    return (stream << pad).to_bytes((32 + copies * count + 80 + pad) // 8, "big")


def block_sums(blocks: int, count: int) -> Iterator[int]:
    """The checksum of every block in a row of them, in order."""
    found = {}
    for shift in range(8):
        aligned = (blocks << shift).to_bytes(-(-(count + shift) // 8), "big")
        lead = 8 * len(aligned) - count
        place = aligned.find(_BLOCK.to_bytes(6, "big"))
        while place >= 0:
            found[8 * place - lead + shift] = int.from_bytes(aligned[place + 6 : place + 10], "big")
            place = aligned.find(_BLOCK.to_bytes(6, "big"), place + 1)
    return (found[place] for place in sorted(found))


def measure(path: Path, count: int) -> tuple[float, float, bool]:
    """Seconds of processor time of plain bz2 and of the units, and whether their texts are equal.

    The two alternate: after each unit, plain bz2 reads the same amount. A busy machine slows both equally.
    """
    size, seconds = path.stat().st_size, [0.0, 0.0]
    plain, ours = hashlib.blake2b(), hashlib.blake2b()
    with bz2.open(path) as file:
        for start, end in even_cuts(size, -(-size // count)):
            before = time.process_time()
            pieces = list(owned_pieces(path, start, end, size))
            seconds[1] += time.process_time() - before
            for piece in pieces:
                ours.update(piece)
            length = sum(map(len, pieces))
            before = time.process_time()
            pieces = []
            while piece := file.read(min(length, OUTPUT_BYTES)):
                pieces.append(piece)
                length -= len(piece)
            seconds[0] += time.process_time() - before
            for piece in pieces:
                plain.update(piece)
        plain.update(file.read())
    return seconds[0], seconds[1], plain.digest() == ours.digest()


def owned_pieces(path: Path, start: int, end: int, size: int) -> Iterator[bytes]:
    """The text of a unit, read until a piece belongs to the next unit."""
    for chunk in read_chunks(str(path), "bz2", start, end, size):
        if not chunk.owned:
            return
        yield chunk.data


if __name__ == "__main__":
    sys.exit(main())
