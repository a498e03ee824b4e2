"""One group of workers under Ray Train, from the request for its CPUs to its result.

Ray's call blocks for as long as the training runs, and for as long as CPUs are missing. So it runs in a
thread. The main thread stays free for signals, and logs what is missing.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.train import PreemptionError, Result, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback

from cluster.jobs import shutdown
from cluster.ray_cluster.resources import BETWEEN_LINES, UNTIL_FIRST_LINE, shortage
from schemas.errors import ClusterError
from trainer.config import TrainConfig
from trainer.launcher.restarts import Failure
from trainer.monitoring.records import LogRecord, Ready, StepRecord
from trainer.run.loop import STEP_NOTE

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 1.5
"""Seconds in which starting workers must react to a stop request."""
_LOOK_SECONDS = 5.0
"""Seconds between two looks at the nodes while an elastic group starts."""
_END_SECONDS = 30.0
"""How long Ray's call may take to end after its controller was killed."""
_STEP_FAILED = re.compile(r"optimizer step (\d+) failed: ")


class StepFailedError(Exception):
    """An optimizer step raised an error. The text names the step."""


class NodeLeavesError(Exception):
    """A node of the group is about to leave. The group restarts on the others."""


def failed_step(error: Exception) -> StepFailedError | None:
    """``error`` with the optimizer step in its text, or None if it was not raised in a step."""
    steps = [match[1] for note in getattr(error, "__notes__", ()) if (match := STEP_NOTE.fullmatch(note))]
    if not steps:
        return None
    return StepFailedError(f"optimizer step {steps[0]} failed: {type(error).__name__}: {error}")


def bundle_of(config: TrainConfig) -> dict[str, float]:
    """What Ray reserves for one worker."""
    workers = config.workers
    return {"CPU": workers.cpus_per_worker, **({"GPU": 1.0} if workers.use_gpu else {})}


def pause(seconds: float) -> None:
    """Waits. Raises Interrupted when a signal arrives meanwhile, or arrived before."""
    end = time.monotonic() + seconds
    while True:
        shutdown.raise_if_requested("stopped between two starts of the workers")
        if time.monotonic() >= end:
            return
        time.sleep(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))


def look_at_nodes() -> Any:
    """Makes the actor that sizes Ray's elastic groups read the list of nodes. Returns the request.

    By itself it reads the list every 20 seconds. After a node died, Ray would wait that long for its CPUs.
    Returns None before the first elastic group, which creates the actor.
    """
    name = "AutoscalingCoordinator"
    try:
        coordinator = ray.get_actor(name, namespace=name)
    except ValueError:
        return None
    return coordinator.get_reserved_resources.remote(__name__, recompute=True)


class ShareController(ControllerCallback):  # type: ignore[misc]  # Ray is read without types
    """Passes the handle of Ray Train's controller, which Ray does not expose, to the driver."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_controller_start(self, train_run_context: Any) -> None:
        """Runs in the controller."""
        del train_run_context
        ray.get(self._mailbox.keep_controller.remote(ray.get_runtime_context().current_actor))


class WorkerGroup:
    """Runs a trainer of Ray Train, and passes on the records of rank 0."""

    def __init__(
        self,
        trainer: TorchTrainer,
        config: TrainConfig,
        mailbox: Any,
        on_record: Callable[[LogRecord], None],
    ) -> None:
        self.last_step: int | None = None
        """Step of the last line of the log."""
        self._trainer, self._config, self._mailbox = trainer, config, mailbox
        self._on_record = on_record
        self._started, self._ready = False, False
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> Result:
        """The result of the training.

        Raises TrainingFailedError, ClusterError when the workers' resources do not become available in time.
        Interrupted when a signal comes before the first step. A later one ends the training gracefully.
        """
        fit = threading.Thread(target=self._fit, name="ray-train", daemon=True)
        fit.start()
        listener = threading.Thread(target=self._listen, name="progress", daemon=True)
        listener.start()
        try:
            self._watch()
        finally:
            self._end(fit)
            self._ended.set()
            listener.join()
            self._mailbox.keep_controller.remote(None)
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101 - or there was an error
        return self._result

    def _end(self, fit: threading.Thread) -> None:
        """Ends Ray's call. Otherwise it would block until it has the CPUs, and crash at the program's end."""
        deadline = time.monotonic() + _END_SECONDS
        while not self._ended.is_set() and time.monotonic() < deadline:
            # Repeatedly, because the controller may still be starting.
            self._mailbox.kill_controller.remote()
            self._ended.wait(_POLL_SECONDS)
        fit.join(_END_SECONDS)

    def _fit(self) -> None:
        try:
            self._result = self._trainer.fit()
        except BaseException as error:
            self._error = error
        self._ended.set()

    def _listen(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(0.5)
            records, started = ray.get(self._mailbox.drain.remote())
            self._started = self._started or started
            for record in records:
                self._ready = self._ready or isinstance(record, Ready)
                if isinstance(record, StepRecord):
                    self.last_step = record.step
                self._on_record(record)

    def _watch(self) -> None:
        """Returns when the training has ended."""
        started, stop_requested_at = time.monotonic(), None
        limit = self._config.workers.start_timeout_seconds
        next_line = started + min(UNTIL_FIRST_LINE, limit or UNTIL_FIRST_LINE)
        next_look = started if self._config.workers.least < self._config.workers.most else math.inf
        while not self._ended.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now > next_look:
                seconds = self._config.workers.resize_seconds
                next_look = now + (seconds if self._started else min(seconds, _LOOK_SECONDS))
                look_at_nodes()
            if stop_requested_at is None and shutdown.requested():
                stop_requested_at = now
                self._mailbox.request_stop.remote()
            if stop_requested_at is not None and not self._ready and now > stop_requested_at + _GRACE_SECONDS:
                raise shutdown.Interrupted(self._place())
            if not self._started and now > next_line:
                next_line = now + BETWEEN_LINES
                self._log_missing_resources(now - started, limit)

    def _place(self) -> str:
        missing = None if self._started else self._missing()
        return f"stopped while waiting for {missing}" if missing else "stopped before the first step"

    def _missing(self) -> str | None:
        return shortage(bundle_of(self._config), self._config.workers.least)

    def _log_missing_resources(self, seconds: float, limit: float | None) -> None:
        missing = self._missing()
        if missing is None:
            return
        if limit is not None and seconds > limit:
            raise ClusterError(
                f"{self._config.run.uri}: waited {seconds:.0f} s for {missing}; lower workers.num_workers or"
                " workers.cpus_per_worker, add nodes, or raise workers.start_timeout_seconds"
            )
        logger.warning("%s: waiting for %s (%.0f s)", self._config.run.uri, missing, seconds)


def failure_of(error: Exception, last_step: int | None) -> Failure:
    """Ray's report about the end of a group of workers, shortened."""
    if isinstance(error, PreemptionError):
        return Failure("a node was removed", preempted=True)
    failures = dict(error.worker_failures) if isinstance(error, WorkerGroupError) else {}
    # Ray reports the death of a process as a failure of its health check.
    failures = {rank: getattr(cause, "health_check_failure", cause) for rank, cause in failures.items()}
    if any(isinstance(e, NodeLeavesError) or getattr(e, "preempted", False) for e in failures.values()):
        return Failure("a node was removed", preempted=True)
    # The death of a process explains the errors of processes that communicated with it.
    dead = {
        rank: cause for rank, cause in failures.items() if isinstance(cause, ray.exceptions.RayActorError)
    }
    for rank, cause in sorted((dead or failures).items()):
        text, step = f"rank {rank}: {_last_line(cause)}", _STEP_FAILED.search(str(cause))
        if dead:
            return Failure(text, rank, last_step, died=True)
        return Failure(text, rank, int(step[1]) if step else None)
    return Failure(_last_line(error))


def _last_line(error: BaseException) -> str:
    """The last line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
