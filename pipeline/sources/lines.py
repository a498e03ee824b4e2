"""Lines of a text file, read by byte range with bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.chunks import read_chunks, transcode
from pipeline.units import Unit
from schemas.errors import InputError

MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Line:
    """One line without its line end."""

    offset: int
    """Byte at which it begins, in the decompressed file."""
    text: str
    owned: bool
    """Whether it begins in the range of the unit."""
    oversize: bool = False
    """Whether only the beginning of a line of more than MAX_LINE_BYTES is given."""
    ended: bool = True
    """Whether a line end follows; false only for the last line of some files."""


def read_lines(unit: Unit, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines from the first that begins in the unit's range to the end of the file.

    Line ends are LF or CRLF; a byte order mark is left out. Raises InputError that names the file and
    the byte where the text is not in the unit's encoding.
    """
    first = max(0, unit.start - 1)
    chunks = read_chunks(unit.uri, unit.compression, first, unit.end)
    if unit.encoding != "utf-8":
        chunks = transcode(chunks, unit.uri, unit.encoding)
    # A range begins with the line after the first line end at or behind the byte before it.
    skipping = unit.start > 0
    begin = position = first
    rest, owned, oversize = b"", True, False
    for chunk in chunks:
        at = 0
        while at < len(chunk.data):
            if not rest:
                owned = chunk.owned
            found = chunk.data.find(b"\n", at)
            piece = chunk.data[at:] if found < 0 else chunk.data[at:found]
            rest = rest + piece if rest else piece
            if len(rest) > max_line_bytes:
                rest, oversize = rest[:max_line_bytes], True
            if found < 0:
                break
            if not skipping:
                yield Line(begin, _decode(rest, unit.uri, begin, oversize), owned, oversize)
            skipping, rest, oversize = False, b"", False
            at = found + 1
            begin = position + at
        position += len(chunk.data)
    if rest and not skipping:
        yield Line(begin, _decode(rest, unit.uri, begin, oversize), owned, oversize, ended=False)


def _decode(line: bytes, uri: str, offset: int, cut: bool) -> str:
    if offset == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.removesuffix(b"\r").decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError as error:
        raise InputError(f"{uri}: byte {offset + error.start}: not UTF-8 text") from error
