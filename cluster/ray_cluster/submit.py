"""Submits the two jobs to a Ray cluster, follows their output and returns their exit status.

A job has a stable name. Ray rejects a submission id that it has seen, so the attempts of a job are
``name``, ``name-2``, ``name-3`` and so on. A new attempt cannot start while the last one is running, because
two copies of a job would write to the same output.
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

from cluster import storage
from cluster.storage import retries
from schemas.errors import ClusterError, ConfigError, StorageError

_NAME_LENGTH = 60


@dataclass(frozen=True)
class Job:
    """A job to submit."""

    name: str
    command: tuple[str, ...]
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """Ray's runtime environment: working directory, variables, packages."""
    metadata: Mapping[str, str] = field(default_factory=dict)


def job_name(kind: str, config_uri: str, config: bytes, overrides: Sequence[str]) -> str:
    """``kind-stem-hash``. Equal configs have equal names, so that a config identifies its job."""
    digest = hashlib.sha256(b"\0".join([config, *(text.encode() for text in overrides)])).hexdigest()
    stem = config_uri.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    clean = "".join(character if character.isalnum() else "-" for character in stem)
    return f"{kind}-{clean[:_NAME_LENGTH]}-{digest[:8]}"


def read_runtime_env(uri: str, working_dir: Path | None, variables: Mapping[str, str]) -> dict[str, Any]:
    """The runtime environment in the YAML file ``uri`` with a working directory and variables added.

    Raises ConfigError when the file is missing, is not a mapping, or sets a working directory itself.
    """
    try:
        data = yaml.safe_load(storage.read_bytes(uri))
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such runtime environment file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{uri}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{uri}: a runtime environment must be a mapping")
    if "working_dir" in data:
        raise ConfigError(f"{uri}: working_dir: not allowed here; use --working-dir")
    data["env_vars"] = {**data.get("env_vars", {}), **variables}
    if working_dir is None:
        data.pop("excludes", None)
        return data
    return {**data, "working_dir": str(working_dir)}


def connect(address: str | None) -> JobSubmissionClient:
    """A client of the cluster's dashboard. None means RAY_ADDRESS, or http://127.0.0.1:8265 without it.

    Raises ClusterError when nothing answers there or the token is refused.
    """
    # Ray logs twice which ignore files it has applied.
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address is not None:
        os.environ["RAY_ADDRESS"] = address  # takes precedence over the argument in Ray
    with _plain_errors(address or os.environ.get("RAY_ADDRESS", "http://127.0.0.1:8265")):
        return JobSubmissionClient(address)


@contextmanager
def _plain_errors(where: str) -> Iterator[None]:
    """Reduces Ray's multi-line messages, which may include a server traceback, to the reason."""
    try:
        yield
    except OSError as error:  # of requests, of aiohttp, and Ray's own ConnectionError
        raise ClusterError(f"{where}: no Ray dashboard answers; check --address or RAY_ADDRESS") from error
    except AuthenticationError as error:
        reason = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token"
        raise ClusterError(f"{where}: the cluster refused the credentials; {reason}") from error
    except (RuntimeError, ValueError) as error:
        raise ClusterError(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" \t.")]
    return lines[-1] if lines else type(error).__name__


def attempts(name: str, jobs: Sequence[JobDetails]) -> dict[int, JobDetails]:
    """The submissions of job ``name`` by attempt number, from all ``jobs`` of the cluster."""
    by_number: dict[int, JobDetails] = {}
    for job in jobs:
        submission = job.submission_id or ""
        if submission == name:
            by_number[1] = job
        elif submission.startswith(f"{name}-") and submission[len(name) + 1 :].isdigit():
            by_number[int(submission[len(name) + 1 :])] = job
    return by_number


def next_submission_id(name: str, jobs: Sequence[JobDetails]) -> str:
    """The id of the next attempt. Raises ClusterError while an attempt is running."""
    past = attempts(name, jobs)
    for job in past.values():
        if not JobStatus(job.status).is_terminal():
            raise ClusterError(
                f"{job.submission_id} is already {job.status.lower()}; follow it with: "
                f"bertmill submit follow {job.submission_id}"
            )
    return f"{name}-{max(past) + 1}" if past else name


def submit(client: JobSubmissionClient, job: Job) -> str:
    """Submits ``job`` and returns its submission id.

    Raises ClusterError when the job is already running or the cluster refuses the submission.
    """
    with _plain_errors(job.name):
        submission = next_submission_id(job.name, client.list_jobs())
        client.submit_job(
            entrypoint=shlex.join(job.command),
            submission_id=submission,
            runtime_env=dict(job.runtime_env),
            metadata={**job.metadata, "bertmill_job": job.name},
            # The driver only starts tasks. It must run on a full cluster and on a head node without CPUs.
            entrypoint_num_cpus=0,
        )
    return submission


def follow(client: JobSubmissionClient, submission: str, write: Callable[[str], object]) -> JobDetails:
    """Passes the job's output to ``write`` until the job ends. Returns its final details.

    It reopens broken connections, which are common in jobs that run for days, and writes nothing twice.
    Raises ClusterError when the cluster does not answer for two minutes.
    """
    with _plain_errors(submission):
        client.get_job_info(submission)  # the connection for logs gives no reason when it is refused
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
        raise ClusterError(f"{spent}; the job may still be running") from error


class _Output:
    """Writes each character of a log once, although each connection sends the log from its start."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._written = 0

    async def tail(self, client: JobSubmissionClient, submission: str) -> None:
        """Writes the new part of the running job's log until the connection closes."""
        seen = 0
        async for text in client.tail_job_logs(submission):
            self._fresh(text[max(0, self._written - seen) :])
            seen += len(text)

    def rest(self, log: str) -> None:
        """Writes the new part of the finished job's log."""
        self._fresh(log[self._written :])

    def _fresh(self, text: str) -> None:
        if text:
            self._write(text)
            self._written += len(text)


def exit_status(details: JobDetails) -> int:
    """0 if the job succeeded, its exit status if it failed, 1 if it was stopped or has no exit status."""
    if details.status == JobStatus.SUCCEEDED:
        return 0
    code = details.driver_exit_code
    return code if isinstance(code, int) and 0 < code < 256 else 1


def stop(client: JobSubmissionClient, submission: str) -> bool:
    """Stops a job with SIGTERM, so that a training run saves first. False if the job had ended."""
    with _plain_errors(submission):
        return bool(client.stop_job(submission))
