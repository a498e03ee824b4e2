"""Plain text files: a document per file, or documents parted by empty lines.

In the form ``file`` a paragraph is a line, or, where the lines are wrapped at a column as in Project
Gutenberg's files, a block of lines up to an empty one. A file longer than the limit of a page is cut
between paragraphs into several documents, so that a folder of books never needs a book in memory twice.
In the form ``blank_lines`` every line is a paragraph of its own (BERT's own format has a sentence there).
"""

from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import PurePosixPath

from pipeline.sources.documents import RawDocument
from pipeline.sources.lines import Line, read_lines
from pipeline.units import Unit

_SAMPLE_LINES = 400
_WRAP_COLUMNS = (30, 90)
# Lines are cut into pieces of ``max_chars`` bytes, but of no fewer than these.
_LEAST_PIECE_BYTES = 1 << 16


def read_file_document(unit: Unit, max_chars: int) -> Iterator[RawDocument]:
    """The whole file as one document, or as several of at most about ``max_chars`` characters."""
    title = file_title(unit.name)
    lines = read_lines(unit, max(max_chars, _LEAST_PIECE_BYTES), in_pieces=True)
    for number, paragraphs in enumerate(_bounded(_paragraphs(lines), max_chars)):
        page_id = unit.name if number == 0 else f"{unit.name}#{number}"
        yield RawDocument(page_id, 0, title, unit.lang, "\n".join(paragraphs), "plain")


def read_blank_line_documents(unit: Unit, max_chars: int) -> Iterator[RawDocument]:
    """Documents parted by empty lines. A unit owns those whose preceding empty line begins in it."""
    run: list[Line] = []
    inside = unit.start == 0
    for line in read_lines(unit, max(max_chars, _LEAST_PIECE_BYTES), in_pieces=True):
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
    """A run of lines as one document, or as several where it is too long; none of an empty run."""
    if not run:
        return
    for number, paragraphs in enumerate(_bounded((line.text for line in run), max_chars)):
        page_id = f"{unit.name}:{run[0].offset}" + (f"#{number}" if number else "")
        yield RawDocument(page_id, 0, file_title(unit.name), unit.lang, "\n".join(paragraphs), "plain")


def file_title(name: str) -> str:
    """A title for a file without one: its name without folder and suffixes."""
    stem = PurePosixPath(name).name.split(".")[0]
    return stem.replace("_", " ")


def _bounded(paragraphs: Iterator[str], max_chars: int) -> Iterator[list[str]]:
    """Runs of paragraphs of at most ``max_chars`` together (one paragraph at least); [] for no text."""
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


def is_wrapped(lines: list[str]) -> bool:
    """Whether paragraphs run over several lines that were broken at a column.

    So it is when there are empty lines, and most lines that are followed by another line have the length
    of a wrapped line and none of them is much longer.
    """
    followed = [line for line, after in pairwise(lines) if line.strip() and after.strip()]
    if len(followed) < 8 or all(line.strip() for line in lines):
        return False
    low, high = _WRAP_COLUMNS
    fitting = sum(low <= len(line.rstrip()) <= high for line in followed)
    return fitting >= 0.6 * len(followed) and all(len(line) <= 2 * high for line in followed)
