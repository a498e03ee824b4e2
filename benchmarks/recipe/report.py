"""The results of all stages of a recipe, as JSON and as a page of Markdown."""

from typing import Any

from pydantic import BaseModel

from benchmarks.recipe.first_model_results import run_summary
from benchmarks.recipe.settings import Call
from benchmarks.recipe.state import State
from bertmill.scorecard.records import TaskSummary
from trainer.monitoring.history import read_history
from trainer.monitoring.records import StepRecord


class Scored(BaseModel):
    """The part of scorecard.json that the page needs."""

    tasks: dict[str, TaskSummary]


def results(call: Call, state: State) -> dict[str, Any]:
    """The stages' results with the curve, the rates and the card-hours of the run."""
    uri = call.at("runs", "model")
    steps = sum(state.get("plan")["steps"])
    spacing = _spacing(read_history(uri).steps)
    summary = run_summary(uri, max(1, steps // (100 * spacing)) * spacing)
    seconds = sum(one.step_seconds * lines for one, lines in _lines(uri))
    return {
        **state.values,
        "cards": call.cards,
        "card_hours": round(seconds * call.cards / 3600, 4),
        "run": {name: value for name, value in summary.items() if name != "config"},
        "config": summary["config"],
    }


def _spacing(figures: list[StepRecord]) -> int:
    """Steps between lines of the log."""
    return figures[1].step - figures[0].step if len(figures) > 1 else 1


def _lines(uri: str) -> list[tuple[Any, int]]:
    """The lines of the log, and how many steps each covers."""
    figures = read_history(uri).steps
    before = [0, *(one.step for one in figures[:-1])]
    return [(one, one.step - last) for one, last in zip(figures, before, strict=True)]


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    text, corpus, plan = found["text"], found["corpus"], found["plan"]
    held_out = found["run"]["held_out"][-1]["all"] if found["run"]["held_out"] else {}
    lines = [
        f"# {found['about']['recipe']} model",
        "",
        f"{text['documents']:,} documents, {text['megabytes']:,} MB in {len(text['languages'])} language(s);"
        f" {corpus['subwords']:,} subwords.",
        f"{sum(plan['steps']):,} steps, peak lr {plan['learning_rate']:g},"
        f" {found['card_hours']} card-hours of steps on {found['cards']} card(s).",
        "",
        "| held out | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in held_out.items()),
        "",
        "| lr of the search | held-out MLM loss |",
        "|---|---|",
        *(f"| {rate} | {loss} |" for rate, loss in found["search"]["losses"].items()),
        "",
        "| task | metric | mean | deviation | seeds |",
        "|---|---|---|---|---|",
        *_task_rows(Scored.model_validate(found["scorecard"], strict=False)),
        "",
    ]
    return "\n".join(lines)


def _task_rows(scored: Scored) -> list[str]:
    rows = []
    for task in scored.tasks.values():
        mean = task.mean
        if mean is None:
            continue
        deviation = f"{100 * mean.deviation:.1f}" if mean.count > 1 else ""
        score = f"{100 * mean.mean:.1f}"
        rows.append(f"| {task.title} | {task.metric} | {score} | {deviation} | {mean.count} |")
    return rows
