"""Rows of a Parquet or JSON Lines file as dictionaries, read by row group or byte range."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cluster import storage
from pipeline.sources.lines import read_lines
from pipeline.units import Unit
from schemas.errors import InputError
from schemas.json_text import parse_json

FIELDS = ("id", "title", "lang", "language", "url", "revision", "revid")
_BATCH_ROWS = 256
MAX_ROW_BYTES = 64 << 20


@dataclass(frozen=True)
class Row:
    """One row. ``place`` names it inside its file: a byte (JSON Lines) or a row number (Parquet)."""

    place: int
    values: dict[str, Any]
    owned: bool
    oversize: bool = False


def read_rows(unit: Unit) -> Iterator[Row]:
    """The rows from the first that begins in the unit's range to the end of the file.

    Raises InputError that names the file and the row when a row is no object or lacks the text field.
    """
    if unit.form.endswith("parquet"):
        yield from _parquet_rows(unit)
    else:
        yield from _json_rows(unit)


def _parquet_rows(unit: Unit) -> Iterator[Row]:
    file, text_field = storage.parquet_file(unit.uri), unit.text_field
    names = file.schema_arrow.names
    if text_field not in names:
        raise InputError(f"{unit.uri}: no column {text_field!r}; it has {', '.join(names)}")
    columns = [text_field, *(name for name in FIELDS if name in names and name != text_field)]
    place = sum(file.metadata.row_group(group).num_rows for group in range(unit.start))
    for group in range(unit.start, file.metadata.num_row_groups):
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
            for values in batch.to_pylist():
                yield Row(place, values, group < unit.end)
                place += 1


def _json_rows(unit: Unit) -> Iterator[Row]:
    for line in read_lines(unit, MAX_ROW_BYTES):
        if line.oversize:
            yield Row(line.offset, {unit.text_field: ""}, line.owned, oversize=True)
        elif line.text.strip():
            yield Row(
                line.offset, _parse(line.text, f"{unit.uri}: byte {line.offset}", unit.text_field), line.owned
            )


def _parse(text: str, place: str, text_field: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise InputError(f"{place}: not JSON (a cut file?): {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{place}: expected a JSON object, got {type(values).__name__}")
    if not isinstance(values.get(text_field), str):
        raise InputError(f"{place}: no text field {text_field!r}")
    return values
