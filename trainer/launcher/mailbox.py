"""Messages between the driver of a training under Ray and its first rank."""

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.jobs import shutdown
from cluster.ray_cluster.metrics import TrainingMetrics
from trainer.monitoring.records import LogRecord


class Mailbox:
    """An actor between the driver and rank 0: log records one way, stop requests the other way."""

    def __init__(self) -> None:
        self._records: list[LogRecord] = []
        self._stop = self._started = False
        self._controller: Any = None

    def keep_controller(self, controller: Any) -> None:
        """Keeps the handle of the actor in which Ray Train runs its loop, or drops it with None."""
        self._controller = controller

    def kill_controller(self) -> None:
        """Ends that actor, with its workers and all pending requests."""
        if self._controller is not None:
            ray.kill(self._controller)

    def start(self) -> None:
        """Reports that the workers have started."""
        self._started = True

    def post(self, record: LogRecord) -> None:
        """Keeps a record for the driver."""
        self._records.append(record)

    def drain(self) -> tuple[list[LogRecord], bool]:
        """Returns and removes all records, and whether workers have started since the last call."""
        drained = self._records, self._started
        self._records, self._started = [], False
        return drained

    def request_stop(self) -> None:
        """Requests the training to stop."""
        self._stop = True

    def stop_requested(self) -> bool:
        """Whether the driver has requested the training to stop."""
        return self._stop

    @classmethod
    def on_this_node(cls) -> Any:
        """A handle to a new mailbox on the driver's node, which ends with the driver."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(cls).options(num_cpus=0, scheduling_strategy=here).remote()


class MailboxClient:
    """The mailbox as one rank uses it: at most one request is open, and no call waits for an answer."""

    def __init__(self, actor: Any, metrics: TrainingMetrics, *, is_rank0: bool) -> None:
        self._actor, self._metrics, self._is_rank0 = actor, metrics, is_rank0
        self._request: Any = None
        self._stop = False
        if is_rank0:
            actor.start.remote()

    def post(self, record: LogRecord) -> None:
        """Sends a record to the driver and to Prometheus."""
        fields: Mapping[str, Any] = record.to_json()
        self._metrics(fields)
        self._actor.post.remote(record)

    def stop_requested(self) -> bool:
        """Whether this process or the driver has a request to stop."""
        if self._is_rank0 and not self._stop:
            self._poll()
        return self._stop or shutdown.requested()

    def _poll(self) -> None:
        if self._request is None:
            self._request = self._actor.stop_requested.remote()
        ready, _ = ray.wait([self._request], timeout=0)
        if ready:
            self._request = None
            try:
                self._stop = ray.get(ready[0])
            except ray.exceptions.RayActorError:
                # The driver has ended, and Ray will end this process soon.
                self._stop = True
