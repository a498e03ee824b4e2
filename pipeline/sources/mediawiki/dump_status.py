"""Checks that a dump is finished, using the status file that Wikimedia publishes next to it."""

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from cluster import storage
from schemas.errors import InputError, reason_of
from schemas.json_text import parse_json
from schemas.redaction import has_query

FETCHED_CHECKSUMS = "sha1sums.txt"
"""The list that `bertmill fetch` writes for a pages-articles dump. Wikimedia's own have longer names."""
SUCCESS = "_SUCCESS"
STATUS_NAMES = ("dumpstatus.json", "dumpruninfo.json")


def check_status(uri: str, size: int) -> None:
    """Raises InputError with the dump's date if the file's job is not done or its size differs.

    Also raises it for a folder that `bertmill fetch` has not completed. Accepts a dump without a status file,
    and a dump at a signed URL, which gives no access to other files.
    """
    if has_query(uri):
        return
    folder, slash, name = uri.rpartition("/")
    _check_fetched(f"{folder}{slash}", uri)
    for status_name in STATUS_NAMES:
        status_uri = f"{folder}{slash}{status_name}"
        try:
            raw = storage.read_bytes(status_uri)
        except FileNotFoundError:
            continue
        _check_job(read_jobs(raw, status_uri), status_uri, uri, name, size)


def _check_fetched(folder: str, uri: str) -> None:
    """A fetch writes its list of checksums first and its marker last. It does not write to web servers."""
    if storage.scheme(uri) in ("http", "https") or not storage.exists(f"{folder}{FETCHED_CHECKSUMS}"):
        return
    if not storage.exists(f"{folder}{SUCCESS}"):
        raise InputError(
            f"{uri}: its folder has {FETCHED_CHECKSUMS} but no {SUCCESS}: `bertmill fetch` has not completed "
            "it; run the same fetch again"
        )


class Job(BaseModel):
    """A job of a dump, with the files that it writes."""

    status: str = ""
    files: dict[str, dict[str, Any]] | None = None
    """The facts about each file: size, URL and hashes."""


class _Status(BaseModel):
    jobs: dict[str, Job]


def read_jobs(raw: bytes, status_uri: str) -> dict[str, Job]:
    """The jobs in a status file, by name. Raises InputError if it is not a status file."""
    try:
        return _Status.model_validate(parse_json(raw)).jobs
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        reason = f"{field}: {reason_of(first)}" if field else reason_of(first)
        raise InputError(f"{status_uri}: not a status file of a dump: {reason}") from error
    except ValueError as error:
        raise InputError(f"{status_uri}: not a status file of a dump: {error}") from error


def _check_job(jobs: dict[str, Job], status_uri: str, uri: str, name: str, size: int) -> None:
    listing = [job for job, about in jobs.items() if name in (about.files or {})]
    job = listing[0] if listing else _job_of(name)
    if job not in jobs:
        return
    status = jobs[job].status
    if status != "done":
        date = re.search(r"\d{8}", name) or re.search(r"\d{8}", uri)
        dated = f" of {date[0]}" if date else ""
        raise InputError(f"{uri}: the dump{dated} is not finished: {status_uri} says {job} is {status!r}")
    expected = (jobs[job].files or {}).get(name, {}).get("size")
    if isinstance(expected, int) and expected != size:
        raise InputError(f"{uri}: incomplete: {size} bytes, but {status_uri} says {expected}")


def _job_of(name: str) -> str:
    if "multistream" in name:
        return "articlesmultistreamdump"
    return "metacurrentdump" if "meta-current" in name else "articlesdump"
