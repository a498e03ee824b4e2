"""Evaluates every panel and alert on the metrics of real jobs in a real Prometheus."""

from pathlib import Path

import pytest

from cluster.ray_cluster import metrics
from tests.infra import dashboard, job_metrics
from tests.infra.dashboard_page import page
from tests.infra.prometheus import Series
from tests.infra.tools import run_tool
from tests.support.submitted_jobs import LONG_STEPS, STEPS


@pytest.fixture
def seen(submitted_jobs: job_metrics.SubmittedJobs) -> job_metrics.Evaluated:
    run_tool("prometheus", "--version")  # skips the test if it is missing
    assert submitted_jobs.evaluated is not None
    return submitted_jobs.evaluated


pytestmark = [pytest.mark.slow, pytest.mark.ray]


def _values(series: Series) -> list[float]:
    return [float(value) for one in series for _, value in one["values"]]


def test_every_query_has_data_or_an_explanation(seen: job_metrics.Evaluated) -> None:
    assert {name for name, series in seen.panels.items() if not series} <= set(job_metrics.EXPLAINED)
    # It detects runs that no longer report. Ray shows them for a minute after their end.
    assert {name for name, series in seen.rules.items() if not series} <= {"BertmillTrainingGone"}
    assert set(seen.health.values()) == {"ok"}


def test_the_failed_build_fires_its_alert_and_nothing_else_does(seen: job_metrics.Evaluated) -> None:
    assert {name for name, series in seen.firing.items() if series} == {"BertmillUnitsFailed"}
    (alert,) = seen.firing["BertmillUnitsFailed"]
    assert (alert["metric"]["build"], alert["metric"]["stage"]) == ("broken", "extract")
    assert len(seen.firing) == 10


def test_training_figures_are_those_of_the_log(seen: job_metrics.Evaluated) -> None:
    records = job_metrics.logged(seen.home)
    assert len(records) == STEPS + LONG_STEPS
    for panel, field in {
        "Step/A": "step",
        "Loss/A": "loss",
        "Loss/B": "mlm_loss",
        "Loss/C": "nsp_loss",
        "Accuracy/A": "mlm_accuracy",
        "Accuracy/B": "nsp_accuracy",
        "Throughput/A": "tokens_per_second",
        "Seconds per step/A": "step_seconds",
        "Skipped steps/A": "skipped_steps",
        "Gradient norm and learning rate/A": "grad_norm",
        "Waiting for data, packing, MFU/A": "data_wait_share",
        "Waiting for data, packing, MFU/B": "packing_efficiency",
    }.items():
        assert set(_values(seen.panels[panel])) <= {record[field] for record in records}, panel
    languages = {one["metric"]["lang"] for one in seen.panels["Worst languages by MLM accuracy/A"]}
    assert languages
    assert languages <= {lang for record in records for lang in record["languages"]}
    assert {one["metric"]["run"] for one in seen.panels["Loss/A"]} == {"bert-demo"}


def test_all_stages_of_the_build_are_seen_to_their_end(seen: job_metrics.Evaluated) -> None:
    progress = {
        one["metric"]["stage"]: [float(value) for _, value in one["values"]]
        for one in seen.panels["Progress of the stages/A"]
        if one["metric"]["build"] == "corpus"
    }
    assert set(progress) == {
        "templates", "template tables", "extract", "dedup-pages", "dedup-texts", "vocabulary", "instances",
    }  # fmt: skip
    assert {name for name, shares in progress.items() if shares[-1] == 1.0} == set(progress)
    failed = {one["metric"]["build"]: _values([one])[-1] for one in seen.panels["Failed units/A"]}
    assert failed == {"corpus": 0.0, "broken": 1.0}


def test_page_has_every_panel(seen: job_metrics.Evaluated) -> None:
    text = page(seen.panels, job_metrics.EXPLAINED)
    for panel in dashboard.load()["panels"]:
        assert not panel.get("targets") or panel["title"] in text
    assert text.count("Nothing was measured") == 0
    assert "no GPU" in text


def test_table_names_every_expression(seen: job_metrics.Evaluated, tmp_path: Path) -> None:
    text = job_metrics.table(seen)
    rows = len(dashboard.expressions()) + len(job_metrics.rule_expressions())
    assert sum(line.startswith("| ") for line in text.splitlines()) == rows + 2
    names = set().union(*map(dashboard.metric_names, dashboard.expressions().values()))
    assert all(name in text for name in names)
    assert metrics.PREFIX in text
