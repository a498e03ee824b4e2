"""Plans the units of text, JSON Lines and Parquet files for readers that cut them by bytes or row groups."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cluster import storage
from pipeline.config import Source
from pipeline.sources.chunks import compression_of, even_cuts, looks_like_html, probe
from pipeline.sources.files import SourceFile
from pipeline.sources.hub_dataset import is_dataset
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, InputError
from schemas.redaction import public_uri

_PARQUET_MAGIC = b"PAR1"
FormOf = Callable[[Source, str, bytes], str]
"""Maps a source, a URI and the first bytes of the file to the form of its documents (``Unit.form``)."""


def plan_plain_file(source: Source, file: SourceFile, unit_bytes: int, form_of: FormOf) -> list[Unit]:
    """The units of one file. Raises InputError for an empty or unreadable file."""
    uri = file.uri
    if is_dataset(uri):
        raise ConfigError(
            f"source {source.name}: {uri}: kind {source.kind} does not read datasets; use jsonl"
        )
    probed = probe(uri)
    if looks_like_html(probed.head):
        raise InputError(f"{uri}: byte 0: an HTML page, not a file of kind {source.kind}")
    form = form_of(source, uri, probed.head)
    parquet = form.endswith("parquet")
    compression = "" if parquet else compression_of(uri, probed.head)
    encoding = "utf-16" if probed.head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    file_unit = Unit(
        source=source.name,
        kind=source.kind,
        uri=uri,
        name=file.name,
        start=0,
        end=probed.size,
        size=probed.size,
        lang=source.lang or language_of_name(public_uri(uri)),
        compression=compression,
        fingerprint=probed.fingerprint,
        form=form,
        text_field=source.text_field,
        sentences_per_document=source.sentences_per_document if form.startswith("sentences") else 0,
        encoding=encoding,
    )
    if parquet:
        sizes = row_group_bytes(uri)
        cuts = group_cuts(sizes, unit_bytes)
        return [replace(file_unit, start=a, end=b, weight=sum(sizes[a:b])) for a, b in cuts]
    if probed.size <= unit_bytes or form in ("file", "books"):
        return [file_unit]
    if compression or encoding != "utf-8":
        return [replace(file_unit, notes=(f"{compression or encoding} data cannot be cut: one unit",))]
    return [replace(file_unit, start=start, end=end) for start, end in even_cuts(probed.size, unit_bytes)]


def is_parquet(head: bytes) -> bool:
    """Whether the first bytes belong to a Parquet file."""
    return head.startswith(_PARQUET_MAGIC)


def check_language(source: Source) -> None:
    """Raises ConfigError if neither the files of a source nor its config give the language."""
    if source.lang is None:
        raise ConfigError(
            f"source {source.name}: lang is missing; {source.kind} files do not name a language"
        )


def row_group_bytes(uri: str) -> list[int]:
    """Stored bytes of every row group of a Parquet file."""
    metadata = storage.parquet_file(uri).metadata
    return [_stored_bytes(metadata.row_group(group)) for group in range(metadata.num_row_groups)]


def _stored_bytes(group: Any) -> int:
    return sum(group.column(column).total_compressed_size for column in range(group.num_columns))


def group_cuts(sizes: Sequence[int], unit_bytes: int) -> list[tuple[int, int]]:
    """Ranges of consecutive groups of at most ``unit_bytes`` together, at least one group each."""
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
    """Language of a folder or dataset config named DATE.LANGUAGE, as on the Hugging Face Hub, or empty."""
    match = re.search(r"(?:^|[/=])\d{8}\.([a-z][a-z0-9-]*)(?=[/&]|$)", uri)
    return match[1] if match else ""
