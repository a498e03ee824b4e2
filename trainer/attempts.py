"""Numbers the attempts at a run, so that of two trainers under one run name only the newer may commit.

``RUN/attempts/000007.json`` is created with a conditional put: a number belongs to one process for
ever. A process that sees a higher number than its own has been replaced, for instance because the
cluster thought it dead, and refuses to write.
"""

import json
import logging
import os
import re
import secrets
import socket
import time

from cluster import storage
from schemas.errors import CheckpointError

log = logging.getLogger(__name__)

_KEPT = 16
"""Claims that are kept, for people to read; only the newest one has a meaning."""
_NAME = re.compile(r"(\d{6,})\.json")


class Claim:
    """The claim of one process on a run."""

    def __init__(self, run_uri: str, number: int, folder_suffix: str) -> None:
        self.run_uri = run_uri
        self.number = number
        self.suffix = folder_suffix
        """What makes a folder name unique to this attempt: its number and name."""

    def check(self) -> None:
        """Raises CheckpointError if a newer attempt has claimed the run."""
        newest = _numbers(self.run_uri)[-1:]
        if newest and newest[0] > self.number:
            raise FencedError(
                f"{self.run_uri}: attempt {self.number} has been replaced by attempt {newest[0]} "
                "and may not commit any more"
            )


class FencedError(CheckpointError):
    """A newer attempt owns the run; nothing this process writes counts."""


def claim(run_uri: str, name: str | None = None) -> Claim:
    """Takes the run over: every attempt before this one may no longer commit.

    ``name`` (letters, digits, ``-``) goes into the folder names, for people; random by default.
    """
    label = re.sub(r"[^a-z0-9-]+", "-", (name or secrets.token_hex(4)).lower()).strip("-")[:40]
    numbers = _numbers(run_uri)
    number = numbers[-1] + 1 if numbers else 1
    about = {"host": socket.gethostname(), "name": label, "process": os.getpid(), "time": int(time.time())}
    while not storage.put_if_absent(
        _uri(run_uri, number), json.dumps({"attempt": number, **about}, sort_keys=True).encode()
    ):
        number += 1
    log.info("%s: this is attempt %d", run_uri, number)
    for old in numbers[:-_KEPT]:
        storage.delete(_uri(run_uri, old))
    return Claim(run_uri, number, f"{number:06d}-{label}")


def _uri(run_uri: str, number: int) -> str:
    return storage.join(run_uri, "attempts", f"{number:06d}.json")


def _numbers(run_uri: str) -> list[int]:
    """The attempts so far, ascending."""
    names = [info.uri.rsplit("/", 1)[-1] for info in storage.list_files(storage.join(run_uri, "attempts"))]
    matches = [_NAME.fullmatch(name) for name in names]
    return sorted(int(match.group(1)) for match in matches if match)
