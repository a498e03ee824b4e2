"""JSON Lines, and the Parquet layout of published Wikipedia extracts: a document per row."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from pipeline.skip_reasons import EMPTY, TOO_LARGE
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.hub_dataset import read_dataset_rows
from pipeline.sources.rows import Row, read_rows
from pipeline.units import Unit
from schemas.errors import InputError

_WIKI_HOST = re.compile(r"([a-z][a-z0-9-]*)\.(?:m\.)?wik[a-z]+\.org")
_SNAPSHOT = re.compile(r"(?:^|[/=])(\d{8})\.[a-z]")
_LANG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def read_row_documents(unit: Unit) -> Iterator[RawDocument | Skip]:
    """A document for every row. Raises InputError for a row whose language nothing tells."""
    rows = read_dataset_rows if unit.form == "rows-dataset" else read_rows
    for row in rows(unit):
        if not row.owned:
            return
        lang = row_language(row, unit)
        page_id = row_id(row, unit)
        title = str(row.values.get("title") or "")
        if row.oversize:
            yield Skip(page_id, title, lang or unit.lang or "und", TOO_LARGE)
        elif lang is None:
            raise InputError(f"{unit.uri}: row at {row.place}: no language; set `lang` of the source")
        elif not row.values[unit.text_field]:
            yield Skip(page_id, title, lang, EMPTY)
        else:
            yield RawDocument(
                page_id, _revision(row, unit), title, lang, row.values[unit.text_field], "plain"
            )


def row_id(row: Row, unit: Unit) -> str:
    """What names a row in its source: its id, or its place where it has none.

    The ids of published extracts are those of the wiki's pages, the same page in every file and snapshot.
    Those of other files are only taken to be unique in their file.
    """
    own = row.values.get("id")
    if own is not None and unit.kind == "wikipedia_parquet":
        return str(own)
    return f"{unit.name}:{row.place if own is None else own}"


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


def _revision(row: Row, unit: Unit) -> int:
    """The row's own revision, or the date of the snapshot, so that the newer of two snapshots counts."""
    value = str(row.values.get("revision") or row.values.get("revid") or "")
    if value.isdigit():
        return int(value)
    date = _SNAPSHOT.search(unit.uri) if unit.kind == "wikipedia_parquet" else None
    return int(date[1]) if date else 0
