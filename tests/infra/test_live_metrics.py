"""Evaluates the dashboard on a real Prometheus that scrapes a real Ray with publishing workers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.ray_cluster import metrics
from tests.infra import dashboard
from tests.infra.prometheus import REPORTS, prometheus, query, rule_health, wait_for
from tests.infra.tools import ROOT
from tests.support.ray_head import RayHead, ray_head

# Publishes the metrics of a run and a build from a worker process, as rank 0 and the driver do.
PUBLISHER = """
import itertools, ray, time
from cluster.ray_cluster.metrics import BuildMetrics, TrainingMetrics
ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=0)
class Publisher:
    def __init__(self):
        # Set once and queried much later.
        self.run, self.build = TrainingMetrics("base"), BuildMetrics("wiki")
        self.run({"event": "started", "step": 0})
        self.build.planned("extract", 10)

    def say(self, step):
        self.run({"step": step, "tokens": step * 1000, "loss": 2.5, "mlm_loss": 2.0, "nsp_loss": 0.5,
             "mlm_accuracy": 0.5, "nsp_accuracy": 0.75, "lr": 1e-4, "grad_norm": 1.5,
             "tokens_per_second": 1234.0, "step_seconds": 0.5, "data_wait_share": 0.01, "mfu": 0.3,
             "packing_efficiency": 0.98, "skipped_steps": 2, "consecutive_failed_saves": 0,
             "checkpoint_seconds": 3.5,
             "languages": {"el": {"mlm_accuracy": 0.4, "nsp_accuracy": 0.7, "mlm_loss": 2.2}}})
        self.build.done("extract", step % 10, 5.0)

publisher = Publisher.remote()
for step in itertools.count(1):
    ray.get(publisher.say.remote(step))
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def publishing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    folder = tmp_path_factory.mktemp("ray")
    variables = {"PYTHONPATH": str(ROOT), **REPORTS}
    with ray_head(folder, variables=variables) as head:
        environment = {**head.environment, "RAY_ADDRESS": head.gcs}
        with (folder / "publisher.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PUBLISHER], env=environment, cwd=ROOT, stdout=log, stderr=log
            )
        try:
            yield head
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.ray
def test_dashboard_on_real_figures(publishing: RayHead, tmp_path: Path) -> None:
    with prometheus(tmp_path, f"127.0.0.1:{publishing.metrics_port}") as server:
        # Ray drops a gauge that is not set again for two reports, here four seconds. These steps take six.
        wait_for(server, "ray_bertmill_train_step > 30")
        for figure in metrics.ALL:
            found = wait_for(server, f"ray_{metrics.PREFIX}{figure.name}")
            expected = set(figure.labels) | ({"build"} if figure.name.startswith("build_") else {"run"})
            assert expected <= set(found[0]["metric"]), figure.name
        # There is no GPU, and nothing was spilled. A busy machine may skip a report. Then the next has it.
        absent = {"GPU in use/A", "Objects spilled/A"}
        values = {
            name: query(server, text) if name in absent else wait_for(server, text)
            for name, text in dashboard.expressions().items()
        }
        assert values["Loss/A"][0]["value"][1] == "2.5"
        assert values["Loss/A"][0]["metric"] == {"run": "base"}
        (language,) = values["Worst languages by MLM accuracy/A"]
        assert (language["metric"], language["value"][1]) == ({"run": "base", "lang": "el"}, "0.4")
        assert float(values["Age of the last checkpoint/A"][0]["value"][1]) >= 0
        wait_for(server, "bertmill:train_step > 0")
        health = rule_health(server)
        assert set(health.values()) <= {"ok", "unknown"}, health
        shown = {name: [sample["value"][1] for sample in result][:3] for name, result in values.items()}
        (tmp_path / "evaluated.json").write_text(json.dumps(shown, indent=1))
