"""Defines the interface of source readers, and selects a reader by the ``kind`` of a source.

A reader is a class with two methods. The config gives the dotted name of a custom class.
pipeline.config.SOURCE_READERS lists the built-in kinds::

    class Notes:
        def __init__(self, extraction: Extraction) -> None: ...

        def plan(self, source: Source) -> list[Unit]:
            return [Unit.of_file(source, uri) for uri in source.paths]

        def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
            for number, text in enumerate(notes_in(unit.uri)):
                yield RawDocument(f"{unit.name}:{number}", 0, "", unit.lang, text, "plain")

`pipeline.sources.files.FileReader` is a base class for readers of files. It expands globs and folders.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

from pipeline.config import SOURCE_READERS, Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, PluginError
from schemas.plugins import load_plugin, plugin_errors


class SourceReader(Protocol):
    """Reads one kind of source. The constructor gets the settings of extraction."""

    def plan(self, source: Source) -> list[Unit]:
        """The work units of a source, the same ones in the same order for the same files.

        The build may merge neighboring units that are whole files (start 0, end and size equal, no weight)
        into one task. Planning uses only names, sizes and heads of files. Raises ConfigError for a source
        that cannot be read as described, and InputError that names a file that is missing, empty, damaged or
        unfinished.
        """

    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """Every page, row or book that the unit owns. Raises InputError on damaged input."""


@cache
def _reader_class(kind: str) -> Any:
    return load_plugin(SOURCE_READERS.get(kind, kind), "sources: kind").object


def source_reader(kind: str, extraction: Extraction) -> SourceReader:
    """The reader of a kind. Raises ConfigError when a custom class is missing or lacks a method."""
    reader: SourceReader
    if kind in SOURCE_READERS:
        reader = _reader_class(kind)(extraction)
        return reader
    with plugin_errors(kind, "reader"):
        reader = _reader_class(kind)(extraction)
    missing = [name for name in ("plan", "read") if not callable(getattr(reader, name, None))]
    if missing:
        raise ConfigError(f"sources: kind: {kind}: has no method {missing[0]}")
    return reader


def plan_source(source: Source, extraction: Extraction) -> list[Unit]:
    """The work units of a source, as its reader plans them."""
    reader = source_reader(source.kind, extraction)
    if source.kind in SOURCE_READERS:
        return reader.plan(source)
    with plugin_errors(source.kind, f"source {source.name}"):
        planned = reader.plan(source)
        if not isinstance(planned, Iterable):
            raise PluginError(f"{source.kind}: source {source.name}: plan gave {planned!r:.80}, not Units")
        units = list(planned)
    for unit in units:
        if not isinstance(unit, Unit):
            raise PluginError(f"{source.kind}: source {source.name}: plan gave {unit!r:.80}, not a Unit")
    return units


def read_unit(unit: Unit, extraction: Extraction) -> Iterator[RawDocument | Skip]:
    """Every page, row or book that the unit owns. Raises InputError on damaged input."""
    reader = source_reader(unit.kind, extraction)
    if unit.kind in SOURCE_READERS:
        return reader.read(unit)
    return _read_checked(reader, unit)


def _read_checked(reader: SourceReader, unit: Unit) -> Iterator[RawDocument | Skip]:
    with plugin_errors(unit.kind, unit.uri):
        documents = reader.read(unit)
        if not isinstance(documents, Iterable):
            raise PluginError(f"{unit.kind}: {unit.uri}: read gave {documents!r:.80}, not documents")
        for document in documents:
            if not isinstance(document, RawDocument | Skip):
                raise PluginError(
                    f"{unit.kind}: {unit.uri}: read gave {document!r:.80}, not a RawDocument or Skip"
                )
            yield document
