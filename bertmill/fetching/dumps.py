"""Finds the files of a wiki's dump on Wikimedia's server or a mirror, by its directory listings.

MediaWiki Content File Exports (https://wikitech.wikimedia.org/wiki/MediaWiki_Content_File_Exports) are at
``other/mediawiki_content_current/<wiki>/<YYYY-MM-DD>/xml/bzip2/<wiki>-<YYYY-MM-DD>-pXpY.xml.bz2``. Such a
folder is complete once it has ``SHA256SUMS`` and ``_SUCCESS``. The older dumps
(https://meta.wikimedia.org/wiki/Data_dumps) are at ``<wiki>/<YYYYMMDD>/``, where ``dumpstatus.json`` lists
which jobs are done, with size and SHA-1 of each file.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from cluster import storage
from pipeline.sources.mediawiki.dump_status import read_jobs
from schemas.errors import InputError

DUMPS_URL = "https://dumps.wikimedia.org"
CHECKSUMS = "SHA256SUMS"
SUCCESS = "_SUCCESS"
"""Wikimedia writes it last. A fetch does not copy it, but writes its own when the copy is complete."""
SHA1_CHECKSUMS = "sha1sums.txt"

_CONTENT_DATE = re.compile(r'href="(?:[^"]*/)?(\d{4}-\d{2}-\d{2})/"')
_ARTICLES_DATE = re.compile(r'href="(?:[^"]*/)?(\d{4})(\d{2})(\d{2})/"')
_CHECKSUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(\S+)")
# For a large wiki, one job writes parts, and a second job joins them.
_ARTICLES_JOBS = ("articlesmultistreamdumprecombine", "articlesmultistreamdump")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dump and the hash that the server publishes for it."""

    name: str
    url: str
    algorithm: Literal["sha256", "sha1"]
    digest: str


@dataclass(frozen=True)
class Dump:
    """The files of one wiki and date."""

    wiki: str
    date: str
    """YYYY-MM-DD."""
    url: str
    """The folder on the server."""
    files: tuple[RemoteFile, ...]

    @property
    def checksums_name(self) -> str:
        """The name of the file of checksums, which depends on the kind of hash."""
        return CHECKSUMS if self.files[0].algorithm == "sha256" else SHA1_CHECKSUMS


def find_dump(base_url: str, wiki: str, date: str | None) -> Dump:
    """The newest complete dump of ``wiki``, or that of ``date`` (YYYY-MM-DD).

    A Content File Export comes before a pages-articles dump. Raises InputError that names the wiki when the
    server does not have it, or has no complete dump of the date.
    """
    base = base_url.rstrip("/")
    exports = f"{base}/other/mediawiki_content_current/{wiki}"
    content_dates = _listed(f"{exports}/", _CONTENT_DATE)
    for listed_date in _acceptable(content_dates, date):
        dump = _content_export(f"{exports}/{listed_date}/xml/bzip2", wiki, listed_date)
        if dump is not None:
            return dump
    articles_dates = _listed(f"{base}/{wiki}/", _ARTICLES_DATE)
    for listed_date in _acceptable(articles_dates, date):
        dump = _pages_articles(f"{base}/{wiki}/{listed_date.replace('-', '')}", wiki, listed_date)
        if dump is not None:
            return dump
    dates = sorted({*content_dates, *articles_dates})
    if not dates:
        raise InputError(f"{wiki}: no such wiki at {base}")
    of_date = f" of {date}" if date else ""
    raise InputError(
        f"{wiki}: no complete dump{of_date} at {base}; it lists {', '.join(dates)}, "
        f"but an export counts only with {CHECKSUMS} and {SUCCESS}"
    )


def _listed(url: str, pattern: re.Pattern[str]) -> list[str]:
    """The dates in a directory listing as YYYY-MM-DD, newest first, or None for a missing folder."""
    try:
        page = storage.read_bytes(url).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return sorted({"-".join(match.groups()) for match in pattern.finditer(page)}, reverse=True)


def _acceptable(dates: list[str], date: str | None) -> list[str]:
    return dates if date is None else [listed_date for listed_date in dates if listed_date == date]


def _content_export(folder: str, wiki: str, date: str) -> Dump | None:
    """The export in ``folder``, or None while it is being written."""
    try:
        text = storage.read_bytes(f"{folder}/{CHECKSUMS}").decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    if not storage.exists(f"{folder}/{SUCCESS}"):
        return None
    name_of_export = re.compile(rf"{re.escape(f'{wiki}-{date}')}-p\d+p\d+\.xml\.bz2")
    files = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _CHECKSUM.fullmatch(line.strip())
        if match is None:
            raise InputError(f"{folder}/{CHECKSUMS}: line {number}: not a SHA-256 and a name: {line[:80]!r}")
        if name_of_export.fullmatch(match[2]):
            files.append(RemoteFile(match[2], f"{folder}/{match[2]}", "sha256", match[1].lower()))
    if not files:
        return None
    return Dump(wiki, date, folder, tuple(sorted(files, key=lambda file: file.name)))


def _pages_articles(folder: str, wiki: str, date: str) -> Dump | None:
    """The multistream dump of pages-articles in ``folder``, or None while it is being written."""
    status_url = f"{folder}/dumpstatus.json"
    try:
        jobs = read_jobs(storage.read_bytes(status_url), status_url)
    except FileNotFoundError:
        return None
    for job in (jobs[name] for name in _ARTICLES_JOBS if name in jobs):
        if job.files and job.status == "done":
            listed = tuple(_articles_file(folder, name, about) for name, about in sorted(job.files.items()))
            return Dump(wiki, date, folder, listed)
    return None


def _articles_file(folder: str, name: str, about: dict[str, Any]) -> RemoteFile:
    digest = about.get("sha1")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{40}", digest):
        raise InputError(f"{folder}/dumpstatus.json: no SHA-1 of {name}, so a copy cannot be checked")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise InputError(f"{folder}/dumpstatus.json: {name!r} must be the name of a file")
    return RemoteFile(name, f"{folder}/{name}", "sha1", digest)
