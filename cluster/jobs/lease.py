"""The lease of a run or of a corpus: one process owns it, and only its owner may commit checkpoints.

Attempts are numbered. A conditional put creates ``RUN/attempts/000007.json``, so each number belongs to one
process. The owner rewrites ``RUN/attempts/000007.beat`` every few seconds and records its end there. A
second start watches that file. If it changes, the owner is alive, and the second start fails. Only changes
between two reads count, because the clocks of hosts and stores differ.

A process that sees a higher number than its own has been replaced and stops writing. This happens, for
example, after a take-over or a long network failure.
"""

import json
import logging
import re
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter, ValidationError

from cluster import storage
from cluster.jobs.processes import HostProcess
from schemas.errors import CheckpointError, StorageError

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""Default time without a heartbeat after which a new start considers a run abandoned."""

_KEEP = 16
"""Attempt files to keep, for people to read. Only the newest one counts."""
_NAME = re.compile(r"(\d{6,})\.json")
_BEATS = 6
"""Heartbeats during that time."""
_BEATS_OF_THE_LIVING = 2
"""Heartbeat changes that prove an owner alive. A single change may be the last one of a dying process."""


class FencedError(CheckpointError):
    """A newer attempt owns the run, so this process may no longer commit."""


class LeaseHeldError(CheckpointError):
    """Another process owns the run."""


@dataclass(frozen=True)
class Claimant:
    """A process that requests the ownership of a run, and its conditions."""

    name: str | None = None
    """Part of the folder names (letters, digits, ``-``). Random by default."""
    job: str | None = None
    """Identifies the job. Its restarts replace its own earlier attempts, which the launcher has ended."""
    take_over: bool = False
    """Whether to replace an owner that is alive."""
    seconds: float = LEASE_SECONDS
    """How long an owner may be silent."""
    free_attempt: int | None = None
    """The newest attempt if the caller has seen it end, or 0 for a new run."""
    doing: str = "training this run"
    """What the owner is doing, for the error message."""
    advice: str = "stop it first, choose another run.name, or add --take-over, which replaces it"
    """What to do when the owner is alive, for the error message."""


@dataclass(frozen=True)
class Owner(HostProcess):
    """The process of an attempt, as the file of the attempt describes it."""

    attempt: int
    name: str
    job: str | None
    host: str
    seconds: float
    """How long it may be silent."""
    time: int
    """When it started, in seconds since 1970."""


_OWNER = TypeAdapter(Owner)


class RunLease:
    """The right of one process to commit checkpoints of a run."""

    def __init__(self, run_uri: str, number: int, folder_suffix: str, seconds: float = LEASE_SECONDS) -> None:
        self.run_uri = run_uri
        self.number = number
        self.suffix = folder_suffix
        """Number and name of the attempt, which make its folder names unique."""
        self.displaced: FencedError | None = None
        """The heartbeat sets this as soon as it sees a newer attempt."""
        self._pause = seconds / _BEATS
        self._ended = threading.Event()
        self._heartbeat: threading.Thread | None = None

    def check(self) -> None:
        """Raises FencedError if a newer attempt has taken over the run."""
        newest = newest_attempt(self.run_uri)
        if newest > self.number:
            self.displaced = FencedError(
                f"{self.run_uri}: attempt {self.number} has been replaced by attempt {newest}"
                f"{_who(self.run_uri, newest)} and may no longer commit"
            )
            raise self.displaced

    def start_heartbeat(self) -> None:
        """Starts to show other processes that this one is alive."""
        self._heartbeat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heartbeat.start()

    def release(self) -> None:
        """Ends the heartbeat and records the end, so that the next start need not wait.

        Records nothing if the storage does not answer. Then the next start waits.
        """
        self._ended.set()
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is None:
            return
        heartbeat.join(LEASE_SECONDS)
        if not heartbeat.is_alive():
            self._put(ended=True)

    def _beat(self) -> None:
        while True:
            self._put(ended=False)
            try:
                self.check()
            except FencedError:
                return
            except (StorageError, OSError) as error:
                logger.warning("%s: cannot check for a newer attempt: %s", self.run_uri, error)
            if self._ended.wait(self._pause):
                return

    def _put(self, *, ended: bool) -> None:
        beat = {"ended": ended, "beat": secrets.token_hex(8)}
        try:
            storage.put_bytes(_beat_uri(self.run_uri, self.number), json.dumps(beat).encode())
        except (StorageError, OSError) as error:
            logger.warning("%s: cannot write the heartbeat: %s", self.run_uri, error)


def acquire_lease(run_uri: str, claimant: Claimant | None = None) -> RunLease:
    """Makes this process the owner of the run. Earlier attempts may no longer commit.

    Raises LeaseHeldError while another process owns the run, unless the claimant takes over. Raises
    FencedError when this job owned the run and another job has replaced it since.
    """
    claimant = claimant or Claimant()
    name = (claimant.name or secrets.token_hex(4)).lower()
    label = re.sub(r"[^a-z0-9-]+", "-", name).strip("-")[:40]
    owner = Owner(
        **asdict(HostProcess.current()),
        attempt=0,
        name=label,
        job=claimant.job,
        host=socket.gethostname(),
        seconds=claimant.seconds,
        time=int(time.time()),
    )
    while True:
        number = await_free(run_uri, claimant) + 1
        content = json.dumps(asdict(replace(owner, attempt=number)), sort_keys=True).encode()
        # If this fails, another start was faster. It may be alive, so the wait starts again.
        if storage.put_if_absent(_uri(run_uri, number), content):
            break
    logger.info("%s: this is attempt %d", run_uri, number)
    for old in _numbers(run_uri)[: -_KEEP - 1]:
        storage.delete(_beat_uri(run_uri, old))
        storage.delete(_uri(run_uri, old))
    lease = RunLease(run_uri, number, f"{number:06d}-{label}", claimant.seconds)
    lease.start_heartbeat()
    return lease


def await_free(run_uri: str, claimant: Claimant) -> int:
    """Waits until the newest attempt has ended or was silent for long enough. Returns its number, or 0.

    Changes nothing. Raises LeaseHeldError and FencedError as `acquire_lease` does.
    """
    while True:
        number = newest_attempt(run_uri)
        owner = _owner(run_uri, number) if number else None
        _refuse_displaced_job(run_uri, claimant, number, owner)
        same_job = claimant.job is not None and owner is not None and owner.job == claimant.job
        if number == (claimant.free_attempt or 0) or claimant.take_over or same_job:
            return number
        if _is_silent(run_uri, number, claimant, owner):
            return number


def _is_silent(run_uri: str, number: int, claimant: Claimant, owner: Owner | None) -> bool:
    """Watches attempt ``number`` until it has ended. False if a newer attempt appeared meanwhile.

    It has ended if its heartbeat file records that, if its process is dead, or if it was silent for long
    enough. Raises LeaseHeldError when it is alive.
    """
    seconds = max(claimant.seconds, LEASE_SECONDS if owner is None else owner.seconds)
    pause = min(1.0, seconds / _BEATS / 2)
    last, changes, silent, announced = _last_beat(run_uri, number), 0, 0.0, False
    while not _has_ended(last):
        if owner is not None and owner.is_dead():
            logger.info("%s: the process of attempt %d is dead", run_uri, number)
            return True
        if silent > seconds:
            logger.warning("%s: attempt %d%s: no heartbeat for %g s, so it counts as dead", run_uri, number,
                        _who(run_uri, number), seconds)  # fmt: skip
            return True
        if not announced:
            logger.warning("%s: attempt %d%s has not ended; watching its heartbeat for up to %g s", run_uri,
                        number, _who(run_uri, number), seconds)  # fmt: skip
            announced = True
        before = time.monotonic()
        time.sleep(pause)
        if newest_attempt(run_uri) != number:
            return False
        beat = _last_beat(run_uri, number)
        # A pause of this process, or of the storage, proves nothing about the owner.
        silent += min(time.monotonic() - before, 2 * pause)
        if beat != last:
            last, changes, silent = beat, changes + 1, 0.0
        if changes >= _BEATS_OF_THE_LIVING and not _has_ended(last):
            raise LeaseHeldError(
                f"{run_uri}: attempt {number}{_who(run_uri, number)} is {claimant.doing}; {claimant.advice}"
            )
    return True


def _refuse_displaced_job(run_uri: str, claimant: Claimant, number: int, owner: Owner | None) -> None:
    """Raises FencedError for the restart of a job whose run has a new owner, even if it took over once."""
    if claimant.job is None or (owner is not None and owner.job == claimant.job):
        return
    owners = {old: _owner(run_uri, old) for old in _numbers(run_uri)}
    own = [old for old, one in owners.items() if one is not None and one.job == claimant.job]
    if own:
        raise FencedError(
            f"{run_uri}: attempt {own[-1]} of this job has been replaced by attempt {number}"
            f"{_who(run_uri, number)}"
        )


def newest_attempt(run_uri: str) -> int:
    """The number of the newest attempt at the run, or 0 without one."""
    return max(_numbers(run_uri), default=0)


def _who(run_uri: str, number: int) -> str:
    """Host and process of an attempt, in parentheses. Empty if its file is missing or damaged."""
    owner = _owner(run_uri, number)
    return "" if owner is None else f" (host {owner.host}, process {owner.process})"


def _owner(run_uri: str, number: int) -> Owner | None:
    """The owner of an attempt, or None if its file is missing or damaged."""
    try:
        return _OWNER.validate_json(storage.read_bytes(_uri(run_uri, number)))
    except (FileNotFoundError, ValidationError):
        return None


def _last_beat(run_uri: str, number: int) -> bytes | None:
    """The current heartbeat, or None before the first one."""
    try:
        return storage.read_bytes(_beat_uri(run_uri, number))
    except FileNotFoundError:
        return None


def _has_ended(beat: bytes | None) -> bool:
    try:
        return beat is not None and json.loads(beat).get("ended") is True
    except (ValueError, AttributeError):
        return False


def _uri(run_uri: str, number: int) -> str:
    return storage.join(run_uri, "attempts", f"{number:06d}.json")


def _beat_uri(run_uri: str, number: int) -> str:
    return storage.join(run_uri, "attempts", f"{number:06d}.beat")


def _numbers(run_uri: str) -> list[int]:
    """The numbers of all attempts so far, ascending."""
    names = [info.uri.rsplit("/", 1)[-1] for info in storage.list_files(storage.join(run_uri, "attempts"))]
    matches = [_NAME.fullmatch(name) for name in names]
    return sorted(int(match.group(1)) for match in matches if match)
