"""The figures of a scorecard, from the results of its jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bertmill.scorecard.jobs import Job, failure_of, result_of
from bertmill.scorecard.layouts import TaskFiles
from bertmill.scorecard.published import PUBLISHED
from trainer.finetuning.results import spread

ENGLISH = ("en", "eng", "eng_Latn", "en ewt")


def summarize(
    suite: str, tasks: Sequence[TaskFiles], missing: Mapping[str, str], jobs: Sequence[Job]
) -> dict[str, Any]:
    """The content of scorecard.json. Figures are shares of 1. Those of ``published`` are in percent."""
    results = [(job, result_of(job)) for job in jobs]
    settings = jobs[0].settings
    failed = _failed(jobs)
    seconds = sum(result["seconds"] for _, result in results if result is not None)
    return {
        "suite": suite,
        "model": settings.model,
        "settings": {key: value for key, value in asdict(settings).items() if key != "model"},
        "complete": all(result is not None for _, result in results),
        "jobs": {
            "finished": sum(result is not None for _, result in results),
            "failed": len(failed),
            "all": len(jobs),
        },
        "failed": failed,
        "device": "GPU" if settings.use_gpu else "CPU",
        "device_hours": round(seconds / 3600, 4),
        "missing": dict(missing),
        "tasks": {
            task.name: _task(task, [(job, result) for job, result in results if job.task.name == task.name])
            for task in tasks
        },
        "published": [asdict(row) for row in PUBLISHED[suite]],
    }


def _failed(jobs: Sequence[Job]) -> dict[str, str]:
    """Name -> reason, of the jobs that failed."""
    reasons = {job.name: failure_of(job) for job in jobs}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _task(task: TaskFiles, results: Sequence[tuple[Job, dict[str, Any] | None]]) -> dict[str, Any]:
    """The figures of a task with the learning rate that is best on the validation set."""
    failed = _failed([job for job, _ in results])
    finished = [(job, result) for job, result in results if result is not None]
    of_rate: dict[float | None, list[dict[str, Any]]] = {}
    for job, result in finished:
        of_rate.setdefault(job.learning_rate, []).append(result)
    summary: dict[str, Any] = {
        "title": task.title,
        "metric": task.metric,
        "note": task.note,
        "jobs": {"finished": len(finished), "failed": len(failed), "all": len(results)},
        "failed": failed,
        "seconds": round(sum(result["seconds"] for _, result in finished), 3),
    }
    if not finished:
        return summary
    if task.pairs:
        best: float | None = None
    else:
        grid = {
            rate: _seeds([result["validation"][task.metric] for result in rows])
            for rate, rows in of_rate.items()
        }
        best = max(grid, key=lambda rate: grid[rate]["mean"])
        summary["learning_rate"] = best
        summary["grid"] = [{"learning_rate": rate, **figures} for rate, figures in grid.items()]
        summary["validation"] = _spreads([result["validation"] for result in of_rate[best]])
    tests = [result["test"] for result in of_rate[best]]
    if tests[0]:
        languages = {
            name: _spreads([figures[name] for figures in tests])[task.metric] for name in sorted(tests[0])
        }
        others = [figures["mean"] for name, figures in languages.items() if name not in ENGLISH]
        summary["languages"] = languages
        means = [
            sum(figures[name][task.metric] for name in figures) / len(figures) for figures in tests
        ]  # fmt: skip
        summary["mean"] = _seeds(means)
        summary["mean_without_english"] = sum(others) / len(others) if others else None
    else:
        summary["mean"] = summary["validation"][task.metric]
    return summary


def _spreads(figures: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: _seeds([figure[name] for figure in figures]) for name in figures[0]}


def _seeds(values: Sequence[float]) -> dict[str, float]:
    """The summary over seeds: mean, deviation and others, and the number of seeds."""
    return {"count": len(values), **spread(values)}
