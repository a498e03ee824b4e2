"""One local Ray for a test session."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RayCluster:
    """The addresses of the session's Ray."""

    address: str
    env: dict[str, str]


@contextmanager
def local_ray(num_cpus: int = 4, object_store_bytes: int = 400 << 20) -> Iterator[RayCluster]:
    """Starts Ray in this process tree, and ends it by its own handle only."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    # Ray Train checks its workers at every start, failure and end, by default every two seconds.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.5"
    # As in a Ray that a job starts itself: no node ever leaves (trainer/launcher/ray_train.py).
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
    # These waits are for processes that do not answer, and for resources that do not exist. Otherwise 10 s.
    os.environ["TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"] = "1"
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "4"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray spells it so
    # A job's `python` is the one that the cluster's PATH finds first.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    import ray

    from cluster.ray_cluster.connection import LOCAL_SETTINGS, init_ray

    context = init_ray(
        address="local",
        _node_ip_address="127.0.0.1",
        num_cpus=num_cpus,
        object_store_memory=object_store_bytes,
        include_dashboard=False,
        _system_config=LOCAL_SETTINGS,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        address = context.address_info["gcs_address"]
        yield RayCluster(address, {**os.environ, "RAY_ADDRESS": address})
    finally:
        ray.shutdown()
