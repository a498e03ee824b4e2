"""A separate Ray head with token authentication, started by ``ray start`` and stopped by its pids."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from cluster.ray_cluster.connection import LOCAL_SETTINGS
from tests.support.s3_server import free_ports
from tests.support.waiting import HANG_SECONDS


@dataclass(frozen=True)
class RayHead:
    """The address of the head, and the environment of its clients."""

    dashboard: str
    gcs: str
    metrics_port: int
    environment: dict[str, str]


@contextmanager
def ray_head(folder: Path, num_cpus: int = 2, variables: dict[str, str] | None = None) -> Iterator[RayHead]:
    """Starts a head on the loopback interface. All its processes share a separate session."""
    gcs, dashboard, client, metrics, agent = free_ports(5)
    # Ray's sockets are below its temporary folder, and a socket's path may have 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))
    # A job's `python` is the one that the head's PATH finds first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ, "PATH": path, **(variables or {}),
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_memory_monitor_refresh_ms": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0",
        # At the end of a test there is nothing to drain.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # Ray Train checks its workers at every start and end, by default every two seconds.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        # As in a Ray that a job starts itself.
        **{f"RAY_{name}": str(value) for name, value in LOCAL_SETTINGS.items()},
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    ray = shutil.which("ray", path=path)
    assert ray is not None
    command = [
        ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}",
        "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}",
        f"--metrics-export-port={metrics}", f"--dashboard-agent-listen-port={agent}",
        f"--num-cpus={num_cpus}", "--object-store-memory=200000000", f"--temp-dir={temporary}",
    ]  # fmt: skip
    with (folder / "head.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    address = f"http://127.0.0.1:{dashboard}"
    environment["RAY_ADDRESS"] = address
    try:
        _wait_ready(address, environment["RAY_AUTH_TOKEN"], process, folder / "head.log")
        yield RayHead(address, f"127.0.0.1:{gcs}", metrics, environment)
    finally:
        _end(process)
        shutil.rmtree(temporary, ignore_errors=True)


def _wait_ready(address: str, token: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    headers = {"Authorization": f"Bearer {token}"}
    while True:
        with suppress(requests.RequestException):
            if requests.get(f"{address}/api/jobs/", headers=headers, timeout=60).ok:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"ray start did not become ready:\n{log.read_text()[-3000:]}")
        time.sleep(0.3)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the head and all that it started: they share its session, or are its descendants."""
    import psutil

    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    if process.poll() is None:
        process.kill()
        process.wait()
