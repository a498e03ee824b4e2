"""Reads rows of Parquet or JSON Lines files by row group or byte range, and checks their types."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from pipeline.sources.chunks import is_bomb
from pipeline.sources.lines import read_lines
from pipeline.sources.units import Unit
from schemas.errors import InputError
from schemas.json_text import parse_json

FIELDS = ("id", "title", "lang", "language", "url", "revision", "revid")
_LANGUAGE_FIELDS = frozenset(["lang", "language", "url"])
_NUMBERED_FIELDS = frozenset(["id", "revision", "revid"])
_JSON_TYPES = {dict: "an object", list: "an array", bool: "a boolean", int: "a number", float: "a number"}
_BATCH_ROWS = 256
_BATCH_BYTES = 256 << 20
MAX_ROW_BYTES = 64 << 20


@dataclass(frozen=True)
class Row:
    """One row. ``place`` is its byte offset (JSON Lines) or row number (Parquet) in the file."""

    place: int
    values: dict[str, Any]
    owned: bool
    oversize: bool = False


def read_rows(unit: Unit) -> Iterator[Row]:
    """The rows from the first that starts in the unit's range to the end of the file.

    A null text is None. Raises InputError that names the file if a Parquet column is not text (or, for ids
    and revisions, a whole number). Raises InputError that names the file and the row if a JSON row is not an
    object, has no text field, or has a value of another type.
    """
    if unit.form.endswith("parquet"):
        yield from _parquet_rows(unit)
    else:
        yield from _json_rows(unit)


def _parquet_rows(unit: Unit) -> Iterator[Row]:
    file, text_field = storage.parquet_file(unit.uri), unit.text_field
    schema = file.schema_arrow
    if text_field not in schema.names:
        raise InputError(f"{unit.uri}: no column {text_field!r}; it has {', '.join(schema.names)}")
    fields = _used_fields(text_field, unit.lang)
    columns = [name for name in fields if name in schema.names]
    for name in columns:
        _check_column(unit, schema.field(name), fields[name])
    if "url" not in columns and "url" in schema.names and _is_text(schema.field("url").type):
        columns.append("url")
    place = sum(file.metadata.row_group(group).num_rows for group in range(unit.start))
    sizes = _Sizes(unit.uri)
    for group in range(unit.start, file.metadata.num_row_groups):
        with _damage_named(unit.uri, group):
            batch_rows = sizes.begin(group, file.metadata.row_group(group), columns)
        for batch in _batches(unit.uri, file, group, columns, batch_rows):
            for values in batch:
                sizes.add(group, values)
                yield Row(place, values, group < unit.end)
                place += 1


class _Sizes:
    """Limits the decompressed size of row groups, both in their metadata and as read."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._stored = self._read = 0

    def begin(self, group: int, metadata: pq.RowGroupMetaData, columns: list[str]) -> int:
        """The number of rows to read at a time. Raises InputError if a group is too large for text."""
        chunks = [metadata.column(number) for number in range(metadata.num_columns)]
        used = [chunk for chunk in chunks if chunk.path_in_schema in columns]
        self._stored += sum(chunk.total_compressed_size for chunk in used)
        decompressed = [chunk.total_uncompressed_size for chunk in used]
        self._check(group, self._read + sum(decompressed))
        # A dictionary may have one long value that all rows of the group share.
        fitting: int = _BATCH_BYTES // max(1, sum(decompressed))
        return min(_BATCH_ROWS, max(1, fitting))

    def add(self, group: int, values: dict[str, Any]) -> None:
        """Counts a row. Raises InputError if the rows so far are too large for text."""
        self._read += 1 + sum(len(value) for value in values.values() if isinstance(value, str))
        self._check(group, self._read)

    def _check(self, group: int, decompressed: int) -> None:
        if is_bomb(self._stored, decompressed):
            raise InputError(
                f"{self._uri}: row group {group}: {self._stored} bytes of Parquet data became {decompressed} "
                "bytes, too many for text"
            )


def _batches(
    uri: str, file: pq.ParquetFile, group: int, columns: list[str], rows: int
) -> Iterator[list[dict[str, Any]]]:
    """The batches of a row group. Raises InputError if they are damaged or the file has shrunk."""
    with _damage_named(uri, group):
        batches = file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
    while True:
        with _damage_named(uri, group):
            batch = next(batches, None)
            values = None if batch is None else batch.to_pylist()
        if values is None:
            return
        yield values


@contextmanager
def _damage_named(uri: str, group: int) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{uri}: row group {group} is damaged, or the file changed: {reason}") from error


@lru_cache(maxsize=64)
def _used_fields(text_field: str, lang: str) -> dict[str, bool]:
    """The fields to read -> whether they may be numbers. With ``lang``, omits the fields that give it."""
    unused = {text_field, *(_LANGUAGE_FIELDS if lang else ())}
    return {text_field: False, **{name: name in _NUMBERED_FIELDS for name in FIELDS if name not in unused}}


def _check_column(unit: Unit, column: pa.Field, may_be_number: bool) -> None:
    kind = _value_type(column.type)
    if not (_is_text(kind) or (may_be_number and pa.types.is_integer(kind)) or pa.types.is_null(kind)):
        expected = _expected(column.name, unit.text_field, may_be_number)
        raise InputError(f"{unit.uri}: column {column.name!r} holds {column.type}; expected {expected}")


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    value = _value_type(kind)
    return bool(
        pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
    )


def check_values(values: dict[str, Any], place: str, unit: Unit) -> None:
    """Raises InputError if the row at ``place`` lacks the text field or has a value of the wrong type."""
    text_field = unit.text_field
    if text_field not in values:
        fields = ", ".join(map(str, values)) or "no fields"
        raise InputError(f"{place}: no text field {text_field!r}; it has {fields}")
    for name, may_be_number in _used_fields(text_field, unit.lang).items():
        value = values.get(name)
        if value is None or isinstance(value, str) or (may_be_number and type(value) is int):
            continue
        kind = _JSON_TYPES.get(type(value), type(value).__name__)
        expected = _expected(name, text_field, may_be_number)
        raise InputError(f"{place}: field {name!r} holds {kind}; expected {expected}")


def _expected(name: str, text_field: str, may_be_number: bool) -> str:
    if name == text_field:
        return "text (`text_field` of the source names another)"
    return "text or a whole number" if may_be_number else "text"


def _json_rows(unit: Unit) -> Iterator[Row]:
    for line in read_lines(unit, MAX_ROW_BYTES):
        if line.oversize:
            yield Row(line.offset, {unit.text_field: ""}, line.owned, oversize=True)
        elif line.text.strip():
            yield Row(line.offset, _parse(line.text, f"{unit.uri}: byte {line.offset}", unit), line.owned)


def _parse(text: str, place: str, unit: Unit) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise InputError(f"{place}: not JSON (truncated file?): {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{place}: expected a JSON object, got {type(values).__name__}")
    check_values(values, place, unit)
    return values
