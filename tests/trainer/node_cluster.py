"""A Ray of several nodes for a test or benchmark, which controls tests/trainer/several_nodes.py."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from cluster.ray_cluster.connection import LOCAL_SETTINGS
from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS


def environment() -> dict[str, str]:
    """The variables of this process, and those for a temporary Ray."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_TRAIN_V2_ENABLED": "1",
        # By default Ray checks every two seconds for a failure, and every five for a node that will leave.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
        # How long a group waits for the CPUs of a node that has died, and for workers that do not answer.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "2",
        "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "1",
        # It looks for dead nodes every three seconds.
        "RAY_health_check_period_ms": "500",
        # Otherwise the workers have a niceness of 15, and other tests beside these slow them down many times.
        **{f"RAY_{name}": str(value) for name, value in LOCAL_SETTINGS.items()},
        "RAY_memory_monitor_refresh_ms": "0",
    }


class Nodes:
    """A separate Ray of nodes with one CPU each and a head without. ``extra`` are their variables."""

    def __init__(self, count: int = 3, extra: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.several_nodes", str(count)],
            cwd=ROOT,
            env={**environment(), **(extra or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return line.split(maxsplit=1)[1].strip()
        raise AssertionError("the cluster ended")

    def tell(self, command: str) -> None:
        """Sends a command and waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        self._answer()

    def end(self) -> None:
        """Ends every process of the cluster."""
        try:
            self._process.communicate("quit\n", timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
