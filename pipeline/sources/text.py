"""Reads plain text files with one document per file, or with documents separated by blank lines.

In the form ``file`` a paragraph is a line. If lines are wrapped at a column, as in Project Gutenberg's files,
a paragraph is a block of lines up to a blank one. A file longer than the limit of a page is cut between
paragraphs into several documents, so that memory never holds a book twice. In the form ``blank_lines`` every
line is a paragraph (in BERT's own format, a sentence).
"""

from collections.abc import Iterator
from itertools import chain, groupby, islice, pairwise
from pathlib import PurePosixPath

from pipeline.config import Source
from pipeline.sources.documents import RawDocument
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.lines import Line, read_lines
from pipeline.sources.plain_plan import check_language, plan_plain_file
from pipeline.sources.units import Unit

_SAMPLE_LINES = 400
_WRAP_COLUMNS = (30, 90)
# Lines are cut into parts of ``max_chars`` bytes, but not fewer than this.
_LEAST_PART_BYTES = 1 << 16


class TextReader(FileReader):
    """Reads plain text files."""

    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """The units of one file. A file that is one document is one unit."""
        check_language(source)
        unit_bytes = self.extraction.unit_bytes
        return plan_plain_file(source, file, unit_bytes, lambda source, _uri, _head: source.documents)

    def read(self, unit: Unit) -> Iterator[RawDocument]:
        """The documents of a unit."""
        read = read_blank_line_documents if unit.form == "blank_lines" else read_file_document
        return read(unit, self.extraction.max_page_chars)


def read_file_document(unit: Unit, max_chars: int) -> Iterator[RawDocument]:
    """The whole file as one document, or as several of at most about ``max_chars`` characters."""
    title = file_title(unit.name)
    lines = read_lines(unit, max(max_chars, _LEAST_PART_BYTES), in_parts=True)
    for number, paragraphs in enumerate(_bounded(_paragraphs(lines), max_chars)):
        page_id = unit.name if number == 0 else f"{unit.name}#{number}"
        yield RawDocument(page_id, 0, title, unit.lang, "\n".join(paragraphs), "plain")


def read_blank_line_documents(unit: Unit, max_chars: int) -> Iterator[RawDocument]:
    """Documents separated by blank lines. A unit owns those whose preceding blank line starts in it."""
    run: list[Line] = []
    inside = unit.start == 0
    for line in read_lines(unit, max(max_chars, _LEAST_PART_BYTES), in_parts=True):
        if line.text.strip():
            if inside:
                run.append(line)
            elif not line.owned:
                return
            continue
        yield from _cut_run(unit, run, max_chars)
        run = []
        if not line.owned:
            return
        inside = True
    yield from _cut_run(unit, run, max_chars)


def _cut_run(unit: Unit, run: list[Line], max_chars: int) -> Iterator[RawDocument]:
    """A run of lines as one document, or as several if it is too long. None for an empty run."""
    if not run:
        return
    for number, paragraphs in enumerate(_bounded((line.text for line in run), max_chars)):
        page_id = f"{unit.name}:{run[0].offset}" + (f"#{number}" if number else "")
        yield RawDocument(page_id, 0, file_title(unit.name), unit.lang, "\n".join(paragraphs), "plain")


def file_title(name: str) -> str:
    """A title for a file: its name without folder and suffixes."""
    stem = PurePosixPath(name).name.split(".")[0]
    return stem.replace("_", " ")


def _bounded(paragraphs: Iterator[str], max_chars: int) -> Iterator[list[str]]:
    """Runs of at least one paragraph with at most ``max_chars`` in total. Yields [] if there is no text."""
    run: list[str] = []
    size = 0
    for paragraph in paragraphs:
        if run and size + len(paragraph) > max_chars:
            yield run
            run, size = [], 0
        run.append(paragraph)
        size += len(paragraph) + 1
    yield run


def _paragraphs(lines: Iterator[Line]) -> Iterator[str]:
    sample = list(islice(lines, _SAMPLE_LINES))
    wrapped = is_wrapped([line.text for line in sample])
    block: list[str] = []
    for line in chain(sample, lines):
        text = line.text.strip()
        if not wrapped:
            if text:
                yield text
        elif text:
            block.append(text)
        elif block:
            yield " ".join(block)
            block = []
    if block:
        yield " ".join(block)


def unwrapped(text: str) -> str:
    """``text`` with one line per paragraph if its lines were wrapped at a column, else unchanged."""
    lines = text.splitlines()
    if not is_wrapped(lines[:_SAMPLE_LINES]):
        return text
    blocks = (" ".join(map(str.strip, block)) for filled, block in groupby(lines, _is_filled) if filled)
    return "\n".join(blocks)


def _is_filled(line: str) -> bool:
    return bool(line.strip())


def is_wrapped(lines: list[str]) -> bool:
    """Whether paragraphs span several lines that were wrapped at a column.

    They do when the text has blank lines, most lines before another line have the length of a wrapped line,
    and no such line is much longer.
    """
    followed = [line for line, after in pairwise(lines) if line.strip() and after.strip()]
    if len(followed) < 8 or all(line.strip() for line in lines):
        return False
    low, high = _WRAP_COLUMNS
    fitting = sum(low <= len(line.rstrip()) <= high for line in followed)
    return fitting >= 0.6 * len(followed) and all(len(line) <= 2 * high for line in followed)
