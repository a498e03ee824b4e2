"""Plans work units from the sources of a config. Uses names, sizes and heads of files, but not their text.

The same config and files give the same units in the same order on every machine.
"""

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.sources.files import FileReader, SourceFile
from pipeline.sources.reader import plan_source, source_reader
from pipeline.sources.units import Unit, group_small


def plan_units(config: BuildConfig) -> list[Unit]:
    """All units of a build, in the order of sources, files and ranges.

    Raises ConfigError for a source that cannot be read as described, and InputError that names a file that is
    missing, empty, damaged at its head, or unfinished.
    """
    units: list[Unit] = []
    for source in config.sources:
        units += group_small(plan_source(source, config.extraction), config.extraction.unit_bytes)
    return units


def source_files(source: Source) -> list[SourceFile]:
    """The files of a source, each once. Empty for a reader that does not read files.

    Raises InputError for a path without files.
    """
    reader = source_reader(source.kind, Extraction())
    return reader.files(source) if isinstance(reader, FileReader) else []
