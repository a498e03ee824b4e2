"""One door to all readers: the documents of a unit, whatever its kind."""

from collections.abc import Iterator

from pipeline.config import BuildConfig
from pipeline.sources.bookcorpus import read_bookcorpus
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.jsonl import read_row_documents
from pipeline.sources.text import read_blank_line_documents, read_file_document
from pipeline.sources.wikimedia import read_dump
from pipeline.units import Unit
from schemas.errors import ConfigError


def read_unit(unit: Unit, config: BuildConfig) -> Iterator[RawDocument | Skip]:
    """Every page, row or book that the unit owns. Raises InputError on damaged input."""
    max_chars = config.extraction.max_page_chars
    source = next((source for source in config.sources if source.name == unit.source), None)
    if source is None:
        raise ConfigError(f"a unit of source {unit.source!r}, which the config does not have")
    if unit.kind == "wikimedia":
        return read_dump(unit, max_chars)
    if unit.kind == "bookcorpus":
        return read_bookcorpus(unit, max_chars, source.sentences_per_document, source.text_field)
    if unit.kind == "text":
        read = read_blank_line_documents if unit.form == "blank_lines" else read_file_document
        return read(unit, max_chars)
    return read_row_documents(unit, source.text_field)
