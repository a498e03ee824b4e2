"""Checks rules, configs and dashboard with promtool, and tests that mistakes are caught."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from cluster.ray_cluster import metrics
from tests.infra import dashboard
from tests.infra.kubernetes import faults, render
from tests.infra.tools import ROOT, run_tool

FOLDER = ROOT / "infra" / "prometheus"
# Ray's own metrics on the dashboard. The live test covers those of a machine without GPU.
RAYS_OWN = {
    "ray_node_cpu_utilization", "ray_node_mem_used", "ray_node_mem_total", "ray_node_gpus_utilization",
    "ray_spill_manager_objects_bytes",
}  # fmt: skip


def _copy(folder: Path) -> Path:
    shutil.copytree(FOLDER, folder / "prometheus")
    return folder / "prometheus"


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_rules_are_valid_and_do_what_their_tests_say() -> None:
    check = run_tool("promtool", "check", "rules", str(FOLDER / "rules.yaml"))
    assert check.returncode == 0, check.stdout + check.stderr
    tests = run_tool("promtool", "test", "rules", str(FOLDER / "rules_test.yaml"))
    assert tests.returncode == 0, tests.stdout + tests.stderr


def test_the_prometheus_operator_gets_the_same_rules_and_finds_the_pods() -> None:
    resources = {one["kind"]: one for one in render(FOLDER / "operator")}
    assert [fault for one in resources.values() for fault in faults(one)] == []
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    assert resources["PrometheusRule"]["spec"]["groups"] == groups
    monitor = resources["PodMonitor"]["spec"]
    (scrape,) = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())["scrape_configs"]
    by_label, by_port, renamed = scrape["relabel_configs"]
    ((label, value),) = monitor["selector"]["matchLabels"].items()
    source = "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)
    assert (by_label["source_labels"], by_label["regex"]) == ([source], value)
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert by_port["regex"] == endpoint["port"]
    assert endpoint["relabelings"] == [
        {"sourceLabels": renamed["source_labels"], "targetLabel": renamed["target_label"]}
    ]


def test_every_alert_is_tested_to_fire_and_to_be_quiet() -> None:
    rules = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    cases = [
        case
        for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
        for case in test.get("alert_rule_test", [])
    ]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    # The loss alert is quiet for the run `fine` of the same test.
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts - {
        "BertmillLossNotFinite"
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[15m]) == 0 and", "[15m]) < 5 and"),
        ("train_data_wait_share[10m])) > 0.1", "train_data_wait_share[10m])) > 0.01"),
        ("train_skipped_steps[30m])) > 5", "train_skipped_steps[30m])) > 500"),
        ("timestamp_seconds) > 3600", "timestamp_seconds) > 36000"),
        (
            "max by (run) (ray_bertmill_train_consecutive_failed_saves) > 0",
            "max by (run) (ray_bertmill_train_consecutive_failed_saves) > 2",
        ),
        ("max by (build, stage) (ray_bertmill_build_units_failed) > 0", "vector(0) > 0"),
        ("and bertmill:build_units_left > 0", ""),
        ('up{job="ray"} == 0', "up == 0"),
        ("expr: max by (run) (ray_bertmill_train_step)\n", "expr: min by (run) (ray_bertmill_train_step)\n"),
        ("ray_bertmill_train_loss != ray_bertmill_train_loss or ", ""),
    ],
)
def test_a_wrong_rule_fails_its_unit_tests(tmp_path: Path, old: str, new: str) -> None:
    folder = _copy(tmp_path)
    _change(folder / "rules.yaml", old, new)
    assert run_tool("promtool", "check", "rules", str(folder / "rules.yaml")).returncode == 0
    assert run_tool("promtool", "test", "rules", str(folder / "rules_test.yaml")).returncode != 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max by (run) (", "max by (run) "),
        ("severity: critical", "severity: [critical]"),
        ("  - name: bertmill-build", "  - nam: bertmill-build"),
    ],
)
def test_a_broken_rule_file_is_refused(tmp_path: Path, old: str, new: str) -> None:
    folder = _copy(tmp_path)
    _change(folder / "rules.yaml", old, new)
    assert run_tool("promtool", "check", "rules", str(folder / "rules.yaml")).returncode != 0


def test_rules_use_metrics_that_we_publish() -> None:
    names = set(re.findall(r"\bray_bertmill_\w+", (FOLDER / "rules.yaml").read_text()))
    assert names <= {f"ray_{metrics.PREFIX}{figure.name}" for figure in metrics.ALL}


def _without_kubernetes(text: str) -> str:
    """Debian's promtool lacks Kubernetes discovery, so a fixed target replaces that block."""
    config = yaml.safe_load(text)
    for job in config["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None):
            job["static_configs"] = [{"targets": ["127.0.0.1:8080"]}]
    return yaml.safe_dump(config)


@pytest.mark.parametrize("name", ["prometheus.yaml", "kubernetes.yaml"])
def test_configs(tmp_path: Path, name: str) -> None:
    folder = _copy(tmp_path)
    (folder / name).write_text(_without_kubernetes((folder / name).read_text()))
    check = run_tool("promtool", "check", "config", str(folder / name))
    assert check.returncode == 0, check.stdout + check.stderr
    _change(folder / name, "scrape_interval", "scrape_intervall")
    assert run_tool("promtool", "check", "config", str(folder / name)).returncode != 0


def _check_expressions(folder: Path, expressions: dict[str, str]) -> bool:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions.values())]
    path = folder / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    return run_tool("promtool", "check", "rules", str(path)).returncode == 0


def test_every_expression_of_the_dashboard_parses(tmp_path: Path) -> None:
    expressions = dashboard.expressions()
    assert len(expressions) > 20
    assert not [text for text in expressions.values() if "$" in text]
    assert _check_expressions(tmp_path, expressions)
    assert not _check_expressions(
        tmp_path, {**expressions, "broken": "max by (run) (ray_bertmill_train_step"}
    )


def test_dashboard_shows_metrics_that_exist_and_all_of_ours() -> None:
    shown = set().union(*map(dashboard.metric_names, dashboard.expressions().values()))
    ours = {f"ray_{metrics.PREFIX}{figure.name}" for figure in metrics.ALL}
    assert shown - ours == RAYS_OWN
    # Not every metric needs a panel, but removing a panel must be deliberate.
    unseen = {name.removeprefix("ray_bertmill_") for name in ours - shown}
    assert unseen == {"train_tokens", "train_checkpoint_seconds", "train_language_nsp_accuracy",
                      "train_language_mlm_loss", "build_stage_rate"}  # fmt: skip


def test_dashboard_panels_do_not_overlap_and_have_unique_ids() -> None:
    panels = dashboard.load()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells
        assert place["x"] + place["w"] <= 24
        cells |= own
    assert json.dumps(panels).count("legendFormat") == len(dashboard.expressions())
