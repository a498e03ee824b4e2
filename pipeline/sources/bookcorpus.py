"""BookCorpus in its three forms: a text file per book, rows with title and text, a sentence per row.

The last form (Hugging Face's ``bookcorpus``, the files books_large_p1.txt and p2) tells neither where a
book ends nor where a chapter does. Documents are made of it by content, so that the cut depends neither
on the units nor on the row's number in the file:

- a row that reads like the head of a chapter or of a book's front matter begins a document;
- so does a row whose hash, taken with the row after it, falls on 1 in ``sentences_per_document``;
- so does an empty row;
- a document that still has no end after four times that many rows is cut there.

Rows inside a document follow one another in the book, so "is next" pairs are true, but for the one pair
in some thousand that spans two books (11,038 books in 74 million rows). Documents next to each other may
be of one book; as partners for "not next" pairs they are still not the next sentence.
"""

import re
from collections.abc import Iterator

from pipeline.skip_reasons import TOO_LARGE
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.lines import read_lines
from pipeline.sources.rows import Row, read_rows
from pipeline.sources.text import file_title, read_file_document
from pipeline.units import Unit
from schemas.randomness import key_from_text

_HEAD = re.compile(
    r"\W*(?:(?:chapter|part|book)\W+(?:\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|"
    r"eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty)\b.{0,40}"
    r"|prologue|epilogue|copyright\b.{0,80}|all rights reserved)\W*",
    re.IGNORECASE,
)
# Rows above this come as several; a sentence has a few hundred bytes.
_MAX_SENTENCE_BYTES = 1 << 20
_MAX_RATIO = 4


def read_bookcorpus(unit: Unit, max_chars: int) -> Iterator[RawDocument | Skip]:
    """The documents of a unit; ``form`` of the unit says in which of the three forms the file is."""
    if unit.form == "books":
        yield from read_file_document(unit, max_chars)
    elif unit.form.startswith("rows"):
        yield from _titled_rows(unit)
    else:
        rows = _text_rows(unit) if unit.form == "sentences" else read_rows(unit)
        yield from _sentence_documents(unit, rows)


def _titled_rows(unit: Unit) -> Iterator[RawDocument | Skip]:
    for row in read_rows(unit):
        if not row.owned:
            return
        page_id = f"{unit.name}:{row.place}"
        title = str(row.values.get("title") or file_title(unit.name))
        if row.oversize:
            yield Skip(page_id, title, unit.lang, TOO_LARGE)
        else:
            yield RawDocument(page_id, 0, title, unit.lang, row.values[unit.text_field], "plain")


def _text_rows(unit: Unit) -> Iterator[Row]:
    for line in read_lines(unit, _MAX_SENTENCE_BYTES, in_pieces=True):
        yield Row(line.offset, {unit.text_field: line.text}, line.owned, line.oversize)


def _sentence_documents(unit: Unit, rows: Iterator[Row]) -> Iterator[RawDocument]:
    """Documents that begin in the unit, cut by content; see the module's text for the rule."""
    run: list[str] = []
    place, inside, longest = 0, unit.start == 0, _MAX_RATIO * unit.sentences_per_document
    title = file_title(unit.name)
    for row, following in _with_next(rows):
        text = _text(row, unit)
        after = _text(following, unit) if following else ""
        starts = is_document_start(text, after, unit.sentences_per_document)
        if starts or (inside and len(run) >= longest):
            if run:
                yield RawDocument(f"{unit.name}:{place}", 0, title, unit.lang, "\n".join(run), "plain")
            run = []
            if not row.owned and starts:
                return
            inside, place = True, row.place
        if not inside and not row.owned:
            return
        if inside and text:
            run.append(text)
    if run:
        yield RawDocument(f"{unit.name}:{place}", 0, title, unit.lang, "\n".join(run), "plain")


def _with_next(rows: Iterator[Row]) -> Iterator[tuple[Row, Row | None]]:
    before: Row | None = None
    for row in rows:
        if before is not None:
            yield before, row
        before = row
    if before is not None:
        yield before, None


def _text(row: Row, unit: Unit) -> str:
    return (row.values.get(unit.text_field) or "").strip()


def is_document_start(text: str, after: str, mean_rows: int) -> bool:
    """Whether the row ``text`` begins a document, going by it and by the row ``after`` it."""
    if not text or _HEAD.fullmatch(text):
        return True
    return key_from_text("bookcorpus", text, after) % mean_rows == 0
