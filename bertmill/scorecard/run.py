"""Makes a scorecard: finds the tasks, runs the remaining jobs, and writes the pages."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bertmill.scorecard.jobs import Job, Outcome, failure_of, plan_jobs, result_of
from bertmill.scorecard.layouts import TaskFiles, find_tasks
from bertmill.scorecard.pages import html, markdown
from bertmill.scorecard.queue import run_jobs
from bertmill.scorecard.records import Identity, Scorecard, Settings
from bertmill.scorecard.summary import summarize
from cluster import storage
from schemas.errors import ConfigError
from trainer.export.load_model import content_digest, load_model
from trainer.finetuning.records import read_record

_IDENTITY = "identity.json"


def make_scorecard(
    settings: Settings,
    suite: str,
    data: str,
    output: str,
    *,
    tasks: Sequence[str] = (),
    workers: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    print_line: Callable[[str], None] = lambda _: None,
) -> Scorecard:
    """The content of OUTPUT/scorecard.json, which is written after every job, with .md and .html beside it.

    Does not repeat jobs that OUTPUT already has. Reports a job that fails with its reason and continues with
    the others. The next start retries it. ``workers`` are processes, by default one for each GPU, or one on
    the CPU. Raises BertmillError, ConfigError when OUTPUT is of another model or other data.
    """
    task_files, missing = find_tasks(suite, data, str(Path(output) / "data"), tasks)
    for title, reason in missing.items():
        print_line(f"{title}: not measured, {reason}")
    jobs = plan_jobs(task_files, settings, output)
    finished = {job.task.name for job in jobs if result_of(job) is not None}
    _claim(output, settings, suite, task_files, finished)
    left = [job for job in jobs if result_of(job) is None]
    if len(left) < len(jobs):
        print_line(f"{len(jobs) - len(left)} of {len(jobs)} jobs are already done")

    def write() -> Scorecard:
        card = summarize(suite, task_files, missing, jobs)
        raw = json.dumps(card.to_json(), indent=1, ensure_ascii=False) + "\n"
        for name, text in (("json", raw), ("md", markdown(card)), ("html", html(card))):
            storage.put_bytes(storage.join(output, f"scorecard.{name}"), text.encode())
        return card

    def job_done(job: Job, outcome: Outcome) -> None:
        card = write()
        how = "done" if outcome is Outcome.FINISHED else f"failed: {failure_of(job)}"
        print_line(f"{job.name}: {how}, {card.jobs.finished} of {len(jobs)} jobs are finished")

    count = workers or (torch.cuda.device_count() if settings.use_gpu else 1) or 1
    run_jobs(left, min(count, max(len(left), 1)), stop_requested, print_line, job_done)
    return write()


def _claim(
    output: str, settings: Settings, suite: str, tasks: Sequence[TaskFiles], finished: Collection[str]
) -> None:
    """Raises ConfigError when ``output`` holds jobs of another model, other settings or other files.

    Seeds, learning rates and tasks may be added, and the files of a task without ``finished`` jobs changed.
    """
    now = Identity(
        suite=suite,
        model=content_digest(load_model(settings.model).model),
        nli_model=settings.nli_model and content_digest(load_model(settings.nli_model).model),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        max_length=settings.max_length,
        max_examples=settings.max_examples,
        files={task.name: _digest(task) for task in tasks if not task.problem},
    )
    uri = storage.join(output, _IDENTITY)
    if storage.exists(uri):
        before = read_record(Identity, uri, "choose another --out")
        what = now.difference(before, finished)
        if what is not None:
            raise ConfigError(f"{output}: holds a scorecard with another {what}; choose another --out")
        now = now.model_copy(update={"files": {**before.files, **now.files}})
    storage.put_bytes(uri, (json.dumps(now.to_json(), indent=1, sort_keys=True) + "\n").encode())


def _digest(task: TaskFiles) -> str:
    """SHA-256 of all files of a task."""
    digest = hashlib.sha256(json.dumps({**task.config, "files": _columns(task.config)}).encode())
    for uri in _uris({**task.config.get("files", {}), "pairs": [list(pair) for pair in task.pairs.values()]}):
        digest.update(hashlib.sha256(storage.read_bytes(uri)).digest())
    return digest.hexdigest()


def _columns(config: Mapping[str, Any]) -> dict[str, Any]:
    files: Mapping[str, Any] = config.get("files", {})
    columns = {name: value for name, value in files.items() if name not in ("train", "validation", "test")}
    return {**columns, "test": sorted(files.get("test", ()))}


def _uris(value: Any) -> list[str]:
    """All paths in the files of a task, without the names of columns."""
    if isinstance(value, Mapping):
        return [uri for key, part in value.items() if not isinstance(part, str) for uri in _uris(part) if key]
    if isinstance(value, list):
        return [uri for part in value for uri in ([part] if isinstance(part, str) else _uris(part))]
    return []
