"""Reads BookCorpus in its three forms: a text file per book, rows with title and text, a sentence per row.

The last form (Hugging Face's ``bookcorpus``, the files books_large_p1.txt and p2) marks neither the ends of
books nor those of chapters. The reader cuts it into documents by content, so that the cuts depend neither on
the units nor on the row's number in the file:

- A row that looks like the head of a chapter or of a book's front matter starts a document.
- So does a row whose hash, together with the next row, falls on 1 in ``sentences_per_document``.
- So does an empty row.
- A document ends after four times that many rows if nothing else ends it.

Rows of a document follow one another in the book, so "is next" pairs are true, except for about one pair in
several thousand that spans two books (11,038 books in 74 million rows). Neighboring documents may come from
the same book. As partners for "not next" pairs they are still not the next sentence.
"""

import re
from collections.abc import Iterator

from cluster import storage
from pipeline.config import Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.lines import read_lines
from pipeline.sources.plain_plan import check_language, is_parquet, plan_plain_file
from pipeline.sources.rows import Row, read_rows
from pipeline.sources.text import file_title, read_file_document, unwrapped
from pipeline.sources.units import Unit
from schemas.errors import ConfigError
from schemas.randomness import key_from_text
from schemas.redaction import public_uri
from schemas.skip_reasons import EMPTY, TOO_LARGE

_HEAD = re.compile(
    r"\W*(?:(?:chapter|part|book)\W+(?:\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|"
    r"eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty)\b.{0,40}"
    r"|prologue|epilogue|copyright\b.{0,80}|all rights reserved)\W*",
    re.IGNORECASE,
)
# Longer rows become several. A sentence has a few hundred bytes.
_MAX_SENTENCE_BYTES = 1 << 20
_MAX_RATIO = 4
_ROW_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")


class BookCorpusReader(FileReader):
    """Reads BookCorpus. The ``form`` of a unit is the form of its file."""

    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """The units of one file. A book is one unit."""
        check_language(source)
        return plan_plain_file(source, file, self.extraction.unit_bytes, _form)

    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """The documents of a unit."""
        if unit.form == "books":
            yield from read_file_document(unit, self.extraction.max_page_chars)
        elif unit.form.startswith("rows"):
            yield from _titled_rows(unit)
        else:
            rows = _text_rows(unit) if unit.form == "sentences" else read_rows(unit)
            yield from _sentence_documents(unit, rows)


def _form(source: Source, uri: str, head: bytes) -> str:
    parquet = is_parquet(head)
    rows = parquet or any(suffix in public_uri(uri).rpartition("/")[2].lower() for suffix in _ROW_SUFFIXES)
    kind = "parquet" if parquet else "jsonl"
    form = source.form
    if form == "auto":
        form = "books"
        if rows:
            titled = not parquet or "title" in storage.parquet_file(uri).schema_arrow.names
            form = "rows" if titled else "sentences"
    if form == "books":
        if rows:
            raise ConfigError(f"source {source.name}: {uri} has rows, but form books is for text files")
        return "books"
    if form == "rows":
        if not rows:
            raise ConfigError(f"source {source.name}: {uri} is not a file of rows (.jsonl, .parquet)")
        return f"rows-{kind}"
    return f"sentences-{kind}" if rows else "sentences"


def _titled_rows(unit: Unit) -> Iterator[RawDocument | Skip]:
    for row in read_rows(unit):
        if not row.owned:
            return
        page_id = f"{unit.name}:{row.place}"
        title = str(row.values.get("title") or file_title(unit.name))
        if row.oversize:
            yield Skip(page_id, title, unit.lang, TOO_LARGE)
        elif not (body := row.values[unit.text_field]):
            yield Skip(page_id, title, unit.lang, EMPTY)
        else:
            yield RawDocument(page_id, 0, title, unit.lang, unwrapped(body), "plain")


def _text_rows(unit: Unit) -> Iterator[Row]:
    for line in read_lines(unit, _MAX_SENTENCE_BYTES, in_parts=True):
        yield Row(line.offset, {unit.text_field: line.text}, line.owned, line.oversize)


def _sentence_documents(unit: Unit, rows: Iterator[Row]) -> Iterator[RawDocument | Skip]:
    """Documents that start in the unit, cut by content. The module's docstring gives the rule.

    A row with null text ends a document like an empty row, and counts as empty.
    """
    run: list[str] = []
    place, inside, longest = 0, unit.start == 0, _MAX_RATIO * unit.sentences_per_document
    title = file_title(unit.name)
    for row, following in _with_next(rows):
        if row.owned and row.values[unit.text_field] is None:
            yield Skip(f"{unit.name}:{row.place}", title, unit.lang, EMPTY)
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
    """Whether the row ``text`` starts a document, given the row ``after`` it."""
    if not text or _HEAD.fullmatch(text):
        return True
    return key_from_text("bookcorpus", text, after) % mean_rows == 0
