"""The jobs of a scorecard, one for each task, learning rate and seed, and their records."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

from bertmill.scorecard.layouts import TaskFiles
from bertmill.scorecard.records import JobRecord, Settings
from bertmill.scorecard.retrieval import retrieval_accuracy
from cluster import storage
from cluster.jobs.config_file import validate
from schemas.errors import BertmillError, InputError
from trainer.distributed.ranks import single_rank
from trainer.export.load_model import load_model
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.progress import Event, line_of
from trainer.finetuning.records import read_record
from trainer.finetuning.run import finetune

logger = logging.getLogger(__name__)

RESULT_NAME = "job.json"


@dataclass(frozen=True)
class Job:
    """One training with one seed, or a retrieval."""

    task: TaskFiles
    settings: Settings
    output: str
    learning_rate: float | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name that progress and errors show."""
        if self.seed is None:
            return self.task.name
        return f"{self.task.name} lr {self.learning_rate:g} seed {self.seed}"


def plan_jobs(tasks: Sequence[TaskFiles], settings: Settings, output: str) -> list[Job]:
    """All jobs, task by task."""
    jobs = []
    for task in tasks:
        if task.pairs:
            jobs.append(Job(task, settings, _folder(output, task.name)))
            continue
        for rate in settings.learning_rates:
            for seed in settings.seeds:
                folder = _folder(output, f"{task.name}-lr{rate:g}-seed{seed}")
                jobs.append(Job(task, settings, folder, rate, seed))
    return jobs


def _folder(output: str, name: str) -> str:
    return storage.join(storage.join(output, "jobs"), name)


class Outcome(Enum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


def result_of(job: Job) -> JobRecord | None:
    """The record of a finished job, or None for another one. Raises CheckpointError when it is damaged."""
    record = _record(job)
    return record if record.finished else None


def failure_of(job: Job) -> str | None:
    """Why a job failed, or None for another one."""
    return _record(job).failed


def _record(job: Job) -> JobRecord:
    """The record of the last attempt at a job."""
    uri = storage.join(job.output, RESULT_NAME)
    if not storage.exists(uri):
        return JobRecord(seconds=0.0, finished=False)
    return read_record(JobRecord, uri, "delete it to run the job again")


def run_job(
    job: Job, device: torch.device, stop_requested: Callable[[], bool], print_line: Callable[[str], None]
) -> Outcome:
    """Runs or resumes a job on ``device``, and records its result or its error."""
    if failure_of(job) is not None:
        # The remains of a failed attempt may be the cause of its failure, or belong to files fixed since.
        storage.delete_prefix(job.output)
    start = time.monotonic()
    try:
        result = _result(job, device, stop_requested, print_line)
    except BertmillError as error:
        record_failure(job, str(error), time.monotonic() - start)
        return Outcome.FAILED
    except Exception as error:  # such as a GPU without memory: the other jobs may still succeed
        logger.exception("%s", job.name)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        record_failure(job, reason, time.monotonic() - start)
        return Outcome.FAILED
    _write(job, result or JobRecord(seconds=0.0, finished=False), time.monotonic() - start)
    return Outcome.FINISHED if result is not None else Outcome.STOPPED


def record_failure(job: Job, reason: str, seconds: float) -> None:
    """Records that an attempt of ``seconds`` seconds failed, so that the next start tries again."""
    _write(job, JobRecord(seconds=0.0, finished=False, failed=reason), seconds)


def _result(
    job: Job, device: torch.device, stop_requested: Callable[[], bool], print_line: Callable[[str], None]
) -> JobRecord | None:
    """The figures of a job, or None if it was stopped. Raises BertmillError."""
    if job.task.problem:
        raise InputError(job.task.problem)
    if not job.task.pairs:
        return _finetune(job, device, stop_requested, print_line)
    figures = retrieval_accuracy(
        job.settings.model,
        job.settings.tokenizer,
        job.task.pairs,
        limit=job.settings.max_examples,
        max_length=job.settings.max_length,
        device=device,
        stop_requested=stop_requested,
    )
    if figures is None:
        return None
    test = {name: {"accuracy": value} for name, value in figures.items()}
    return JobRecord(seconds=0.0, finished=True, validation={}, test=test)


def _finetune(
    job: Job, device: torch.device, stop_requested: Callable[[], bool], print_line: Callable[[str], None]
) -> JobRecord | None:
    config = config_of(job)

    def on_event(event: Event) -> None:
        print_line(f"{job.name}: {line_of(event)}")

    report = finetune(config, ranks=single_rank(device), stop_requested=stop_requested, on_event=on_event)
    if not report.complete:
        return None
    (seed,) = report.seeds
    return JobRecord(
        seconds=0.0, finished=True, validation=seed.validation, test=seed.test, examples=report.examples
    )


def config_of(job: Job) -> FinetuneConfig:
    """The fine-tuning config of a job. Raises ConfigError."""
    settings = job.settings
    fields: Mapping[str, Any] = job.task.config
    starts_from_nli = job.task.from_nli and settings.nli_model is not None
    length = max_length_of(settings, fields["task"])
    data: dict[str, Any] = {
        **fields,
        "model": settings.nli_model if starts_from_nli else settings.model,
        "output": job.output,
        "seeds": [job.seed],
        "learning_rate": job.learning_rate,
        "batch_size": settings.batch_size,
        "max_seq_length": length,
        # 128 of 384 tokens, as in the settings of BERT for SQuAD.
        "stride": max(1, length // 3),
        "max_train_examples": settings.max_examples,
        "max_eval_examples": settings.max_examples,
        "use_gpu": settings.use_gpu,
        "precision": "bf16" if settings.use_gpu else "fp32",
        # A job takes minutes: SIGTERM saves it, and a killed job starts over.
        "save_every": None,
    }
    if starts_from_nli or settings.tokenizer is None:
        data["tokenizer"] = None
    else:
        data["tokenizer"] = settings.tokenizer
    if settings.epochs is not None:
        data["epochs"] = settings.epochs
    return validate(FinetuneConfig, data, f"scorecard: {job.name}")


def max_length_of(settings: Settings, task: str) -> int:
    """The length of inputs: that of the settings, three times as long for contexts, at most the model's."""
    wanted = settings.max_length * (3 if task == "spans" else 1)
    return min(wanted, _positions(settings.model))


@cache
def _positions(model: str) -> int:
    return load_model(model).model.config.max_positions


def _write(job: Job, record: JobRecord, seconds: float) -> None:
    """Writes the record, with the seconds of this and of earlier, stopped attempts."""
    record = record.model_copy(update={"seconds": round(_record(job).seconds + seconds, 3)})
    uri = storage.join(job.output, RESULT_NAME)
    storage.put_bytes(uri, (json.dumps(record.to_json(), indent=1, sort_keys=True) + "\n").encode())
