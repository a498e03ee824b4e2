"""JSON Lines, and the Parquet layout of published Wikipedia extracts: a document per row."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.hub_dataset import read_dataset_rows
from pipeline.sources.rows import Row, read_rows
from pipeline.units import Unit
from schemas.errors import InputError

_WIKI_HOST = re.compile(r"([a-z][a-z0-9-]*)\.(?:m\.)?wik[a-z]+\.org")
_LANG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def read_row_documents(unit: Unit) -> Iterator[RawDocument | Skip]:
    """A document for every row. Raises InputError for a row whose language nothing tells."""
    rows = read_dataset_rows if unit.form == "rows-dataset" else read_rows
    for row in rows(unit):
        if not row.owned:
            return
        lang = row_language(row, unit)
        page_id = str(
            row.values.get("id") if row.values.get("id") is not None else f"{unit.name}:{row.place}"
        )
        title = str(row.values.get("title") or "")
        if row.oversize:
            yield Skip(page_id, title, lang or unit.lang or "und", "too-large")
        elif lang is None:
            raise InputError(f"{unit.uri}: row at {row.place}: no language; set `lang` of the source")
        elif not row.values[unit.text_field]:
            yield Skip(page_id, title, lang, "empty")
        else:
            yield RawDocument(page_id, _revision(row), title, lang, row.values[unit.text_field], "plain")


def row_language(row: Row, unit: Unit) -> str | None:
    """Language by config or file name, by the row's own field, or by the host of its url."""
    if unit.lang:
        return unit.lang
    for field in ("lang", "language"):
        value = row.values.get(field)
        if isinstance(value, str) and _LANG.fullmatch(value):
            return value.lower().replace("_", "-")
    host = _WIKI_HOST.fullmatch(urlsplit(unquote(str(row.values.get("url") or ""))).netloc)
    return host[1] if host else None


def _revision(row: Row) -> int:
    value = row.values.get("revision") or row.values.get("revid") or 0
    return int(value) if str(value).isdigit() else 0
