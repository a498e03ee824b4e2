"""Finds the files of MediaWiki Content File Exports and checks that a folder of them is complete.

An export of a wiki is a folder with files ``<wiki>-<YYYY-MM-DD>-pXpY.xml.bz2``. It is complete once it has
``SHA256SUMS`` and ``_SUCCESS`` (https://wikitech.wikimedia.org/wiki/MediaWiki_Content_File_Exports).
"""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from cluster import storage
from pipeline.config import Source
from pipeline.sources.files import SourceFile
from schemas.errors import ConfigError, InputError

CHECKSUMS = "SHA256SUMS"
SUCCESS = "_SUCCESS"
LATEST = "latest"
_NAME = re.compile(r"(?P<wiki>[a-z][a-z0-9_]*)-(?P<date>\d{4}-\d\d-\d\d)-p\d+p\d+\.xml\.bz2")
_OLDER_NAME = re.compile(r"([a-z][a-z0-9_]*)-(?:\d{8}|latest)-pages-")
_CHECKSUM = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?([^/\s]+)")
_GO_ON = "or set `check_hashes: false` of the source"


class Edition(NamedTuple):
    """An export of one wiki: its date and the folder with its files."""

    date: str
    folder: str


def export_of(uri: str) -> tuple[str, Edition] | None:
    """Returns wiki and edition of an export's file, or None for another file."""
    folder, _, name = uri.rpartition("/")
    match = _NAME.fullmatch(name)
    return (match["wiki"], Edition(match["date"], folder)) if match else None


def select_files(source: Source, files: list[SourceFile]) -> list[SourceFile]:
    """Returns the files of one edition of each wiki, and all files that are not of exports.

    Raises ConfigError if a wiki has several editions and the source's ``date`` does not select one, and
    InputError if the edition lacks a file that its checksums list.
    """
    editions: dict[str, set[Edition]] = defaultdict(set)
    for file in files:
        if export := export_of(file.uri):
            editions[export[0]].add(export[1])
    if source.date is not None and not editions:
        raise ConfigError(f"source {source.name}: date is for Content File Exports, but the source has none")
    _refuse_mixed(source, editions.keys(), files)
    chosen = {wiki: _choose(source, wiki, found) for wiki, found in editions.items()}
    kept = [
        file for file in files if (export := export_of(file.uri)) is None or chosen[export[0]] == export[1]
    ]
    if source.check_hashes:
        for wiki, edition in chosen.items():
            _check_complete(source, wiki, edition, {file.uri for file in kept})
    return kept


def _refuse_mixed(source: Source, wikis: Iterable[str], files: list[SourceFile]) -> None:
    for file in files:
        match = _OLDER_NAME.match(file.uri.rpartition("/")[2])
        if match and match[1] in wikis:
            raise ConfigError(
                f"source {source.name}: {file.uri} is another dump of {match[1]}, which has Content File "
                "Exports in this source; name only one of them in `paths`"
            )


def _choose(source: Source, wiki: str, editions: set[Edition]) -> Edition:
    dates = sorted({edition.date for edition in editions})
    date = dates[-1] if source.date in (None, LATEST) else source.date
    if source.date == LATEST and source.check_hashes:
        complete = [edition.date for edition in editions if _missing_marker(edition.folder) is None]
        date = max(complete, default=date)
    chosen = [edition for edition in editions if edition.date == date]
    if not chosen:
        raise InputError(f"source {source.name}: no export of {wiki} of {date}; found {', '.join(dates)}")
    if source.date is None and len(dates) > 1:
        raise ConfigError(
            f"source {source.name}: exports of {wiki} of {len(dates)} dates ({', '.join(dates)}); "
            f"set `date` of the source to one of them or to {LATEST}"
        )
    if len(chosen) > 1:
        folders = " and ".join(sorted(edition.folder for edition in chosen))
        raise ConfigError(
            f"source {source.name}: {wiki} of {date} is in {folders}; name only one of them in `paths`"
        )
    return chosen[0]


def _check_complete(source: Source, wiki: str, edition: Edition, uris: set[str]) -> None:
    if missing := _missing_marker(edition.folder):
        raise InputError(
            f"{edition.folder}: no {missing}: the export of {wiki} is still being written or copied; "
            f"wait until it is complete, {_GO_ON}"
        )
    for name in checksums(edition.folder) or {}:
        uri = f"{edition.folder}/{name}"
        wanted = export_of(uri) == (wiki, edition) and any(_names(path, uri) for path in source.paths)
        if wanted and uri not in uris:
            raise InputError(
                f"{uri}: no such file, but {CHECKSUMS} lists it: the export of {wiki} is not complete; "
                f"fetch the file, {_GO_ON}"
            )


def _missing_marker(folder: str) -> str | None:
    """The file of a complete export that this folder lacks, or None if it has both."""
    markers = (CHECKSUMS, SUCCESS)
    return next((name for name in markers if not storage.exists(f"{folder}/{name}")), None)


def _names(path: str, uri: str) -> bool:
    """Whether a path of the config, a folder or a glob, covers a file."""
    return uri.startswith(path.rstrip("/") + "/") or fnmatch.fnmatchcase(uri, path)


def checksums(folder: str) -> dict[str, str] | None:
    """Returns the SHA-256 of each file from the list in its folder, or None without a list."""
    uri = f"{folder}/{CHECKSUMS}"
    try:
        text = storage.read_bytes(uri).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    digests = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _CHECKSUM.fullmatch(line.strip())
        if match is None:
            raise InputError(f"{uri}: line {number}: not a SHA-256 and a file name: {line[:80]!r}")
        digests[match[2]] = match[1]
    return digests


def listed_hash(uri: str) -> str:
    """Returns the published SHA-256 of an export's file. Raises InputError if it is missing."""
    folder, _, name = uri.rpartition("/")
    digest = (checksums(folder) or {}).get(name)
    if digest is None:
        raise InputError(
            f"{uri}: not in {folder}/{CHECKSUMS}: not a complete export; fetch it again, {_GO_ON}"
        )
    return digest


def web_files(pattern: str) -> list[SourceFile] | None:
    """Returns the files of a folder or glob on a web server from its checksums, or None for a single file.

    A web server does not list folders. Raises InputError without checksums.
    """
    folder, _, name = pattern.rpartition("/")
    is_web = storage.scheme(pattern) in ("http", "https") and "?" not in pattern
    if not is_web or (name and "*" not in name):
        return None
    listed = checksums(folder)
    if listed is None:
        raise InputError(f"{folder}/: no {CHECKSUMS}, which is needed to list a folder of a web server")
    names = [entry for entry in listed if fnmatch.fnmatchcase(entry, name or "*")]
    return [SourceFile(f"{folder}/{entry}", entry) for entry in sorted(names)]
