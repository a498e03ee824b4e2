"""Runs the ranks under Ray Train, which starts them again when a process or a node dies.

Checkpoints are ours (trainer/checkpoint.py); Ray Train is told where those that are committed lie, without an
upload. A restart asks our manifests and not Ray, which cannot pass over a damaged checkpoint; how Ray's own
record of the run is kept from standing in the way is in trainer/ray_storage.py.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import ray
import torch
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.torch.config import _TorchBackend
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.metrics import TrainingMetrics
from cluster.ray_connection import connect
from schemas.errors import BertmillError, StorageError
from trainer import stopping
from trainer.config import TrainConfig
from trainer.hooks import Hooks
from trainer.loop import run_uri, train
from trainer.metrics import Record
from trainer.prepare import preflight
from trainer.ranks import joined
from trainer.ray_storage import filesystem_of

_COLLECTIVE_TIMEOUT = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
# A rank that hangs does not answer when its group is taken down either, and Ray would wait for 30 seconds.
_GROUP_SHUTDOWN = ("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "10")


class Switchboard:
    """An actor between the driver and rank 0: records one way, the wish to stop the other way."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._stop = False

    def say(self, record: dict[str, Any]) -> None:
        """Keeps a record for the driver."""
        self._records.append(record)

    def take(self) -> list[dict[str, Any]]:
        """All records since the last call."""
        taken, self._records = self._records, []
        return taken

    def stop(self) -> None:
        """Wishes that the training stops."""
        self._stop = True

    def stop_wanted(self) -> bool:
        """Whether it is to stop."""
        return self._stop

    @classmethod
    def on_this_node(cls) -> Any:
        """A handle to a new one beside the driver, which lives as long as the driver does."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(cls).options(num_cpus=0, scheduling_strategy=here).remote()


class _StoppableBackend(_TorchBackend):  # type: ignore[misc]  # Ray is read without types
    """Ray's torch backend, whose workers take SIGTERM for a wish to stop.

    Ray runs the training in a second thread and this in the main thread, where handlers are installed.
    """

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(stopping.install)

    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        # In the process that Ray's controller is, which does not take this variable over from the driver.
        os.environ.setdefault(*_GROUP_SHUTDOWN)
        super().on_shutdown(worker_group, backend_config)


@dataclass
class WorkerTorchConfig(TorchConfig):  # type: ignore[misc]  # Ray is read without types
    """Process group of the workers, with signals."""

    @property
    def backend_cls(self) -> type[_StoppableBackend]:
        """What Ray calls to set the workers up."""
        return _StoppableBackend


def launch(config: TrainConfig, progress: Callable[[Record], None]) -> dict[str, Any]:
    """Trains on the cluster; the outcome as a mapping. ``progress`` gets the records of rank 0's log.

    Raises BertmillError for what no restart could mend, StorageError when the restarts are used up.
    """
    outcome: dict[str, Any] = fit(config, progress).return_value
    if "error" in outcome:
        raise BertmillError(outcome["error"])
    return outcome


def fit(config: TrainConfig, progress: Callable[[Record], None]) -> Result:
    """The training as Ray sees it: ``return_value`` is the outcome or an error, ``checkpoint`` the last one.

    Raises BertmillError before the begin, StorageError when the restarts are used up.
    """
    preflight(config)
    workers = config.workers
    connect()
    # Ray's own collectives would wait for a rank that hangs for ever.
    os.environ[_COLLECTIVE_TIMEOUT] = str(workers.collective_timeout_seconds)
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    board = Switchboard.on_this_node()
    filesystem, path = filesystem_of(config.run.storage)
    trainer = TorchTrainer(
        work,
        train_loop_config={"config": config.model_dump(mode="json"), "board": board},
        torch_config=WorkerTorchConfig(timeout_s=int(workers.collective_timeout_seconds)),
        scaling_config=ScalingConfig(
            num_workers=workers.num_workers,
            use_gpu=workers.use_gpu,
            resources_per_worker={"CPU": workers.cpus_per_worker, **({"GPU": 1} if workers.use_gpu else {})},
        ),
        run_config=RunConfig(
            name=config.run.name,
            storage_path=path,
            storage_filesystem=filesystem,
            checkpoint_config=CheckpointConfig(num_to_keep=config.checkpoints.keep),
            failure_config=FailureConfig(max_failures=workers.max_failures),
        ),
    )
    with _Listener(board, progress):
        try:
            return trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise StorageError(f"{run_uri(config)}: training failed: {_cause(error)}") from error


class _Listener:
    """Prints what rank 0 says, and passes SIGTERM on to the workers, while the trainer runs."""

    def __init__(self, board: Any, progress: Callable[[Record], None]) -> None:
        self._board, self._progress = board, progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="progress", daemon=True)
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._stop)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._board.stop.remote()

    def _listen(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(0.5)
            for record in ray.get(self._board.take.remote()):
                self._progress(record)


def _cause(error: BaseException) -> str:
    """The last line of the innermost error that Ray passes on."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def work(settings: dict[str, Any]) -> dict[str, Any]:
    """What each Ray Train worker runs: the outcome, or an error that no restart can mend.

    Raises what a restart may mend, among it StorageError.
    """
    config = TrainConfig.model_validate(settings["config"])
    torch.set_num_threads(max(1, int(config.workers.cpus_per_worker)))
    device = ray.train.torch.get_device() if config.workers.use_gpu else torch.device("cpu")
    ranks = joined(config.workers.collective_timeout_seconds, device)
    drain = _Drain()
    try:
        with TrainingMetrics(config.run.name) as metrics:
            board = _Board(settings["board"], metrics, first=ranks.rank == 0)
            hooks = Hooks(board.stop_wanted, drained=drain, echo=board.say, committed=register)
            outcome = train(config, ranks, hooks)
    except StorageError:
        raise
    except BertmillError as error:
        return {"error": str(error)}
    if outcome.status == "stopped" and drain.seen:
        # To end well would end the job. An error in the time before a preemption is one to Ray, and is
        # counted apart from failures; a wish to stop that came as well is heard by the next group.
        raise NodeLeavesError(f"step {outcome.step} is saved; going on without the node that leaves")
    return asdict(outcome)


def register(uri: str, step: int) -> None:
    """Lets Ray Train know a committed checkpoint where it lies; all ranks together."""
    place = ray.train.get_context().get_storage()
    path = filesystem_of(uri)[1]
    ray.train.report(
        {"step": step},
        checkpoint=Checkpoint(path, filesystem=place.storage_filesystem),
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )


class _Board:
    """The switchboard as one rank uses it; asks at most once in a while, and never waits for an answer."""

    def __init__(self, actor: Any, metrics: TrainingMetrics, *, first: bool) -> None:
        self._actor, self._metrics, self._first = actor, metrics, first
        self._asked: Any = None
        self._stop = False

    def say(self, record: Record) -> None:
        """Passes a record on to the driver and to Prometheus."""
        self._metrics(record)
        self._actor.say.remote(record)

    def stop_wanted(self) -> bool:
        """Whether this process or the driver has been told to end."""
        if self._first and not self._stop:
            self._listen()
        return self._stop or stopping.wanted()

    def _listen(self) -> None:
        if self._asked is None:
            self._asked = self._actor.stop_wanted.remote()
        ready, _ = ray.wait([self._asked], timeout=0)
        if ready:
            self._asked = None
            try:
                self._stop = ray.get(ready[0])
            except ray.exceptions.RayActorError:
                # The driver is gone, and Ray is about to end this process too.
                self._stop = True


class NodeLeavesError(Exception):
    """A node of the group will go away; Ray starts the group again on the others."""


class _Drain:
    """Whether Ray has been told that a node of this group will go away. Rank 0's answer is everybody's."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self) -> bool:
        self.seen = self.seen or ray.train.get_preemption_info() is not None
        return self.seen
