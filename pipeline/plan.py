"""From the sources of a config to work units: looks at names, sizes and heads of files, reads no text.

The same config and files give the same units in the same order, whatever machine plans them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cluster import storage
from pipeline.config import BuildConfig, Source
from pipeline.sources.dump_status import STATUS_NAMES
from pipeline.sources.hub_dataset import is_dataset, plan_dataset
from pipeline.sources.multistream_index import is_index_name
from pipeline.sources.plain_plan import language_of_name, plan_plain_file
from pipeline.sources.wikimedia import plan_dump
from pipeline.units import Unit, group_small
from schemas.errors import ConfigError, InputError

_PLANNERS = 16
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SourceFile:
    """A file of a source. ``name`` is its path below the folder that the config names."""

    uri: str
    name: str


def plan_units(config: BuildConfig) -> list[Unit]:
    """All units of a build, in the order of sources, files and ranges.

    Raises ConfigError for a source that cannot be read as it is described, InputError that names the
    file for one that is missing, empty, damaged at its head or unfinished.
    """
    units: list[Unit] = []
    for source in config.sources:
        files = source_files(source)
        if source.index is not None and len(files) != 1:
            raise ConfigError(
                f"source {source.name}: index is for a source with one file, it has {len(files)}"
            )
        with ThreadPoolExecutor(_PLANNERS) as pool:
            planned = pool.map(lambda file, source=source: plan_file(source, file, config), files)
            found = [unit for units_of_file in planned for unit in units_of_file]
        _check_wikis(source, found)
        units += group_small(found, config.extraction.unit_bytes)
    return units


def source_files(source: Source) -> list[SourceFile]:
    """The files that the paths of a source name, each once. Raises InputError where there is none."""
    found: dict[str, SourceFile] = {}
    uris: set[str] = set()
    for pattern in source.paths:
        matched = [file for file in _match(pattern) if not _is_beside(source, file.uri)]
        if not matched:
            raise InputError(f"source {source.name}: {pattern}: no such file")
        for file in matched:
            if file.uri in uris:
                continue
            if file.name in found:
                raise ConfigError(
                    f"source {source.name}: {file.uri} and {found[file.name].uri} would have the same name "
                    f"{file.name!r}; put them into two sources"
                )
            uris.add(file.uri)
            found[file.name] = file
    return list(found.values())


def _match(pattern: str) -> Iterator[SourceFile]:
    """Files of a glob, of a folder, or the file itself; names are relative to the fixed folder."""
    if is_dataset(pattern):
        yield SourceFile(pattern, pattern)
        return
    if _MAGIC.search(pattern):
        folder = _MAGIC.split(pattern, maxsplit=1)[0].rpartition("/")[0]
        uris = storage.expand_glob(pattern)
    elif storage.exists(pattern):
        folder, uris = pattern.rpartition("/")[0], [pattern]
    else:
        folder = pattern.rstrip("/")
        uris = [info.uri for info in storage.list_files(pattern)]
    for uri in uris:
        yield SourceFile(uri, uri.removeprefix(folder).lstrip("/"))


def _is_beside(source: Source, uri: str) -> bool:
    """Whether a file only accompanies dumps: an index, a status file, a checksum."""
    name = uri.rpartition("/")[2]
    if source.kind != "wikimedia":
        return name.startswith((".", "_"))
    return is_index_name(name) or name in STATUS_NAMES or bool(re.search(r"(?:md5|sha1)sums?\b", name))


def plan_file(source: Source, file: SourceFile, config: BuildConfig) -> list[Unit]:
    """The units of one file."""
    unit_bytes = config.extraction.unit_bytes
    if source.kind == "wikimedia":
        return plan_dump(
            source=source.name,
            uri=file.uri,
            name=file.name,
            lang=source.lang,
            index=source.index,
            namespaces=tuple(source.namespaces),
            unit_bytes=unit_bytes,
        )
    if is_dataset(file.uri):
        return plan_dataset(source, file.uri, source.lang or language_of_name(file.uri))
    return plan_plain_file(source, file.uri, file.name, unit_bytes)


def _check_wikis(source: Source, units: list[Unit]) -> None:
    """Two wikis of one language share page ids, so they must not share a source."""
    wikis: dict[str, dict[str, str]] = defaultdict(dict)
    for unit in units:
        if unit.kind == "wikimedia":
            wikis[unit.lang].setdefault(unit.dbname, unit.uri)
    for lang, named in wikis.items():
        if len(named) > 1:
            (one, first), (two, second), *_ = named.items()
            raise ConfigError(
                f"source {source.name}: {first} ({one}) and {second} ({two}) are two wikis of language "
                f"{lang}; put them into two sources"
            )
