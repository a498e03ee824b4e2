"""Finds the files of a source, and defines the base class of readers that plan file by file."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cluster import storage
from pipeline.config import Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.hub_dataset import is_dataset
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, InputError
from schemas.redaction import public_uri

_PLANNERS = 16
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SourceFile:
    """A file of a source. ``name`` is its path below the folder in the config."""

    uri: str
    name: str


class FileReader(ABC):
    """A reader that plans each file separately. Subclasses define how to plan and read one file."""

    def __init__(self, extraction: Extraction) -> None:
        self.extraction = extraction

    @abstractmethod
    def plan_file(self, source: Source, file: SourceFile) -> list[Unit]:
        """The units of one file."""

    @abstractmethod
    def read(self, unit: Unit) -> Iterator[RawDocument | Skip]:
        """Every document that the unit owns. Raises InputError on damaged input."""

    def accompanies(self, name: str) -> bool:
        """Whether the file ``name`` (without folder) only accompanies inputs and is not an input itself."""
        return name.startswith((".", "_"))

    def plan(self, source: Source) -> list[Unit]:
        """The units of all files, in the order of the paths in the config."""
        files = self.files(source)
        with ThreadPoolExecutor(_PLANNERS) as pool:
            planned = list(pool.map(lambda file: self._plan_found(source, file), files))
        return [unit for units in planned for unit in units]

    def _plan_found(self, source: Source, file: SourceFile) -> list[Unit]:
        try:
            return self.plan_file(source, file)
        except FileNotFoundError as error:
            raise InputError(
                f"source {source.name}: {error}: deleted or renamed while the build was planned; wait until "
                "its folder is complete, then start the build again"
            ) from error

    def match(self, pattern: str) -> Iterable[SourceFile]:
        """The files that match one path of a source."""
        return _match(pattern)

    def files(self, source: Source) -> list[SourceFile]:
        """The files that match the source's paths, each once. Raises InputError for a path without files."""
        by_name: dict[str, SourceFile] = {}
        uris: set[str] = set()
        for pattern in source.paths:
            matched = [f for f in self.match(pattern) if not self.accompanies(f.name.rpartition("/")[2])]
            if not matched:
                raise InputError(f"source {source.name}: {pattern}: no such file")
            for file in matched:
                if file.uri in uris:
                    continue
                _check_name(source, file.uri)
                if file.name in by_name:
                    raise ConfigError(
                        f"source {source.name}: {file.uri} and {by_name[file.name].uri} would have the same "
                        f"name {file.name!r}; put them into two sources"
                    )
                uris.add(file.uri)
                by_name[file.name] = file
        return list(by_name.values())


def _check_name(source: Source, uri: str) -> None:
    # The name is part of document keys and error messages.
    try:
        uri.encode()
    except UnicodeEncodeError as error:
        shown = uri.encode("utf-8", "backslashreplace").decode()
        raise InputError(f"source {source.name}: {shown}: its name is not UTF-8; rename it") from error


def _match(pattern: str) -> Iterator[SourceFile]:
    """The files of a glob or of a folder, or the file itself. Names are relative to the fixed folder."""
    if is_dataset(pattern):
        yield SourceFile(pattern, pattern)
        return
    public = public_uri(pattern)
    if _GLOB.search(public):
        folder = _GLOB.split(public, maxsplit=1)[0].rpartition("/")[0]
        uris = storage.expand_glob(pattern)
    elif storage.exists(pattern):
        folder, uris = public.rpartition("/")[0], [pattern]
    elif storage.scheme(pattern) in ("http", "https"):
        raise InputError(f"{pattern}: no such file (the path of a folder on a web server must end with /)")
    else:
        folder = public.rstrip("/")
        uris = [info.uri for info in storage.list_files(pattern)]
    for uri in uris:
        yield SourceFile(uri, public_uri(uri).removeprefix(folder).lstrip("/"))
