"""Submits the two jobs to a Ray cluster, follows their output and hands on their exit status.

A job has a stable name. Ray refuses a submission id that it has seen, so the attempts of a job are
``name``, ``name-2``, ``name-3``...; a new attempt is refused while the last one is still going,
because two copies of one job would write to one place.
"""

import asyncio
import hashlib
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from cluster import retries, storage
from schemas.errors import ClusterError, ConfigError, StorageError

_NAME_LENGTH = 60


@dataclass(frozen=True)
class Job:
    """What is run: ``words`` is the command line, ``runtime_env`` what Ray prepares for it."""

    name: str
    words: tuple[str, ...]
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def job_name(kind: str, config_uri: str, config: bytes, overrides: Sequence[str]) -> str:
    """``kind-stem-hash``: equal for equal configs, so that a job is found again by its config."""
    digest = hashlib.sha256(b"\0".join([config, *(text.encode() for text in overrides)])).hexdigest()
    stem = config_uri.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    clean = "".join(character if character.isalnum() else "-" for character in stem)
    return f"{kind}-{clean[:_NAME_LENGTH]}-{digest[:8]}"


def read_runtime_env(uri: str, working_dir: Path | None, variables: Mapping[str, str]) -> dict[str, Any]:
    """The runtime environment in the YAML file ``uri``, with the working directory and more variables.

    Raises ConfigError when the file is missing, is not a mapping, or sets a working directory itself.
    """
    try:
        data = yaml.safe_load(storage.read_bytes(uri))
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such runtime environment file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{uri}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{uri}: a runtime environment is a mapping")
    if "working_dir" in data:
        raise ConfigError(f"{uri}: working_dir: give it on the command line")
    data["env_vars"] = {**data.get("env_vars", {}), **variables}
    if working_dir is None:
        data.pop("excludes", None)
        return data
    return {**data, "working_dir": str(working_dir)}


def connect(address: str | None) -> JobSubmissionClient:
    """A client of the cluster's dashboard; ``None`` means RAY_ADDRESS, else http://127.0.0.1:8265.

    Raises ClusterError when nothing answers there or the token is refused.
    """
    # Ray says which ignore files it honoured, once for each and twice over.
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is not None:
        os.environ["RAY_ADDRESS"] = address  # which Ray prefers to the argument
    with _plain_errors(address or os.environ.get("RAY_ADDRESS", "http://127.0.0.1:8265")):
        return JobSubmissionClient(address)


@contextmanager
def _plain_errors(where: str) -> Iterator[None]:
    """Ray explains over many lines, sometimes with a traceback of the server: keep what says why."""
    try:
        yield
    except OSError as error:  # of requests, of aiohttp, and Ray's own ConnectionError
        raise ClusterError(f"{where}: no Ray dashboard answers there") from error
    except AuthenticationError as error:
        reason = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token"
        raise ClusterError(f"{where}: the cluster refused us; {reason}") from error
    except (RuntimeError, ValueError) as error:
        raise ClusterError(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" \t.")]
    return lines[-1] if lines else type(error).__name__


def attempts(name: str, jobs: Sequence[JobDetails]) -> dict[int, JobDetails]:
    """The submissions of job ``name`` by attempt number, out of all the cluster's jobs."""
    found: dict[int, JobDetails] = {}
    for job in jobs:
        submission = job.submission_id or ""
        if submission == name:
            found[1] = job
        elif submission.startswith(f"{name}-") and submission[len(name) + 1 :].isdigit():
            found[int(submission[len(name) + 1 :])] = job
    return found


def next_submission_id(name: str, jobs: Sequence[JobDetails]) -> str:
    """The id of the next attempt. Raises ClusterError while the last attempt is still going."""
    past = attempts(name, jobs)
    for job in past.values():
        if not JobStatus(job.status).is_terminal():
            raise ClusterError(
                f"{job.submission_id} is {job.status.lower()} already; follow it with: "
                f"bertmill submit follow {job.submission_id}"
            )
    return f"{name}-{max(past) + 1}" if past else name


def submit(client: JobSubmissionClient, job: Job) -> str:
    """Starts ``job`` and returns its submission id at once.

    Raises ClusterError when the job is going already or the cluster refuses the submission.
    """
    with _plain_errors(job.name):
        submission = next_submission_id(job.name, client.list_jobs())
        client.submit_job(
            entrypoint=shlex.join(job.words),
            submission_id=submission,
            runtime_env=dict(job.runtime_env),
            metadata={**job.metadata, "bertmill_job": job.name},
            # The driver only hands out work: it must be able to start on a full cluster and on a
            # head that declares no CPUs.
            entrypoint_num_cpus=0,
        )
    return submission


def follow(client: JobSubmissionClient, submission: str, write: Callable[[str], object]) -> JobDetails:
    """Hands every piece of the job's output to ``write`` until the job ends; returns how it ended.

    A connection that breaks is opened again, and what was written is not written twice: a job of
    days outlives many of them. Raises ClusterError when the cluster does not come back for two minutes.
    """
    with _plain_errors(submission):
        client.get_job_info(submission)  # the log's connection does not say why it refuses
    output = _Output(write)
    attempts_left = retries.Attempts(f"{submission}: follow")
    while True:
        try:
            asyncio.run(output.tail(client, submission))
            details = client.get_job_info(submission)
            if JobStatus(details.status).is_terminal():
                output.rest(client.get_job_logs(submission))
                return details
            attempts_left.succeeded()
        except (OSError, aiohttp.ClientError) as error:
            _wait(attempts_left, error)
        except RuntimeError as error:
            if "WebSocket" not in str(error):
                raise ClusterError(f"{submission}: {_reason(error)}") from error
            _wait(attempts_left, error)


def _wait(attempts_left: retries.Attempts, error: Exception) -> None:
    try:
        attempts_left.failed(error)
    except StorageError as spent:
        raise ClusterError(f"{spent}; the job may still be going") from error


class _Output:
    """Writes a log that is read from its start again and again, each character once."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._written = 0

    async def tail(self, client: JobSubmissionClient, submission: str) -> None:
        """Writes what is new of the running job's log, until the log's connection closes."""
        seen = 0
        async for text in client.tail_job_logs(submission):
            self._fresh(text[max(0, self._written - seen) :])
            seen += len(text)

    def rest(self, log: str) -> None:
        """Writes what is new of the finished job's whole log."""
        self._fresh(log[self._written :])

    def _fresh(self, text: str) -> None:
        if text:
            self._write(text)
            self._written += len(text)


def exit_status(details: JobDetails) -> int:
    """0 for a job that succeeded; its own exit status when it failed, 1 when it has none or was stopped."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    code = details.driver_exit_code
    return code if isinstance(code, int) and 0 < code < 256 else 1


def stop(client: JobSubmissionClient, submission: str) -> bool:
    """Asks a job to end (SIGTERM, so that a training run saves first); False if it had ended."""
    with _plain_errors(submission):
        return bool(client.stop_job(submission))
