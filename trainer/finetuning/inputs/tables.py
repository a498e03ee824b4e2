"""Tables of labeled examples: TSV, CSV, JSON, JSON Lines and Parquet files, and datasets in the Hub's layout.

Every reader gives rows with their place in the file, so that a mistake can be named by file and row.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from cluster import storage
from schemas.errors import InputError
from schemas.json_text import parse_json
from trainer.finetuning.inputs.text_files import plain_suffix, read_text

HUB_SCHEME = "datasets://"
_NOT_TEXT = (".xlsx", ".xls", ".ods", ".arrow", ".feather", ".pickle", ".pkl", ".npy", ".zip")
# Contexts of questions exceed the 131,072 characters that csv allows by default.
csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class Table:
    """The rows of a file, and the names of their columns if the file has a header."""

    names: list[str]
    rows: Iterator[tuple[str, list[Any]]]
    """The place (file and row) and the values of each row."""


def open_table(uri: str, *, header: bool) -> Table:
    """The table at ``uri``, whose suffix gives the format. A text file without a known suffix is TSV.

    ``header``: the first line of TSV and CSV has the names of the columns. A folder, or
    ``datasets://OWNER/NAME``, is read by the datasets library. ``?split=S`` (and ``name=CONFIG``,
    ``revision=COMMIT``) choose a part of it. Raises InputError that names the file and the row.
    """
    if uri.startswith(HUB_SCHEME) or Path(uri.partition("?")[0]).is_dir():
        return _dataset(uri)
    suffix = plain_suffix(uri)
    if suffix == ".parquet":
        return _parquet(uri)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _records(uri, _json_rows(uri))
    if suffix in _NOT_TEXT:
        raise InputError(f"{uri}: {suffix} files are not read; save the table as CSV, JSON Lines or Parquet")
    rows = _csv_rows(uri) if suffix == ".csv" else _tsv_rows(uri)
    if not header:
        return Table([], rows)
    place, names = next(rows, (f"{uri}:1", []))
    names = [name.strip() for name in names]
    if not names:
        raise InputError(f"{place}: the file is empty, but a column is given by its name in the header")
    if suffix == ".csv" and len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        raise InputError(
            f"{place}: no comma in the header; if tabs separate the columns, name the file .tsv, otherwise"
            " write commas"
        )
    return Table(names, rows)


def check_width(origin: str, fields: list[Any], width: int, *, header: bool) -> None:
    """Raises InputError for a row that a tab inside quotes has split, because TSV has no quotes.

    With a header that is a row with more values than columns. Without one, a row of another width than the
    first whose quoted text continues in the next field.
    """
    if header and any(str(value).strip() for value in fields[width:]):
        raise InputError(
            f"{origin}: {len(fields)} fields, but the header has {width}; if a tab is inside quotes, write"
            " the file as CSV"
        )
    if not header and len(fields) != width and _has_quoted_tab(fields):
        raise InputError(f"{origin}: a tab inside quotes splits a field; write the file as CSV")


def _has_quoted_tab(fields: list[Any]) -> bool:
    """Whether a text in quotes begins in one field and ends in a later one.

    >>> _has_quoted_tab(['"a', 'b"', "1"]), _has_quoted_tab(['"a"', "1"]), _has_quoted_tab(['"a', "1"])
    (True, False, False)
    """
    odd = [text for text in map(str, fields) if text.count('"') % 2]
    return len(odd) > 1 and odd[0].startswith('"') and any(text.endswith('"') for text in odd[1:])


def is_structured(uri: str) -> bool:
    """Whether ``uri`` is a table in which columns have names: CSV, JSON, Parquet, or a dataset."""
    suffixes = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
    folder = Path(uri.partition("?")[0]).is_dir()
    return folder or uri.startswith(HUB_SCHEME) or plain_suffix(uri) in suffixes


def _tsv_rows(uri: str) -> Iterator[tuple[str, list[Any]]]:
    """Rows without quoting, as in GLUE."""
    for number, line in enumerate(io.StringIO(read_text(uri), newline="\n"), start=1):
        fields = line.rstrip("\r\n").split("\t")
        if fields != [""]:
            yield f"{uri}:{number}", list(fields)


def _csv_rows(uri: str) -> Iterator[tuple[str, list[Any]]]:
    reader = csv.reader(io.StringIO(read_text(uri), newline=""), strict=True)
    first = 1
    try:
        for fields in reader:
            if fields:
                yield f"{uri}:{first}", list(fields)
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{uri}:{first}: not CSV: {error}; a quote inside a quoted field must be doubled"
        ) from error


def _json_rows(uri: str) -> Iterator[tuple[str, Any]]:
    """Objects of a JSON array, of the only list of objects in a JSON object, or one a line."""
    text = read_text(uri)
    rows = _json_list(uri, text) if plain_suffix(uri) == ".json" else None
    if rows is not None:
        yield from ((f"{uri}: row {number}", row) for number, row in enumerate(rows, start=1))
        return
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if line.strip():
            try:
                yield f"{uri}:{number}", parse_json(line)
            except ValueError as error:
                raise InputError(f"{uri}:{number}: not JSON: {error}") from error


def _json_list(uri: str, text: str) -> list[Any] | None:
    """The rows of a file that is one JSON value, or None for JSON Lines."""
    try:
        content = parse_json(text)
    except ValueError as error:
        if text.lstrip().startswith("["):
            raise InputError(f"{uri}: not JSON: {error}") from error
        return None
    if isinstance(content, dict):
        lists = [
            value
            for value in content.values()
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
        ]
        return lists[0] if len(lists) == 1 else [content]
    return content if isinstance(content, list) else None


def _records(uri: str, rows: Iterator[tuple[str, Any]]) -> Table:
    """The table of JSON objects. The first one has the columns."""
    first = next(rows, None)
    if first is None:
        raise InputError(f"{uri}: contains no example")
    names = list(_object(first))

    def values() -> Iterator[tuple[str, list[Any]]]:
        yield first[0], list(first[1].values())
        for place, row in rows:
            fields = _object((place, row))
            yield place, [fields.get(name) for name in names]

    return Table(names, values())


def _object(row: tuple[str, Any]) -> dict[str, Any]:
    place, value = row
    if not isinstance(value, dict):
        raise InputError(f"{place}: must be a JSON object, got {json.dumps(value)[:60]}")
    return value


def _parquet(uri: str) -> Table:
    # Imported here because most tasks do not need it.
    import pyarrow as pa

    try:
        table = storage.parquet_file(uri).read()
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{uri}: not Parquet: {' '.join(str(error).split())[:150]}") from error
    classes = _classes(_features_of(table.schema.metadata or {}))
    columns = [
        [_class_names(value, classes[name]) for value in column.to_pylist()]
        if name in classes
        else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    rows = ((f"{uri}: row {n}", list(row)) for n, row in enumerate(zip(*columns, strict=True), start=1))
    return Table(table.column_names, rows)


def _features_of(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The features of the columns, which datasets writes into the schema of a Parquet file."""
    try:
        features = parse_json(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Column -> names of its classes, of the columns with classes or lists of them."""
    class_names = {}
    for column, described in features.items():
        feature = described.get("feature", described) if isinstance(described, dict) else described
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and "names" in feature:
            class_names[column] = feature["names"]
    return class_names


def _class_names(value: Any, names: list[str]) -> Any:
    """The names of a class or a list of classes. A class that is not known (-1, in GLUE's tests) is None."""
    if isinstance(value, list):
        return [_class_names(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def _dataset(uri: str) -> Table:
    """A split of a folder in the Hub's layout, or of a dataset of the Hub."""
    # Imported here because it takes a second, and most tasks do not need it.
    import datasets

    path, _, query = uri.removeprefix(HUB_SCHEME).partition("?")
    options = dict(parse_qsl(query))
    split, name, revision = (options.pop(key, None) for key in ("split", "name", "revision"))
    if options:
        raise InputError(f"{uri}: unknown option {min(options)!r}; use split, name and revision")
    try:
        loaded = datasets.load_dataset(path, name=name, revision=revision)
    except Exception as error:  # datasets raises many kinds, its own and those of its readers
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(f"{uri}: cannot be loaded: {reason}") from error
    if split is None and len(loaded) == 1:
        (split,) = loaded
    if split not in loaded:
        raise InputError(f"{uri}: has the splits {', '.join(loaded)}; choose one, as in {path}?split=train")
    data = loaded[split]
    classes = _classes(data.features.to_dict())

    def values() -> Iterator[tuple[str, list[Any]]]:
        for number, row in enumerate(data, start=1):
            named = {column: _class_names(row[column], names) for column, names in classes.items()}
            yield f"{uri}: row {number}", list({**row, **named}.values())

    return Table(list(data.features), values())
