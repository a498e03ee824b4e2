"""The curves and scores of the first model for benchmarks/notes/first_model.md.

python -m benchmarks.recipe.first_model_results tasks results
python -m benchmarks.recipe.first_model_results run runs/first-model --to FILE.json --chart FILE.svg
"""

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.report.line_chart import Line, line_chart
from trainer.finetuning.records import SeedResult, read_record
from trainer.monitoring.history import read_history

Record = dict[str, Any]

_HELD_OUT = ("mlm_loss", "mlm_accuracy", "perplexity", "nsp_accuracy", "sequences", "masked_tokens")
_BARE_VALUE = re.compile(r"=([^\s\"'<>=]+)(?=[\s>])")
_STYLE = "font:12px sans-serif;background:#fff"
_STARTED = ("time", "attempt", "world_size", "step", "kernel", "parameters")


class Finetuned(BaseModel):
    """The part of a fine-tuning's results.json that the pages need."""

    seeds: tuple[SeedResult, ...]


def scores(folder: Path) -> dict[str, Any]:
    """Of ``folder``/MODEL-TASK-SEED/results.json: each metric by model, task and set, over the seeds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*/results.json")):
        model, task, _ = path.parent.name.rsplit("-", 2)
        for one in read_record(Finetuned, str(path), "run the fine-tuning again").seeds:
            sets = {"validation": one.validation, **one.test}
            for name, figures in sets.items():
                for metric, value in figures.items():
                    found[f"{model} {task}"][f"{name} {metric}"].append(value)
    return {
        key: {name: _spread(values) for name, values in figures.items()}
        for key, figures in sorted(found.items())
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.fmean(values), 4),
        "deviation": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "seeds": len(values),
    }


def run_summary(run: str, every: int) -> dict[str, Any]:
    """Curves, held-out figures, starts and rates of a run, with a point for each ``every`` steps."""
    history = read_history(run)
    events: dict[str, list[Record]] = defaultdict(list)
    for event in history.events:
        events[event.event].append(event.to_json())
    rates: dict[int, list[Record]] = defaultdict(list)
    for record in history.steps:
        rates[record.max_seq_length].append(record.to_json())
    return {
        "config": events["started"][0]["config"],
        "started": [{name: one[name] for name in _STARTED} for one in events["started"]],
        "ready": events["ready"],
        "skipped": [one["step"] for one in events["skipped"]],
        "training": [_point(one.to_json()) for one in history.steps if one.step % every == 0],
        "held_out": [
            {
                "step": one.step,
                **{
                    group: {
                        name: round(value, 4)
                        for name, value in figures.model_dump(exclude_none=True).items()
                        if name in _HELD_OUT
                    }
                    for group, figures in one.held_out.items()
                },
            }
            for one in history.held_out
        ],
        "rates": {str(length): _rates(records) for length, records in rates.items()},
    }


def _point(record: Record) -> dict[str, float]:
    names = ("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy", "lr", "grad_norm")
    return {
        "step": record["step"],
        **{name: float(f"{record[name]:.5g}") for name in names if name in record},
    }


def _rates(records: list[Record]) -> dict[str, float]:
    """Medians over the lines of the log, so that a line with a measurement or a save does not count more."""

    def median(name: str) -> float:
        return float(f"{statistics.median(one[name] for one in records if name in one):.5g}")

    rows = statistics.median(one["global_batch"] / one["step_seconds"] for one in records)
    names = ("tokens_per_second", "data_wait_share", "packing_efficiency", "step_seconds", "mfu")
    seen = {name: median(name) for name in names if any(name in one for one in records)}
    return {"lines": len(records), "rows_per_second": round(rows, 1), **seen}


def chart(summary: dict[str, Any]) -> str:
    """The training and held-out loss of masked tokens by step, as an SVG."""
    training = [(one["step"], one["mlm_loss"]) for one in summary["training"]]
    held_out = [
        Line(f"held out, {group}", [(one["step"], one[group]["mlm_loss"]) for one in summary["held_out"]])
        for group in summary["held_out"][-1]
        if group not in ("step", "all")
    ]
    svg = line_chart([Line("training", training), *held_out], "step")
    # As a file it must be XML, which requires quotes around every value.
    svg = _BARE_VALUE.sub(r'="\1"', svg)
    return svg.replace("<svg ", f"<svg xmlns='http://www.w3.org/2000/svg' style='{_STYLE}' ", 1) + "\n"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_tasks = commands.add_parser("tasks", help="scores of the fine-tunings")
    of_tasks.add_argument("folder", type=Path)
    of_run = commands.add_parser("run", help="curves of the pretraining")
    of_run.add_argument("run")
    of_run.add_argument("--every", type=int, default=100, help="steps between points of the curve")
    of_run.add_argument("--to", type=Path, help="a JSON file")
    of_run.add_argument("--chart", type=Path, help="an SVG file")
    arguments = parser.parse_args()
    if arguments.command == "tasks":
        print(json.dumps(scores(arguments.folder), indent=1))
        return 0
    summary = run_summary(arguments.run, arguments.every)
    text = json.dumps(summary, indent=1) + "\n"
    if arguments.to:
        arguments.to.write_text(text, encoding="utf-8")
    else:
        print(text)
    if arguments.chart:
        arguments.chart.write_text(chart(summary), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
