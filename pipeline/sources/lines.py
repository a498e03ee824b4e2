"""Reads lines of a text file by byte range with bounded memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.chunks import read_chunks, transcode
from pipeline.sources.units import Unit
from schemas.errors import InputError

MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Line:
    """One line without its line end."""

    offset: int
    """Byte of the decompressed file at which the line starts."""
    text: str
    owned: bool
    """Whether the line starts in the range of the unit."""
    oversize: bool = False
    """Whether this is only the beginning of a line that is too long."""
    ended: bool = True
    """Whether a line end follows. False only for the last line of some files."""


def read_lines(unit: Unit, max_line_bytes: int = MAX_LINE_BYTES, *, in_parts: bool = False) -> Iterator[Line]:
    """The lines from the first that starts in the unit's range to the end of the file.

    Yields only the beginning of a line of more than ``max_line_bytes``. With ``in_parts``, yields all of it
    as several lines, cut after a space if possible, because some books have no line ends. Line ends are LF or
    CRLF. Removes a byte order mark. Raises InputError that names the file and the byte where the text is not
    in the unit's encoding.
    """
    first = max(0, unit.start - 1)
    chunks = read_chunks(unit.uri, unit.compression, first, unit.end, unit.size)
    if unit.encoding != "utf-8":
        chunks = transcode(chunks, unit.uri, unit.encoding)
    # The first line of a range follows the first line end at or after the byte before the range.
    skipping = unit.start > 0
    begin = position = first
    rest, owned, oversize = b"", True, False
    for chunk in chunks:
        at = 0
        while at < len(chunk.data):
            if not rest:
                owned = chunk.owned
            line_end = chunk.data.find(b"\n", at)
            piece = chunk.data[at:] if line_end < 0 else chunk.data[at:line_end]
            if skipping or oversize:  # do not copy the rest of this line, which is unused
                rest = rest or piece[:1]
            elif rest:
                rest += piece
            else:
                rest = piece
            while in_parts and not skipping and len(rest) > max_line_bytes:
                place = _cut(rest, max_line_bytes)
                yield Line(begin, _decode(rest[:place], unit.uri, begin, False), owned, ended=False)
                rest, begin = rest[place:], begin + place
            if len(rest) > max_line_bytes:
                rest, oversize = rest[:max_line_bytes], True
            if line_end < 0:
                break
            if not skipping:
                yield Line(
                    begin, _decode(rest.removesuffix(b"\r"), unit.uri, begin, oversize), owned, oversize
                )
            skipping, rest, oversize = False, b"", False
            at = line_end + 1
            begin = position + at
        position += len(chunk.data)
    if rest and not skipping:
        yield Line(
            begin, _decode(rest.removesuffix(b"\r"), unit.uri, begin, oversize), owned, oversize, ended=False
        )


def _cut(line: bytes, most: int) -> int:
    """Where to cut ``line`` so that the part has at most ``most`` bytes: after a space, or any character."""
    place = line.rfind(b" ", 0, most) + 1
    if not place:
        place = most
        while place > 1 and line[place] & 0xC0 == 0x80:
            place -= 1
    return place


def _decode(line: bytes, uri: str, offset: int, cut: bool) -> str:
    if offset == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError as error:
        raise InputError(f"{uri}: byte {offset + error.start}: not UTF-8 text") from error
