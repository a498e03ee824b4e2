"""Submits jobs to a Ray that a real Prometheus scrapes, and evaluates dashboard and alerts on the results.

    python -m tests.infra.job_metrics --write       # benchmarks/results/dashboard.md and dashboard.html

Prometheus stores the metrics, so the expressions are evaluated afterwards, for every second of the run.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.infra import dashboard
from tests.infra.dashboard_page import page
from tests.infra.prometheus import REPORTS, Series, prometheus, query, query_range, rule_health
from tests.infra.tools import ROOT, find_tool
from tests.support.ray_head import RayHead, ray_head
from tests.support.submitted_jobs import build, copy_jobs, fail_build, submit_jobs

RESULTS = ROOT / "benchmarks" / "results"
# Data that is missing on a machine without GPU and with a corpus of one megabyte.
EXPLAINED = {
    "Waiting for data, packing, MFU/C": "the peak FLOP/s of a CPU are unknown, so a test sets the value",
    "Objects spilled/A": "nothing was spilled",
    "GPU in use/A": "no GPU",
}
_ATTEMPTS = 5
_THRESHOLD = re.compile(r" (?:==|>) (?:[\d.]+|Inf)")


@dataclass
class Evaluated:
    """The metrics of builds and a run below ``home`` in Prometheus: series by panel and by rule."""

    home: Path
    panels: dict[str, Series]
    rules: dict[str, Series]
    firing: dict[str, Series]
    health: dict[str, str]


@dataclass
class SubmittedJobs:
    """The home folder of the finished jobs, and the metrics in Prometheus, if installed."""

    home: Path
    evaluated: Evaluated | None


def rule_expressions() -> dict[str, str]:
    """Rule name -> expression. For an alert, the expression without its thresholds."""
    groups = yaml.safe_load((ROOT / "infra/prometheus/rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    texts = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules}
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    return {name: _THRESHOLD.sub("", text) if name in alerts else text for name, text in texts.items()}


def run(folder: Path) -> SubmittedJobs:
    """Submits the jobs to their own Ray, which Prometheus scrapes if installed. ``folder`` must be empty."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    # Like the environment of `ray start`, with this environment's python first and no path to the checkout.
    variables = {"PATH": path, "PYTHONPATH": "", **REPORTS}
    with ray_head(folder, 2, variables) as head:
        if find_tool("prometheus") is None:
            return SubmittedJobs(_submit_all(head, folder), None)
        with prometheus(folder, f"127.0.0.1:{head.metrics_port}") as server:
            began = time.time()
            home = _submit_all(head, folder)
            _until(lambda: _is_done(server, "instances"), lambda: build(head, folder))
            _until(lambda: _fires(server, "BertmillUnitsFailed"), lambda: fail_build(head, folder))
            return SubmittedJobs(home, _evaluate(server, home, began, time.time()))


def _submit_all(head: RayHead, folder: Path) -> Path:
    """Runs the jobs and, at the same time, a build that fails. Returns the jobs' home folder."""
    copy_jobs(folder)
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(fail_build, head, folder)
        home = submit_jobs(head, folder)
        failing.result()
    return home


def _until(seen: Callable[[], bool], again: Callable[[], object]) -> None:
    """Runs a job ``again`` until Prometheus has ``seen`` it. Raises TimeoutError after some attempts.

    Ray shows the metrics of a finished job for some seconds, which a busy machine may miss.
    """
    for _ in range(_ATTEMPTS):
        if seen():
            return
        again()
    raise TimeoutError("Prometheus has not seen the last figures of a job")


def _evaluate(server: str, home: Path, began: float, ended: float) -> Evaluated:
    def all_of(expressions: dict[str, str]) -> dict[str, Series]:
        return {name: query_range(server, text, began, ended) for name, text in expressions.items()}

    groups = yaml.safe_load((ROOT / "infra/prometheus/rules.yaml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    firing = {name: f'ALERTS{{alertname="{name}", alertstate="firing"}}' for name in alerts}
    return Evaluated(
        home, all_of(dashboard.expressions()), all_of(rule_expressions()), all_of(firing), rule_health(server)
    )


def _is_done(server: str, stage: str) -> bool:
    """Whether all units of the stage were reported as committed, so far or within ten scrapes."""
    share = dashboard.expressions()["Progress of the stages/A"]
    for _ in range(10):
        found = query(server, f"last_over_time(({share})[1d:1s])")
        if any(one["metric"].get("stage") == stage and float(one["value"][1]) == 1.0 for one in found):
            return True
        time.sleep(1)
    return False


def _fires(server: str, alert: str) -> bool:
    """Whether the alert has fired so far, or fires within ten scrapes."""
    series = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
    for _ in range(10):
        if query(server, f"last_over_time({series}[1d])"):
            return True
        time.sleep(1)
    return False


def logged(home: Path) -> list[dict[str, Any]]:
    """The metrics of all attempts in the run's own log."""
    paths = sorted(home.glob("runs/demo/*/metrics/attempt-*/rank-00000.jsonl"))
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [record for record in records if "event" not in record]


def table(seen: Evaluated) -> str:
    """Every expression with its result, in Markdown."""
    lines = ["| panel / query | expression | series | last values | |", "|---|---|---|---|---|"]
    lines += [
        _line(name, dashboard.expressions()[name], series, "" if series else EXPLAINED[name])
        for name, series in seen.panels.items()
    ]
    lines += ["", "| rule | expression | series | last values | fired |", "|---|---|---|---|---|"]
    for name, series in seen.rules.items():
        fired = "" if name not in seen.firing else "yes" if seen.firing[name] else "no"
        lines.append(_line(name, rule_expressions()[name], series, fired))
    return "\n".join(lines)


def _line(name: str, expression: str, series: Series, note: str) -> str:
    values = ", ".join(_last(one) for one in series)
    cell = expression.replace("|", "\\|")
    return f"| {name} | `{cell}` | {len(series)} | {values} | {note} |"


def _last(one: dict[str, Any]) -> str:
    labels = [text for key, text in sorted(one["metric"].items()) if key in ("build", "lang", "run", "stage")]
    value = f"{float(one['values'][-1][1]):.4g}"
    return f"{value} ({', '.join(labels)})" if labels else value


def main() -> None:
    """Runs the jobs, and prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write table and page to benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        seen = run(Path(folder)).evaluated
        if seen is None:
            parser.exit(2, "prometheus is missing\n")
    print(table(seen))
    if arguments.write:
        document = RESULTS / "dashboard.md"
        before, mark, _ = document.read_text(encoding="utf-8").partition("<!-- evaluated -->\n")
        document.write_text(before + mark + table(seen) + "\n", encoding="utf-8")
        (RESULTS / "dashboard.html").write_text(page(seen.panels, EXPLAINED), encoding="utf-8")


if __name__ == "__main__":
    main()
