"""Joins a Ray cluster or starts one on this machine, and turns off what floods a job's log."""

import logging
import os

import ray

from schemas.errors import ConfigError

_REDUCE_WAIT_SECONDS = 300.0
# Ray ends a worker process that has been idle for a second, and starting one takes seconds of a core: the
# stages of a small build would spend most of their time on it.
_IDLE_WORKER_MILLISECONDS = 60_000
# On fewer CPUs than this, one that is kept free for the next step is a large share of them.
_FEW_CPUS = 8
_RESERVED_SHARE = 0.1
_TOKEN_SETUP = "ray._private.authentication.authentication_token_setup"


def _says_more_than_that_a_token_is_used(record: logging.LogRecord) -> bool:
    """Ray warns that it protects a cluster that it starts; that it does *not* is worth a warning."""
    return not record.getMessage().startswith("Token authentication is enabled")


def connect(num_cpus: int | None = None, object_store_bytes: int | None = None) -> None:
    """Joins the cluster that RAY_ADDRESS names (``ray job submit`` sets it), else starts one here.

    ``num_cpus`` and ``object_store_bytes`` size a cluster that is started here. Raises ConfigError
    when RAY_ADDRESS names a cluster that does not answer.
    """
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    local = address == "local"
    if local:
        logging.getLogger(_TOKEN_SETUP).addFilter(_says_more_than_that_a_token_is_used)
    try:
        ray.init(
            address=address,
            # Loopback: nobody else reaches a Ray of one machine, and no change of network disturbs it.
            **({"_node_ip_address": "127.0.0.1"} if local else {}),
            num_cpus=num_cpus if local else None,
            object_store_memory=object_store_bytes if local else None,
            include_dashboard=False if local else None,
            _system_config={"idle_worker_killing_time_threshold_ms": _IDLE_WORKER_MILLISECONDS}
            if local
            else None,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except ConnectionError as error:
        raise ConfigError(f"RAY_ADDRESS={address}: no Ray cluster answers there") from error


def quiet_ray_data() -> None:
    """Ray Data without progress bars; on the console its errors only, all else in its log file."""
    import ray.data

    for handler in logging.getLogger("ray.data").handlers:
        # Ray's own console handler, and not one that somebody else has put there.
        of_ray = type(handler).__module__.startswith("ray.")
        if of_ray and isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Ray waits half an hour for an object that nothing may ever compute again; a stage that is begun
    # again goes on from what it had committed.
    context.hash_shuffle_reduce_get_timeout_s = min(
        context.hash_shuffle_reduce_get_timeout_s, _REDUCE_WAIT_SECONDS
    )


def use_all_cpus() -> None:
    """Lets one step of Ray Data have (nearly) all CPUs of the cluster.

    By default half of them are kept for the steps that follow: of 12 CPUs a shuffle's first step gets 8 at
    most, of four two, of two one. But that step and the last have nearly all of a shuffle's work. Beyond a
    few CPUs a small reservation stays (10 of 12): it also bounds how many tasks the driver hands out at
    once, and what they may leave in the object store.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.op_resource_reservation_ratio = _RESERVED_SHARE
    # No CPU at all: nodes are still to come, and nobody knows how many.
    context.op_resource_reservation_enabled = not 0 < ray.cluster_resources().get("CPU", 0.0) < _FEW_CPUS
