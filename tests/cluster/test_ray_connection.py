"""What a user sees of Ray's start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CONNECT = """
from cluster.ray_connection import connect
connect(num_cpus=1, object_store_bytes=80_000_000)
import ray
from ray._private.authentication import authentication_token_setup as setup
print(ray.get(ray.remote(lambda: 42).remote()))
setup._warn_token_auth_disabled()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_protected_local_ray_is_no_warning_but_an_open_one_is(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "RAY_memory_monitor_refresh_ms": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _CONNECT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "42\n", done.stderr
    assert (tmp_path / ".ray/auth_token").exists()
    assert "Token authentication is enabled" not in done.stderr
    assert "Token authentication is disabled" in done.stderr
