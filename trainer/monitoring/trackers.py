"""Sends the metrics of a run to trackers outside of it: Weights & Biases and MLflow.

A tracker runs in a separate thread behind a queue, so a slow or failing one never delays training. All
attempts of a run use one run of the tracker. Steps that an attempt repeats after a resume are not sent again.
"""

import importlib.util
import json
import logging
import os
import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from cluster import storage
from cluster.storage import local_files
from schemas.errors import ConfigError
from schemas.json_text import parse_json
from schemas.redaction import public_fields
from trainer.distributed.ranks import Ranks
from trainer.monitoring.records import Ended, Evaluated, LogRecord, Started, StepRecord, numbers

logger = logging.getLogger(__name__)

ID_FILE = "tracker_id.json"
STEP, HELD_OUT_STEP = "step", "held_out/step"
_MLFLOW_URI = "MLFLOW_TRACKING_URI"
_QUEUE_LENGTH = 1000
_CLOSE_SECONDS = 60.0
"""How long the end of a run waits for a tracker."""


def check_trackers(names: Sequence[str], ranks: Ranks) -> None:
    """Raises ConfigError on all ranks when rank 0 lacks the package of a tracker, or MLflow's address."""
    error = None
    if ranks.rank == 0:
        try:
            _check(names)
        except ConfigError as caught:
            error = caught
    ranks.fail_together(error)


def _check(names: Sequence[str]) -> None:
    for name in names:
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"logging.trackers: the package {name} is not installed; pip install 'bertmill[{name}]'"
            )
    if "mlflow" in names and not os.environ.get(_MLFLOW_URI):
        raise ConfigError(
            f"logging.trackers: mlflow needs the address of its server in the environment of the workers:"
            f" {_MLFLOW_URI}=http://HOST:5000"
        )


class Tracker(ABC):
    """One run of a tracker. Any method may raise any error of the tracker's package."""

    @abstractmethod
    def open(self, run_id: str, record: Started) -> Mapping[str, float]:
        """Continues or creates the run with our ``run_id``, and returns the last STEP and HELD_OUT_STEP."""

    @abstractmethod
    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Records the metrics of a step."""

    @abstractmethod
    def close(self, status: str) -> None:
        """Ends the run as finished, stopped or failed."""


class Wandb(Tracker):
    """Weights & Biases.

    WANDB_MODE=offline writes to RUN/wandb, or to WANDB_DIR if the run is on remote storage.
    """

    def __init__(self, run_uri: str, name: str, project: str) -> None:
        local = storage.scheme(run_uri) == "file"
        self._folder = str(local_files.path_of(run_uri)) if local else None
        self._name, self._project = name, project
        self._sent: dict[str, float] = {}

    def open(self, run_id: str, record: Started) -> Mapping[str, float]:
        """See the base class."""
        import wandb

        # A prompt for the API key would wait forever, because a job has no terminal.
        settings = wandb.Settings(console="off", silent=True, login_timeout=30, disable_git=True)
        self._run = wandb.init(
            project=self._project,
            name=self._name,
            id=run_id,
            resume="allow",
            dir=self._folder,
            settings=settings,
        )
        self._run.config.update(record.config, allow_val_change=True)
        self._run.define_metric(STEP)
        # wandb's own counter of steps would refuse held-out metrics that come after those of the step.
        self._run.define_metric("*", step_metric=STEP)
        # Only a server can report the last step of a run. Offline, a note beside the files records it.
        self._note = Path(self._run.settings.wandb_dir) / f"{run_id}.steps.json"
        if self._run.settings.mode == "offline":
            self._sent = parse_json(self._note.read_bytes()) if self._note.exists() else {}
        else:
            summary = {name: self._run.summary.get(name) for name in (STEP, HELD_OUT_STEP)}
            self._sent = {name: value for name, value in summary.items() if value is not None}
        return dict(self._sent)

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """See the base class."""
        if self._run.settings.mode == "offline":
            self._sent |= {name: metrics[name] for name in (STEP, HELD_OUT_STEP) if name in metrics}
            # Before the metrics: a process that is killed in between loses a point instead of doubling it.
            self._note.write_text(json.dumps(self._sent))
        self._run.log({**metrics, STEP: step})

    def close(self, status: str) -> None:
        """See the base class."""
        self._run.finish(exit_code=int(status != "finished"))


class Mlflow(Tracker):
    """MLflow, at the address in MLFLOW_TRACKING_URI."""

    _STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}  # noqa: RUF012 - constant
    _TAG = "bertmill_run"
    # What a server accepts in one request, and in one parameter.
    _METRICS, _PARAMETERS, _VALUE = 1000, 100, 500

    def __init__(self, name: str, project: str) -> None:
        self._name, self._project = name, project

    def open(self, run_id: str, record: Started) -> Mapping[str, float]:
        """See the base class."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(self._project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._project)
        known = self._client.search_runs([number], f"tags.{self._TAG} = '{run_id}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return dict(known[0].data.metrics)
        run = self._client.create_run(number, run_name=self._name, tags={self._TAG: run_id})
        self._id = run.info.run_id
        parameters = [Param(name, str(value)[: self._VALUE]) for name, value in _leaves(record.config)]
        for some in _chunks(parameters, self._PARAMETERS):
            self._client.log_batch(self._id, params=some)
        return {}

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """See the base class."""
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        # The step comes first: requests that fail after it lose metrics instead of doubling them.
        ordered = sorted(metrics.items(), key=lambda item: item[0] not in (STEP, HELD_OUT_STEP))
        points = [Metric(name, value, now, step) for name, value in ordered]
        for some in _chunks(points, self._METRICS):
            self._client.log_batch(self._id, metrics=some)

    def close(self, status: str) -> None:
        """See the base class."""
        self._client.set_terminated(self._id, self._STATUS[status])


class TrackerThread:
    """Sends records to one tracker in the background, and counts what it loses."""

    def __init__(self, name: str, tracker: Tracker, run_uri: str) -> None:
        self.failures = 0
        """The number of records that were not sent."""
        self._name, self._tracker, self._run_uri = name, tracker, run_uri
        self._queue: queue.Queue[LogRecord | None] = queue.Queue(_QUEUE_LENGTH)
        self._started: Started | None = None
        self._sent: dict[str, float] | None = None
        """Last step by kind of record, or None before the tracker is open."""
        self._status, self._abandoned = "failed", False
        # A daemon: a tracker that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, record: LogRecord) -> None:
        """Queues a record to be sent. Drops it if the queue is full."""
        if isinstance(record, Started | StepRecord | Evaluated | Ended):
            try:
                self._queue.put_nowait(record)
            except queue.Full:
                self._count(1, f"more than {_QUEUE_LENGTH} records are waiting")

    def close(self) -> None:
        """Waits for the queue to drain, for a minute at most."""
        end = time.monotonic() + _CLOSE_SECONDS
        with suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._abandoned = True
            self._count(self._queue.qsize(), "the run has ended, and it does not answer")

    def _count(self, lost: int, reason: str) -> None:
        self.failures += lost
        if lost and self.failures == lost:
            logger.warning("%s: metrics are being lost: %s", self._name, reason)

    def _work(self) -> None:
        while not self._abandoned and (record := self._queue.get()) is not None:
            try:
                self._handle(record)
            except Exception as error:  # any error of a tracker's package
                self._count(1, " ".join(f"{type(error).__name__}: {error}".split())[:300])
        if self._sent is not None:
            try:
                self._tracker.close(self._status)
            except Exception as error:  # any error of a tracker's package
                self._count(1, " ".join(f"{type(error).__name__}: {error}".split())[:300])

    def _handle(self, record: LogRecord) -> None:
        if isinstance(record, Started):
            self._started = record.model_copy(update={"config": public_fields(record.config)})
        elif isinstance(record, Ended):
            self._status = record.event
            return
        if self._sent is None and self._started is not None:
            # Tried again with each record, until it works.
            self._sent = dict(self._tracker.open(_run_id(self._run_uri), self._started))
        if isinstance(record, StepRecord):
            self._send(numbers(record.to_json()), STEP, record.step)
        elif isinstance(record, Evaluated):
            metrics = numbers(record.groups())
            self._send({**metrics, HELD_OUT_STEP: float(record.step)}, HELD_OUT_STEP, record.step)

    def _send(self, metrics: Mapping[str, float], kind: str, step: int) -> None:
        if self._sent is not None and step > self._sent.get(kind, 0):
            self._tracker.send(metrics, step)
            self._sent[kind] = step


def open_trackers(names: Sequence[str], run_uri: str, name: str, project: str) -> list[TrackerThread]:
    """The trackers that ``names`` lists, except TensorBoard, which the log of the run writes itself."""
    trackers: dict[str, Tracker] = {"wandb": Wandb(run_uri, name, project), "mlflow": Mlflow(name, project)}
    return [TrackerThread(each, trackers[each], run_uri) for each in trackers if each in names]


def _run_id(run_uri: str) -> str:
    """The id of the run in every tracker. It is stored in the run's folder, so a new folder is a new run."""
    uri = storage.join(run_uri, ID_FILE)
    storage.put_if_absent(uri, json.dumps({"id": secrets.token_hex(8)}).encode())
    return str(parse_json(storage.read_bytes(uri))["id"])


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name -> value, of everything in nested mappings and lists."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
