"""Runs the ranks under Ray Train, and restarts them when a process or a node dies.

The trainer writes its own checkpoints (trainer/checkpoint/store.py). Ray Train only learns where the
committed ones are, and uploads nothing. A restart reads our manifests, because Ray cannot skip a damaged
checkpoint. trainer/launcher/ray_storage.py keeps Ray's record of the run from interfering.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray._private.worker import get_dashboard_url
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
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import RayTrainCallback

from cluster.jobs import shutdown
from cluster.jobs.lease import Claimant, await_free
from cluster.ray_cluster.connection import connect
from cluster.ray_cluster.metrics import TrainingMetrics
from cluster.ray_cluster.resources import check_fits
from schemas.errors import BertmillError, PluginError, StorageError
from trainer.checkpoint.folders import newest_committed_step
from trainer.config import TrainConfig
from trainer.distributed.ranks import ranks_of_group
from trainer.hooks import Hooks
from trainer.launcher.mailbox import Mailbox, MailboxClient
from trainer.launcher.ray_storage import filesystem_of
from trainer.launcher.restarts import RestartBudget
from trainer.launcher.worker_group import (
    NodeLeavesError,
    ShareController,
    WorkerGroup,
    bundle_of,
    failed_step,
    failure_of,
    pause,
)
from trainer.monitoring.records import LogRecord
from trainer.run.loop import Outcome, train
from trainer.startup.setup import preflight

logger = logging.getLogger(__name__)

_COLLECTIVE_TIMEOUT = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
# A rank that hangs does not answer when its group shuts down either. Ray would wait for it for 30 seconds.
_GROUP_SHUTDOWN = ("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "10")
# For some seconds after a node died, Ray counts its CPUs. A group that is sized for them never starts, and
# Ray would wait for it for 60 seconds before it sizes the group again.
_GROUP_START = ("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")
_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"


class _StoppableBackend(_TorchBackend):  # type: ignore[misc]  # Ray is read without types
    """Ray's torch backend, whose workers shut down gracefully on SIGTERM.

    Ray runs the training in a second thread, and this in the main thread, where handlers can be installed.
    """

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        super().on_start(worker_group, backend_config)
        worker_group.execute(shutdown.install)

    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        # This runs in the process of Ray's controller, which does not inherit the driver's variable.
        os.environ.setdefault(*_GROUP_SHUTDOWN)
        super().on_shutdown(worker_group, backend_config)


@dataclass
class WorkerTorchConfig(TorchConfig):  # type: ignore[misc]  # Ray is read without types
    """Process group of the workers, with graceful shutdown."""

    @property
    def backend_cls(self) -> type[_StoppableBackend]:
        """The class that Ray uses to set up the workers."""
        return _StoppableBackend


class _Trainer(TorchTrainer):  # type: ignore[misc]  # Ray is read without types
    """Ray's trainer without processes that are of no use here, and take seconds of CPU time at each start.

    One is for Ray Data, but no rank reads a dataset of Ray Data (trainer/data/). One frees the resources of
    a killed controller. It asks the dashboard whether the controller lives, so without one it never ends.
    """

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        unused = (DatasetsCallback, *(() if get_dashboard_url() else (PlacementGroupCleanerCallback,)))
        return [each for each in super()._create_default_callbacks() if not isinstance(each, unused)]


def launch(config: TrainConfig, on_record: Callable[[LogRecord], None]) -> Outcome:
    """Trains on the cluster. ``on_record`` gets the records of rank 0's log.

    Raises BertmillError for an error that no restart can fix, StorageError after the last restart.
    """
    outcome: Outcome | BertmillError = fit(config, on_record).return_value
    if isinstance(outcome, BertmillError):
        raise outcome
    return outcome


def fit(config: TrainConfig, on_record: Callable[[LogRecord], None]) -> Result:
    """Ray's result: ``return_value`` is an Outcome or a BertmillError, ``checkpoint`` the last checkpoint.

    Raises BertmillError before training starts, StorageError after the last restart, Interrupted when a
    signal comes while there is nothing to save.
    """
    with shutdown.handled():
        with shutdown.interruptible():
            preflight(config)
            run = config.run
            # The workers of a second start might wait for those of the first one, or never get resources.
            free = await_free(run.uri, Claimant(take_over=run.take_over, seconds=run.lease_seconds))
            alone = connect()
            if alone:
                advice = "lower workers.num_workers, or set RAY_ADDRESS to a larger cluster"
                check_fits(bundle_of(config), config.workers.least, advice)
        # Without this, Ray's collectives would wait forever for a rank that hangs.
        os.environ[_COLLECTIVE_TIMEOUT] = str(config.workers.collective_timeout_seconds)
        if config.workers.least < config.workers.most:
            os.environ.setdefault(*_GROUP_START)
        logging.getLogger("ray.train").setLevel(logging.WARNING)
        with _without_watcher() if alone else nullcontext():
            return _fit_until_done(config, Mailbox.on_this_node(), free, on_record)


@contextmanager
def _without_watcher() -> Iterator[None]:
    """Ray Train starts no process that looks for nodes that will leave, unless the user asks for it.

    A cluster of this machine alone has no such node.
    """
    if _WATCHER in os.environ:
        yield
        return
    os.environ[_WATCHER] = "0"
    try:
        yield
    finally:
        del os.environ[_WATCHER]


def _fit_until_done(
    config: TrainConfig, mailbox: Any, free_attempt: int, on_record: Callable[[LogRecord], None]
) -> Result:
    """Starts the workers, and starts them again after each failure that the budget allows."""
    uri, job = config.run.uri, secrets.token_hex(8)
    budget = RestartBudget(uri, config.workers.max_failures)
    while True:
        group = WorkerGroup(_trainer_of(config, mailbox, job, free_attempt), config, mailbox, on_record)
        try:
            return group.run()
        except ray.train.TrainingFailedError as error:
            failure = failure_of(error, group.last_step)
            delay = budget.delay_after(failure, newest_committed_step(uri))
        logger.warning(
            "%s: restarting the workers%s: %s", uri, f" in {delay:g} s" if delay else "", failure.text
        )
        pause(delay)


def _trainer_of(config: TrainConfig, mailbox: Any, job: str, free_attempt: int) -> TorchTrainer:
    filesystem, path = filesystem_of(config.run.storage)
    workers = config.workers
    return _Trainer(
        work,
        train_loop_config={
            "config": config.model_dump(mode="json"),
            "mailbox": mailbox,
            "job": job,
            "free_attempt": free_attempt,
        },
        torch_config=WorkerTorchConfig(timeout_s=int(workers.collective_timeout_seconds)),
        scaling_config=ScalingConfig(
            num_workers=workers.least if workers.least == workers.most else (workers.least, workers.most),
            use_gpu=workers.use_gpu,
            resources_per_worker=bundle_of(config),
            elastic_resize_monitor_interval_s=workers.resize_seconds,
        ),
        run_config=RunConfig(
            name=config.run.name,
            storage_path=path,
            storage_filesystem=filesystem,
            checkpoint_config=CheckpointConfig(num_to_keep=config.checkpoints.keep),
            callbacks=[ShareController(mailbox)],
            # trainer/launcher/restarts.py decides about every restart.
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),
        ),
    )


def work(settings: dict[str, Any]) -> Outcome | BertmillError:
    """Runs in each Ray Train worker: returns the outcome, or an error that no restart can fix.

    Raises errors that a restart may fix, such as StorageError.
    """
    config = TrainConfig.model_validate(settings["config"])
    torch.set_num_threads(max(1, int(config.workers.cpus_per_worker)))
    device = ray.train.torch.get_device() if config.workers.use_gpu else torch.device("cpu")
    ranks = ranks_of_group(config.workers.collective_timeout_seconds, device)
    drain = _Drain()
    try:
        with TrainingMetrics(config.run.name) as metrics:
            mailbox = MailboxClient(settings["mailbox"], metrics, is_rank0=ranks.rank == 0)
            hooks = Hooks(
                mailbox.stop_requested,
                node_leaving=drain,
                on_record=mailbox.post,
                on_commit=register,
                job=settings["job"],
                free_attempt=settings["free_attempt"],
            )
            outcome = train(config, ranks, hooks)
    except StorageError:
        raise
    except Exception as error:
        # Plug-ins may fail on one rank alone, so their errors end the group, like unexpected ones.
        expected = isinstance(error, BertmillError) and not isinstance(error, PluginError)
        step_failure = None if expected else failed_step(error)
        if step_failure is not None:
            raise step_failure from error
        if isinstance(error, BertmillError):
            return BertmillError(str(error))
        raise
    if outcome.status == "stopped" and drain.node_leaving:
        # A normal return would end the job. Ray attributes an error shortly before a preemption to the
        # preemption and does not count it as a failure. A pending stop request reaches the next group.
        raise NodeLeavesError(
            f"step {outcome.step} is saved; a node is being removed, resuming on the others"
        )
    return outcome


def register(uri: str, step: int) -> None:
    """Registers a committed checkpoint with Ray Train, in place. All ranks must call it together."""
    place = ray.train.get_context().get_storage()
    path = filesystem_of(uri)[1]
    ray.train.report(
        {"step": step},
        checkpoint=Checkpoint(path, filesystem=place.storage_filesystem),
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )


class _Drain:
    """Whether Ray is about to remove a node of this group. All ranks get the answer of rank 0."""

    def __init__(self) -> None:
        self.node_leaving = False
        """Whether this was ever the case."""

    def __call__(self) -> bool:
        self.node_leaving = self.node_leaving or ray.train.get_preemption_info() is not None
        return self.node_leaving
