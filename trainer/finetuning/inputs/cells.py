"""Values in the cells of tables: texts, labels, lists, and the place of a column."""

import ast
from contextlib import suppress
from typing import Any

from schemas.errors import InputError
from schemas.json_text import parse_json
from trainer.finetuning.inputs.examples import Column


def text_of(value: object, origin: str, column: Column | None) -> str:
    """A cell as text. Raises InputError that names the place for a missing one, a list and a mapping."""
    if value is None or isinstance(value, list | dict):
        raise InputError(f"{origin}: column {column!r} must be a text, got {value!r:.60}")
    return value if isinstance(value, str) else spelling_of(value)


def spelling_of(value: object) -> str:
    """A label as text, "" for a missing one. 1, 1.0 and "1" are one label, true and "true" another."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def place_of(uri: str, names: list[str], column: Column | None) -> int | None:
    """The place of ``column``, a number, a name, or the first of several names that the table has.

    None stands for no column. Raises InputError for a name that is missing or duplicate.
    """
    if column is None or isinstance(column, int):
        return column
    candidates = [column] if isinstance(column, str) else column
    matches = [name for name in candidates if name in names]
    if not matches:
        listed = " or ".join(candidates)
        raise InputError(f"{uri}:1: no column {listed!r}; the columns are {', '.join(names)}")
    if names.count(matches[0]) > 1:
        raise InputError(f"{uri}:1: column {matches[0]!r} occurs {names.count(matches[0])} times")
    return names.index(matches[0])


def structure_of(text: str) -> Any:
    """A list or mapping in JSON, or as Python (and pandas) writes it, or the text itself if it is neither."""
    for parse in (parse_json, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return parse(text)
    return text


def list_of(value: Any, origin: str, column: Column | None) -> list[Any]:
    """A list in a cell. In text it is JSON, a list of Python (as pandas writes it), or split at spaces."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = structure_of(value)
        if isinstance(value, str):
            raise InputError(f"{origin}: column {column!r} is not a list: {value!r:.60}")
    if isinstance(value, str):
        return value.split(" ")
    if not isinstance(value, list):
        raise InputError(f"{origin}: column {column!r} must be a list, got {value!r:.60}")
    return value
