"""Units of text, BookCorpus, JSON Lines and Parquet files."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster import storage
from pipeline.config import Source
from pipeline.sources.chunks import compression_of, even_cuts, looks_like_html, probe
from pipeline.units import Unit
from schemas.errors import ConfigError, InputError

_PARQUET_MAGIC = b"PAR1"
_ROW_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")


def plan_plain_file(source: Source, uri: str, name: str, unit_bytes: int) -> list[Unit]:
    """The units of one file. Raises InputError for an empty or unreadable file, ConfigError for a lack
    of a language.
    """
    if source.lang is None and source.kind in ("text", "bookcorpus"):
        raise ConfigError(f"source {source.name}: lang is missing; {source.kind} files do not say it")
    found = probe(uri)
    if looks_like_html(found.head):
        raise InputError(f"{uri}: byte 0: an HTML page, not a file of kind {source.kind}")
    form = file_form(source, uri, found.head)
    parquet = form.endswith("parquet")
    compression = "" if parquet else compression_of(uri, found.head)
    encoding = "utf-16" if found.head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    whole = Unit(
        source=source.name,
        kind=source.kind,
        uri=uri,
        name=name,
        start=0,
        end=found.size,
        size=found.size,
        lang=source.lang or language_of_name(uri),
        compression=compression,
        fingerprint=found.fingerprint,
        form=form,
        text_field=source.text_field,
        sentences_per_document=source.sentences_per_document if form.startswith("sentences") else 0,
        encoding=encoding,
    )
    if parquet:
        sizes = row_group_bytes(uri)
        cuts = group_cuts(sizes, unit_bytes)
        return [replace(whole, start=a, end=b, weight=sum(sizes[a:b])) for a, b in cuts]
    if found.size <= unit_bytes or form in ("file", "books"):
        return [whole]
    if compression or encoding != "utf-8":
        return [replace(whole, notes=(f"{compression or encoding} data, which cannot be cut: one unit",))]
    return [replace(whole, start=start, end=end) for start, end in even_cuts(found.size, unit_bytes)]


def file_form(source: Source, uri: str, head: bytes) -> str:
    """What a document is in this file, as the readers name it."""
    parquet = head.startswith(_PARQUET_MAGIC)
    if source.kind == "text":
        return source.documents
    if source.kind == "jsonl":
        return "rows-parquet" if parquet else "rows-jsonl"
    if source.kind == "wikipedia_parquet":
        if not parquet:
            raise InputError(f"{uri}: not a Parquet file: it begins with {head[:8]!r}")
        return "rows-parquet"
    return _bookcorpus_form(source, uri, parquet)


def _bookcorpus_form(source: Source, uri: str, parquet: bool) -> str:
    rows = parquet or any(suffix in uri.rpartition("/")[2].lower() for suffix in _ROW_SUFFIXES)
    kind = "parquet" if parquet else "jsonl"
    form = source.form
    if form == "auto":
        form = "books"
        if rows:
            form = (
                "rows"
                if not parquet or "title" in storage.parquet_file(uri).schema_arrow.names
                else "sentences"
            )
    if form == "books":
        if rows:
            raise ConfigError(f"source {source.name}: {uri} has rows; form books is for text files")
        return "books"
    if form == "rows":
        if not rows:
            raise ConfigError(f"source {source.name}: {uri} is no file of rows (.jsonl, .parquet)")
        return f"rows-{kind}"
    return f"sentences-{kind}" if rows else "sentences"


def row_group_bytes(uri: str) -> list[int]:
    """Stored bytes of every row group of a Parquet file."""
    metadata = storage.parquet_file(uri).metadata
    return [_stored_bytes(metadata.row_group(group)) for group in range(metadata.num_row_groups)]


def _stored_bytes(group: Any) -> int:
    return sum(group.column(column).total_compressed_size for column in range(group.num_columns))


def group_cuts(sizes: Sequence[int], unit_bytes: int) -> list[tuple[int, int]]:
    """Runs of consecutive groups whose sizes add up to ``unit_bytes``, one group at least."""
    cuts: list[tuple[int, int]] = []
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > unit_bytes:
            cuts.append((start, number))
            start, total = number, 0
        total += size
    if start < len(sizes):
        cuts.append((start, len(sizes)))
    return cuts


def language_of_name(uri: str) -> str:
    """Language of the folders or configurations named DATE.LANGUAGE on the hub, or empty."""
    match = re.search(r"(?:^|[/=])\d{8}\.([a-z][a-z0-9-]*)(?=[/&]|$)", uri)
    return match[1] if match else ""
