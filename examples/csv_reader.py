"""A custom source reader: a CSV file with the columns id, title and text, one document per row.

A build config names it, from the folder that contains this file's folder:

    sources:
      - name: notes
        kind: examples.csv_reader:CsvReader
        lang: en
        paths: [data/notes/*.csv]
        options: {delimiter: ";"}
"""

import csv
import io
from collections.abc import Iterator

from cluster import storage
from pipeline.config import Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.units import Unit
from schemas.errors import InputError

_COLUMNS = ("id", "title", "text")


class CsvReader(FileReader):
    """Reads whole CSV files. `FileReader` expands the globs and folders of ``paths``."""

    def __init__(self, extraction: Extraction) -> None:
        super().__init__(extraction)

    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """One unit per file. ``read`` gets only the unit, so the unit carries the delimiter."""
        delimiter = source.options.get("delimiter", ",")
        return [Unit.of_file(source, file.uri, name=file.name, options=delimiter)]

    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """A document for each row. A row without text is a counted skip. Raises InputError."""
        with storage.open_stream(unit.uri) as stream:
            rows = csv.DictReader(
                io.TextIOWrapper(stream, encoding="utf-8", newline=""), delimiter=unit.options
            )
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise InputError(f"{unit.uri}: no column {missing[0]!r}; name it in the first line")
            for row in rows:
                page_id = f"{unit.name}:{row['id']}"
                if row["text"]:
                    yield RawDocument(page_id, 0, row["title"], unit.lang, row["text"], "plain")
                else:
                    yield Skip(page_id, row["title"], unit.lang, "no-text")
