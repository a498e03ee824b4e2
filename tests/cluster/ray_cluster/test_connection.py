"""Tests Ray's start as a user sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from cluster.ray_cluster import connection
from schemas.errors import ClusterError

_CONNECT = """
from cluster.ray_cluster.connection import connect
connect(num_cpus=1, object_store_bytes=80_000_000)
import ray
from ray._private.authentication import authentication_token_setup as setup
print(ray.get(ray.remote(lambda: 42).remote()))
import os
print(ray.get(ray.remote(lambda: os.nice(0)).remote()) - os.nice(0))
setup._warn_token_auth_disabled()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_local_ray_is_quiet_when_protected_and_no_nicer_than_its_driver(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "RAY_memory_monitor_refresh_ms": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _CONNECT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "42\n0\n", done.stderr
    assert (tmp_path / ".ray/auth_token").exists()
    assert "Token authentication is enabled" not in done.stderr
    assert "Token authentication is disabled" in done.stderr


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_without_a_usable_home_ray_gets_a_token_of_this_process(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")  # so that the end of the test removes it
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    connection._provide_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    connection._provide_token()
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), KeyError("uid not found: 7")])
def test_a_ray_that_cannot_start_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ClusterError, match="Ray could not start on this machine: "):
        connection.connect()


@pytest.mark.parametrize(("failures", "calls"), [(2, 3), (5, 5)])
def test_a_start_that_a_busy_machine_slows_down_is_retried(
    failures: int, calls: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def start(**settings: object) -> None:
        seen.append(settings)
        if len(seen) <= failures:
            raise Exception("The current node timed out during startup. This could happen because ...")  # noqa: TRY002 - as Ray does

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    if failures < calls:
        assert connection.connect()
    else:
        with pytest.raises(ClusterError, match="could not start on this machine in 5 attempts of 30 s; end"):
            connection.connect()
    assert len(seen) == calls
    assert caplog.text.count("Ray did not start within its limit of 30 s") == failures
