"""Joins a Ray cluster or starts one on this machine, and silences Ray messages that would flood the log."""

import logging
import os
import secrets
from pathlib import Path
from typing import Any

import ray

from cluster.jobs import shutdown
from cluster.storage.retries import one_line
from schemas.errors import ClusterError, ConfigError

LOCAL_SETTINGS = {
    # By default Ray stops a worker process that is idle for a second, but starting one takes seconds of CPU
    # time. A small build would spend most of its time on starts.
    "idle_worker_killing_time_threshold_ms": 60_000,
    # By default Ray adds 15 to the niceness of its workers. If another process keeps each core busy at
    # niceness 0, Linux gives the workers 36 of 1,060 parts of the CPU (sched_prio_to_weight). They are then
    # 29 times slower instead of 2 times.
    "worker_niceness": 0,
}
# With fewer CPUs than this, reserving one would waste a large share of them.
_FEW_CPUS = 8
_RESERVED_SHARE = 0.1
_TOKEN_VARIABLES = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
_START_ATTEMPTS = 5
_SLOW_START = "timed out during startup"
_TOKEN_SETUP = "ray._private.authentication.authentication_token_setup"

logger = logging.getLogger(__name__)


def _is_not_about_tokens(record: logging.LogRecord) -> bool:
    """A log filter that drops Ray's warning about token authentication, which this module enables."""
    return not record.getMessage().startswith("Token authentication is enabled")


def connect(num_cpus: int | None = None, object_store_bytes: int | None = None) -> bool:
    """Joins the cluster that RAY_ADDRESS names (``ray job submit`` sets it), or starts one on this machine.

    ``num_cpus`` and ``object_store_bytes`` are the size of a new cluster. Does nothing in a process that has
    already joined a cluster. Returns True if it started a cluster, which will not grow.

    Raises ConfigError when no cluster answers at RAY_ADDRESS, ClusterError when Ray cannot start.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = address == "local"
    if local:
        logging.getLogger(_TOKEN_SETUP).addFilter(_is_not_about_tokens)
        _provide_token()
    try:
        with shutdown.preserved():
            init_ray(
                address=address,
                # Loopback keeps other hosts out and survives network changes.
                **({"_node_ip_address": "127.0.0.1"} if local else {}),
                num_cpus=num_cpus if local else None,
                object_store_memory=object_store_bytes if local else None,
                include_dashboard=False if local else None,
                _system_config=LOCAL_SETTINGS if local else None,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    except ConnectionError as error:
        advice = "start it, or unset RAY_ADDRESS to use this machine"
        raise ConfigError(f"RAY_ADDRESS={address}: no Ray cluster answers; {advice}") from error
    except (OSError, RuntimeError, KeyError) as error:
        # For example, the user id has no account, or temporary files lack space or permission.
        where = "on this machine" if local else f"with RAY_ADDRESS={address}"
        raise ClusterError(f"Ray could not start {where}: {one_line(error)}") from error
    return local


def init_ray(**settings: Any) -> Any:
    """Calls ray.init, and repeats it if a busy machine exceeds Ray's limit of 30 seconds for its processes.

    Raises ClusterError after five attempts. Processes of a failed start end with this process.
    """
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            return ray.init(**settings)
        except Exception as error:
            # Ray raises a bare Exception here, so only its text identifies it (ray/_private/node.py).
            if _SLOW_START not in str(error):
                raise
            logger.warning(
                "Ray did not start within its limit of 30 s (attempt %d of %d): the machine is busy",
                attempt, _START_ATTEMPTS,
            )  # fmt: skip
    raise ClusterError(
        f"Ray could not start on this machine in {_START_ATTEMPTS} attempts of 30 s; "
        "end other processes, or use fewer CPUs"
    )


def _provide_token() -> None:
    """Gives Ray a token for the cluster that it starts if the home folder cannot hold one."""
    if _TOKEN_VARIABLES & os.environ.keys():
        return
    try:
        folder = Path.home() / ".ray"
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: HOME is unset and the user id has no account
        usable = False
    if not usable:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def quiet_ray_data() -> None:
    """Turns off Ray Data's progress bars and all of its console output except errors."""
    import ray.data

    for handler in logging.getLogger("ray.data").handlers:
        # Only Ray's own console handler, not one that other code has added.
        of_ray = type(handler).__module__.startswith("ray.")
        if of_ray and isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def use_all_cpus() -> None:
    """Lets one operator of Ray Data use (nearly) all CPUs of the cluster.

    By default Ray reserves half of the CPUs for later operators, but a stage has one operator. On larger
    clusters a small reservation remains, because it also limits how many tasks the driver starts at the same
    time and how much they leave in the object store.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.op_resource_reservation_ratio = _RESERVED_SHARE
    # A cluster without CPUs is still waiting for its nodes, and their number is unknown.
    context.op_resource_reservation_enabled = not 0 < ray.cluster_resources().get("CPU", 0.0) < _FEW_CPUS
