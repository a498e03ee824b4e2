"""One door to all readers: the documents of a unit, whatever its kind."""

from collections.abc import Iterator

from pipeline.sources.bookcorpus import read_bookcorpus
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.jsonl import read_row_documents
from pipeline.sources.text import read_blank_line_documents, read_file_document
from pipeline.sources.wikimedia import read_dump
from pipeline.units import Unit


def read_unit(unit: Unit, max_chars: int) -> Iterator[RawDocument | Skip]:
    """Every page, row or book that the unit owns. Raises InputError on damaged input.

    ``max_chars``: a page longer than that is skipped as too large, a text file is cut into parts.
    """
    if unit.kind == "wikimedia":
        return read_dump(unit, max_chars)
    if unit.kind == "bookcorpus":
        return read_bookcorpus(unit, max_chars)
    if unit.kind == "text":
        read = read_blank_line_documents if unit.form == "blank_lines" else read_file_document
        return read(unit, max_chars)
    return read_row_documents(unit)
