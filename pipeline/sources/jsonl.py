"""Reads JSON Lines, and the Parquet layout of published Wikipedia extracts, with one document per row."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from pipeline.config import Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.hub_dataset import is_dataset, plan_dataset, read_dataset_rows
from pipeline.sources.plain_plan import is_parquet, language_of_name, plan_plain_file
from pipeline.sources.rows import Row, read_rows
from pipeline.sources.text import unwrapped
from pipeline.sources.units import Unit
from schemas.errors import InputError
from schemas.skip_reasons import EMPTY, TOO_LARGE

_WIKI_HOST = re.compile(r"([a-z][a-z0-9-]*)\.(?:m\.)?wik[a-z]+\.org")
_SNAPSHOT = re.compile(r"(?:^|[/=])(\d{8})\.[a-z]")
_LANG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_MOST_REVISION = 2**63 - 1
_REVISION_DIGITS = len(str(_MOST_REVISION))


class RowsReader(FileReader):
    """Reads JSON Lines, Parquet and datasets of the Hugging Face Hub, with one document per row."""

    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """The units of one file, or the shards of a dataset."""
        if is_dataset(file.uri):
            return plan_dataset(source, file.uri, source.lang or language_of_name(file.uri))
        return plan_plain_file(source, file, self.extraction.unit_bytes, _form)

    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """The documents of a unit."""
        return read_row_documents(unit)


def _form(source: Source, uri: str, head: bytes) -> str:
    if is_parquet(head):
        return "rows-parquet"
    if source.kind == "wikipedia_parquet":
        raise InputError(f"{uri}: not a Parquet file: it starts with {head[:8]!r}")
    return "rows-jsonl"


def read_row_documents(unit: Unit) -> Iterator[RawDocument | Skip]:
    """One document for every row. Raises InputError for a row of unknown language."""
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
        elif not (body := row.values[unit.text_field]):
            yield Skip(page_id, title, lang, EMPTY)
        else:
            # Published extracts are never wrapped, but their lists of short lines look wrapped.
            body = body if unit.kind == "wikipedia_parquet" else unwrapped(body)
            own, url = row.values.get("id"), row.values.get("url")
            yield RawDocument(
                page_id=page_id,
                revision=_revision(row, unit),
                title=title,
                lang=lang,
                body=body,
                kind="plain",
                source_id=None if own is None else str(own),
                url=url if isinstance(url, str) and url else None,
            )


def row_id(row: Row, unit: Unit) -> str:
    """The name of a row in its source: its id, or its position without an id.

    The ids of published extracts are page ids of the wiki, which are the same in every file and snapshot. The
    ids of other files need to be unique only in their file.
    """
    own = row.values.get("id")
    if own is not None and unit.kind == "wikipedia_parquet":
        return str(own)
    return f"{unit.name}:{row.place if own is None else own}"


def row_language(row: Row, unit: Unit) -> str | None:
    """The language from the config, the file name, the row's field, or the host of its URL."""
    if unit.lang:
        return unit.lang
    for field in ("lang", "language"):
        value = row.values.get(field)
        if isinstance(value, str) and _LANG.fullmatch(value):
            return value.lower().replace("_", "-")
    try:
        host = _WIKI_HOST.fullmatch(urlsplit(unquote(str(row.values.get("url") or ""))).netloc)
    except ValueError:
        # Not a valid URL, such as http://[x.
        return None
    return host[1] if host else None


def _revision(row: Row, unit: Unit) -> int:
    """The row's revision, or the date of the snapshot, so that dedup keeps the newer of two snapshots."""
    value = str(row.values.get("revision") or row.values.get("revid") or "")
    if value.isdecimal():
        if len(value) > _REVISION_DIGITS or int(value) > _MOST_REVISION:
            raise InputError(
                f"{unit.uri}: row at {row.place}: revision {value[:40]} is larger than {_MOST_REVISION}"
            )
        return int(value)
    date = _SNAPSHOT.search(unit.uri) if unit.kind == "wikipedia_parquet" else None
    return int(date[1]) if date else 0
