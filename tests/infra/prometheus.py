"""Runs a real Prometheus with the repository's rules, and queries it."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.infra.tools import ROOT
from tests.support.s3_server import free_ports
from tests.support.waiting import HANG_SECONDS, wait_until

Series = list[dict[str, Any]]

REPORT_SECONDS = 2
"""Between two reports of Ray's processes, and two scrapes. With one second, Ray's agent, which adds up the
reports and answers the scrapes, takes a third of a core."""
REPORTS = {"RAY_metrics_report_interval_ms": str(1000 * REPORT_SECONDS)}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Scrapes ``target`` every REPORT_SECONDS. Yields the server's URL. Skips the test without Prometheus."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    (port,) = free_ports(1)
    rules = (ROOT / "infra/prometheus/rules.yaml").read_text()
    # With an interval of half a minute, the rules would not see a run of one minute twice.
    (folder / "rules.yaml").write_text(rules.replace("interval: 30s", "interval: 1s"))
    config = {
        "global": {"scrape_interval": f"{REPORT_SECONDS}s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with (folder / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            [program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    server = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _is_ready(server), what="Prometheus")
        yield server
    finally:
        process.kill()
        process.wait()


def _is_ready(server: str) -> bool:
    """Whether the server answers. At first it refuses connections and returns 503."""
    try:
        return requests.get(f"{server}/-/ready", timeout=300).ok
    except requests.ConnectionError:
        return False


def query(server: str, expression: str) -> Series:
    """The current value of ``expression``, as series with a ``value``."""
    return _ask(server, "query", query=expression)


def query_range(server: str, expression: str, start: float, end: float) -> Series:
    """The values of ``expression`` at every second of an interval, as series with ``values``."""
    return _ask(server, "query_range", query=expression, start=start, end=end, step=1)


def _ask(server: str, what: str, **words: Any) -> Series:
    answer = requests.get(f"{server}/api/v1/{what}", params=words, timeout=300).json()
    assert answer["status"] == "success", answer
    result: Series = answer["data"]["result"]
    return result


def rule_health(server: str) -> dict[str, str]:
    """Rule -> "ok", "unknown" (not evaluated yet) or "err"."""
    groups = requests.get(f"{server}/api/v1/rules", timeout=300).json()["data"]["groups"]
    return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


def wait_for(server: str, expression: str) -> Series:
    """The value of ``expression``, once it has one."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        if found := query(server, expression):
            return found
        time.sleep(0.5)
    raise AssertionError(f"{expression}: no sample")
