"""Jobs submitted to a Ray that a real Prometheus scrapes; dashboard and alerts evaluated on that.

    python -m tests.infra.job_metrics --write       # benchmarks/results/dashboard.md and dashboard.html

Prometheus keeps what it saw, so the expressions are evaluated afterwards, at every second of the run.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checkout import copy_checkout
from tests.infra import dashboard
from tests.infra.dashboard_page import page
from tests.infra.prometheus import Series, prometheus, query_range, rule_health, wait_for
from tests.infra.tools import ROOT
from tests.pipeline.builds import DUMPS
from tests.ray_head import RayHead, ray_head

RESULTS = ROOT / "benchmarks" / "results"
STEPS = 40
# What a machine without GPU and a corpus of a megabyte cannot have.
EXPLAINED = {
    "Waiting for data, packing, MFU/C": "the peak arithmetic of a CPU is not known; fed by hand in a test",
    "Objects spilled/A": "nothing was spilled",
    "GPU in use/A": "no GPU",
}
_THRESHOLD = re.compile(r" (?:==|>) (?:[\d.]+|Inf)")


@dataclass
class Evaluated:
    """What Prometheus saw of builds and a run below ``home``; series by panel and by rule."""

    home: Path
    panels: dict[str, Series]
    rules: dict[str, Series]
    firing: dict[str, Series]
    health: dict[str, str]


def rule_expressions() -> dict[str, str]:
    """Every rule's expression by its name; of an alert what it compares, without its thresholds."""
    groups = yaml.safe_load((ROOT / "infra/prometheus/rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    texts = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules}
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    return {name: _THRESHOLD.sub("", text) if name in alerts else text for name, text in texts.items()}


def run(folder: Path) -> Evaluated:
    """Builds a part of the sample, trains on it, and fails to build a broken file; ``folder`` is empty."""
    checkout, home = copy_checkout(folder / "checkout"), folder / "home"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    variables = {"PATH": path, "PYTHONPATH": "", "RAY_metrics_report_interval_ms": "1000"}
    with (
        ray_head(folder, 2, variables) as head,
        prometheus(folder, f"127.0.0.1:{head.metrics_port}") as server,
    ):
        wait_for(server, 'up{job="ray"} == 1')
        began = time.time()
        _submit(head, checkout, "build", "configs/demo.yaml", _build_words(home))
        _submit(head, checkout, "pretrain", "configs/demo-train.yaml", _train_words(home))
        broken = folder / "broken.jsonl"
        broken.write_text('{"text": "A line."}\n{"text": "Not closed.\n')
        with pytest.raises(RuntimeError, match=r"broken\.jsonl"):
            _submit(head, checkout, "build", "configs/demo.yaml", _broken_words(home, broken))
        ended = time.time() + 5
        time.sleep(5)  # the last reports of Ray and the last scrape

        def all_of(expressions: dict[str, str]) -> dict[str, Series]:
            return {name: query_range(server, text, began, ended) for name, text in expressions.items()}

        groups = yaml.safe_load((ROOT / "infra/prometheus/rules.yaml").read_text())["groups"]
        alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
        firing = {name: f'ALERTS{{alertname="{name}", alertstate="firing"}}' for name in alerts}
        return Evaluated(
            home, all_of(dashboard.expressions()), all_of(rule_expressions()), all_of(firing),
            rule_health(server),
        )  # fmt: skip


def _build_words(home: Path) -> list[str]:
    files = [str(ROOT / f"sample/dumps/{name}.xml.bz2") for name in DUMPS]
    sources = [{"name": "wikipedia", "kind": "wikimedia", "paths": files}]
    return [
        f"--output={home}/corpus", f"--sources={json.dumps(sources)}", "--vocabulary.size=3000",
        "--vocabulary.min_count=1", "--instances.bucket_bytes=100000", "--instances.validation_share=0.1",
    ]  # fmt: skip


def _broken_words(home: Path, file: Path) -> list[str]:
    sources = [{"name": "notes", "kind": "jsonl", "lang": "en", "paths": [str(file)]}]
    return [f"--output={home}/broken", f"--sources={json.dumps(sources)}"]


def _train_words(home: Path) -> list[str]:
    phase = {
        "max_seq_length": 128, "steps": STEPS, "global_batch": 16, "micro_batch_tokens": 2048,
        "learning_rate": 1e-3,
    }  # fmt: skip
    return [
        f"--run.storage={home}/runs", f"--data.manifest={home}/corpus/manifest.json",
        f"--phases={json.dumps([phase])}", "--logging.every_steps=1", "--checkpoints.every_steps=10",
    ]  # fmt: skip


def _submit(head: RayHead, checkout: Path, kind: str, config: str, overrides: list[str]) -> None:
    words = [sys.executable, "-m", "bertmill", "submit", kind, "--config", config, "--", *overrides]
    for _ in range(60):
        done = subprocess.run(
            words, env={**head.environment, "PYTHONPATH": str(ROOT)}, cwd=checkout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "No available agent" not in done.stderr:
            break
        time.sleep(1)  # the agent that runs jobs starts some seconds after the cluster
    if done.returncode:
        raise RuntimeError(f"{kind} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def logged(home: Path) -> list[dict[str, Any]]:
    """The figures in the run's own log."""
    (path,) = home.glob("runs/*/metrics/attempt-*/rank-00000.jsonl")
    records = map(json.loads, path.read_text().splitlines())
    return [record for record in records if "event" not in record]


def table(seen: Evaluated) -> str:
    """Every expression with what it gave, in Markdown."""
    lines = ["| panel / query | expression | series | last values | |", "|---|---|---|---|---|"]
    lines += [
        _line(name, dashboard.expressions()[name], series, "" if series else EXPLAINED[name])
        for name, series in seen.panels.items()
    ]
    lines += ["", "| rule | what it looks at | series | last values | fired |", "|---|---|---|---|---|"]
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
    """Runs, and prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep table and page in benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metrics-") as folder:
        seen = run(Path(folder))
    print(table(seen))
    if arguments.write:
        document = RESULTS / "dashboard.md"
        before, mark, _ = document.read_text(encoding="utf-8").partition("<!-- evaluated -->\n")
        document.write_text(before + mark + table(seen) + "\n", encoding="utf-8")
        (RESULTS / "dashboard.html").write_text(page(seen.panels, EXPLAINED), encoding="utf-8")


if __name__ == "__main__":
    main()
