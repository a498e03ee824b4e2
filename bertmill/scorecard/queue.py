"""Runs the jobs of a scorecard: one process for each GPU, or some processes on the CPU."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from bertmill.scorecard.jobs import Job, Outcome, record_failure, run_job
from cluster.jobs import shutdown
from trainer.distributed.ranks import pick_device

PrintLine = Callable[[str], None]
JobDone = Callable[[Job, Outcome], None]


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    stop_requested: Callable[[], bool],
    print_line: PrintLine,
    job_done: JobDone,
) -> None:
    """Runs ``jobs`` in ``workers`` processes, or in this one for a single worker, until a stop is requested.

    Calls ``job_done`` after each job, even after one that failed. The others continue.
    """
    if jobs and not torch.cuda.is_available():
        pick_device(jobs[0].settings.use_gpu)  # raises ConfigError here instead of in each process
    if workers > 1:
        _Pool(jobs, workers).run(stop_requested, print_line, job_done)
        return
    for job in jobs:
        if stop_requested():
            return
        outcome = run_job(job, pick_device(job.settings.use_gpu), stop_requested, print_line)
        if outcome is Outcome.STOPPED:
            return
        job_done(job, outcome)


class _Worker:
    """A process that requests one job after another."""

    def __init__(self, context: Any, rank: int, threads: int, jobs: Sequence[Job], stop: Any) -> None:
        self.rank = rank
        self.job: int | None = None
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(rank, threads, list(jobs), theirs, stop))
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the connection


class _Pool:
    """Worker processes. When one dies, only its job fails."""

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self.jobs, self.left = jobs, deque(range(len(jobs)))
        # Processes must not be forked after torch or CUDA has started threads.
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        self.threads = max(1, torch.get_num_threads() // workers)
        self.workers = [self._start(rank) for rank in range(workers)]

    def _start(self, rank: int) -> _Worker:
        return _Worker(self.context, rank, self.threads, self.jobs, self.stop)

    def run(self, stop_requested: Callable[[], bool], print_line: PrintLine, job_done: JobDone) -> None:
        """See run_jobs."""
        while self.workers:
            if stop_requested():
                self.stop.set()
            ready = wait([worker.connection for worker in self.workers], timeout=0.2)
            for worker in [worker for worker in self.workers if worker.connection in ready]:
                try:
                    kind, value = worker.connection.recv()
                except (EOFError, OSError):
                    self._ended(worker, job_done)
                    continue
                if kind == "line":
                    print_line(value)
                    continue
                if worker.job is not None and value is not Outcome.STOPPED:
                    job_done(self.jobs[worker.job], value)
                self._give(worker)

    def _give(self, worker: _Worker) -> None:
        """Gives the process its next job, or None, at which it ends."""
        more = self.left and not self.stop.is_set()
        worker.job = self.left.popleft() if more else None
        with suppress(BrokenPipeError):  # it has died, as the end of its connection shows
            worker.connection.send(worker.job)

    def _ended(self, worker: _Worker, job_done: JobDone) -> None:
        """Records the job of a process that ended as failed, and starts another process."""
        worker.process.join()
        self.workers.remove(worker)
        if worker.job is None:
            return
        job = self.jobs[worker.job]
        record_failure(job, f"its process ended with status {worker.process.exitcode}", 0.0)
        job_done(job, Outcome.FAILED)
        if self.left and not self.stop.is_set():
            self.workers.append(self._start(worker.rank))


def _work(rank: int, threads: int, jobs: list[Job], connection: Connection, stop: Any) -> None:
    """A worker process: requests jobs until none is left."""
    torch.set_num_threads(threads)
    # The main process handles signals and notifies the workers.
    for signal_number in shutdown.SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    outcome: Outcome | None = None
    while True:
        connection.send(("done", outcome))
        number = connection.recv()
        if number is None:
            return
        device = pick_device(jobs[number].settings.use_gpu, rank)
        outcome = run_job(jobs[number], device, stop.is_set, lambda line: connection.send(("line", line)))
