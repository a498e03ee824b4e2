"""The figures of a scorecard, from the results of its jobs."""

from collections.abc import Mapping, Sequence

from bertmill.scorecard.jobs import Job, failure_of, result_of
from bertmill.scorecard.layouts import TaskFiles
from bertmill.scorecard.published import PUBLISHED
from bertmill.scorecard.records import GridRow, JobCounts, JobRecord, Scorecard, TaskSummary
from trainer.finetuning.records import Spread, spreads

ENGLISH = ("en", "eng", "eng_Latn", "en ewt")


def summarize(
    suite: str, tasks: Sequence[TaskFiles], missing: Mapping[str, str], jobs: Sequence[Job]
) -> Scorecard:
    """The scorecard of the jobs so far."""
    results = [(job, result_of(job)) for job in jobs]
    settings = jobs[0].settings
    failed = _failed(jobs)
    finished = [result for _, result in results if result is not None]
    return Scorecard(
        suite=suite,
        model=settings.model,
        settings=settings,
        complete=len(finished) == len(jobs),
        jobs=JobCounts(finished=len(finished), failed=len(failed), all=len(jobs)),
        failed=failed,
        device="GPU" if settings.use_gpu else "CPU",
        device_hours=round(sum(result.seconds for result in finished) / 3600, 4),
        missing=dict(missing),
        tasks={
            task.name: _task(task, [(job, result) for job, result in results if job.task.name == task.name])
            for task in tasks
        },
        published=PUBLISHED[suite],
    )


def _failed(jobs: Sequence[Job]) -> dict[str, str]:
    """Name -> reason, of the jobs that failed."""
    reasons = {job.name: failure_of(job) for job in jobs}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _task(task: TaskFiles, results: Sequence[tuple[Job, JobRecord | None]]) -> TaskSummary:
    """The figures of a task with the learning rate that is best on the validation set."""
    failed = _failed([job for job, _ in results])
    finished = [(job, record) for job, record in results if record is not None]
    summary = TaskSummary(
        title=task.title,
        metric=task.metric,
        note=task.note,
        jobs=JobCounts(finished=len(finished), failed=len(failed), all=len(results)),
        failed=failed,
        seconds=round(sum(record.seconds for _, record in finished), 3),
    )
    of_rate: dict[float | None, list[JobRecord]] = {}
    for job, record in finished:
        of_rate.setdefault(job.learning_rate, []).append(record)
    if not of_rate:
        return summary
    best = None if task.pairs else _choose_rate(summary, of_rate)
    tests = [record.test for record in of_rate[best]]
    if tests[0]:
        _add_languages(summary, tests)
    else:
        summary.mean = summary.validation[task.metric]
    return summary


def _choose_rate(summary: TaskSummary, of_rate: Mapping[float | None, Sequence[JobRecord]]) -> float:
    """Adds the figures of the validation set, and returns the best learning rate."""
    metric = summary.metric
    grid = {
        rate: Spread.of([record.validation[metric] for record in records])
        for rate, records in of_rate.items()
        if rate is not None
    }
    best = max(grid, key=lambda rate: grid[rate].mean)
    summary.learning_rate = best
    summary.grid = tuple(GridRow(learning_rate=rate, **dict(row)) for rate, row in grid.items())
    summary.validation = spreads([record.validation for record in of_rate[best]])
    return best


def _add_languages(summary: TaskSummary, tests: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    """Adds the figures by language, and their means."""
    metric = summary.metric
    summary.languages = {
        name: Spread.of([figures[name][metric] for figures in tests]) for name in sorted(tests[0])
    }
    summary.mean = Spread.of(
        [sum(one[metric] for one in figures.values()) / len(figures) for figures in tests]
    )
    others = [figures.mean for name, figures in summary.languages.items() if name not in ENGLISH]
    summary.mean_without_english = sum(others) / len(others) if others else None
