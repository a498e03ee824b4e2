"""The reference page of logs and metrics: the training log and the Prometheus gauges of both jobs."""

import inspect
from collections.abc import Iterator
from typing import get_args

import model_tables

from cluster.ray_cluster import metrics
from trainer.monitoring.records import AnyEvent, StepRecord


def _events() -> dict[str, str]:
    """Event -> its meaning."""
    union, *_ = get_args(AnyEvent)
    return {
        name: inspect.getdoc(kind) or ""
        for kind in get_args(union)
        for name in get_args(kind.model_fields["event"].annotation)
    }


def page() -> str:
    """The Markdown of the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Logs and metrics", "")
    yield "A training run writes the same figures to three places: JSON Lines, TensorBoard and Prometheus."
    yield "`logging.trackers` adds Weights & Biases and MLflow."
    yield from ("", "## The training log", "")
    yield ("Each rank writes `RUN/metrics/attempt-N/rank-R.jsonl`. A line is an event, or it holds the "
           "figures of the steps since the last line. `logging.every_steps` sets the interval.")  # fmt: skip
    yield from ("", *model_tables.sections(StepRecord, "Figures", 3))
    yield from ("### Events", "", "| event | meaning |", "|---|---|")
    yield from (f"| `{name}` | {text} |" for name, text in _events().items())
    yield from ("", "## TensorBoard", "")
    yield ("`RUN/tensorboard` holds every numeric field under its name, languages as `languages/CODE/FIELD` "
           "and held-out figures as `held_out/CODE/FIELD`. wandb and MLflow get the same.")  # fmt: skip
    yield from ("", "## Prometheus", "")
    yield ("Ray exports these gauges from both jobs. Every gauge has the label `run` or `build`. "
           "[infra/prometheus](../../infra/prometheus/prometheus.yaml) holds scrape configs and alerts, "
           "`infra/grafana/dashboard.json` a dashboard. Ray reports every ten seconds. A build on "
           "a cluster waits that long before it ends, so that its last figures are seen.")  # fmt: skip
    yield from ("", "| gauge | labels | meaning |", "|---|---|---|")
    for figure in metrics.ALL:
        labels = ", ".join(f"`{label}`" for label in figure.labels)
        yield f"| `ray_{metrics.PREFIX}{figure.name}` | {labels} | {figure.text} |"
    yield ""
