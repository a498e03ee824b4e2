"""Runs the jobs of a scorecard: one process for each GPU, or some processes on the CPU, with one queue."""

import multiprocessing
import queue
import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event as StopFlag
from typing import Any

import torch

from bertmill.scorecard.jobs import Job, run_job
from cluster.jobs import shutdown
from schemas.errors import BertmillError
from trainer.distributed.ranks import pick_device

PrintLine = Callable[[str], None]


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    stop_requested: Callable[[], bool],
    print_line: PrintLine,
    job_done: Callable[[Job], None],
) -> bool:
    """Runs ``jobs`` in ``workers`` processes, or in this one for a single worker; False if stopped.

    ``job_done`` is called here after each job. Raises BertmillError when a job fails or a process dies;
    finished jobs stay.
    """
    if workers == 1:
        device = pick_device(jobs[0].settings.use_gpu) if jobs else None
        for job in jobs:
            if device is None or stop_requested() or not run_job(job, device, stop_requested, print_line):
                return False
            job_done(job)
        return True
    return _Pool(jobs, workers).run(stop_requested, print_line, job_done)


class _Pool:
    """Worker processes that take jobs from one queue and report to another."""

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        # Processes must not be forked after torch or CUDA has started threads.
        context = multiprocessing.get_context("spawn")
        self.jobs = jobs
        self.stop = context.Event()
        self.waiting: Any = context.Queue()
        self.reports: Any = context.Queue()
        for number in range(len(jobs)):
            self.waiting.put(number)
        for _ in range(workers):
            self.waiting.put(None)
        threads = max(1, torch.get_num_threads() // workers)
        self.processes = [
            context.Process(
                target=_work, args=(rank, threads, list(jobs), self.waiting, self.reports, self.stop)
            )
            for rank in range(workers)
        ]

    def run(
        self, stop_requested: Callable[[], bool], print_line: PrintLine, job_done: Callable[[Job], None]
    ) -> bool:
        """See run_jobs."""
        for process in self.processes:
            process.start()
        left, error = len(self.processes), ""
        done = 0
        while left:
            if stop_requested():
                self.stop.set()
            try:
                kind, value = self.reports.get(timeout=0.2)
            except queue.Empty:
                dead = [process for process in self.processes if process.exitcode not in (None, 0)]
                if dead and self.reports.empty():
                    self.stop.set()
                    error = error or f"a worker process ended with status {dead[0].exitcode}"
                    left = sum(process.is_alive() for process in self.processes)
                continue
            if kind == "line":
                print_line(value)
            elif kind == "done":
                done += 1
                job_done(self.jobs[value])
            elif kind == "error":
                error = error or value
                self.stop.set()
            else:
                left -= 1
        for process in self.processes:
            process.join()
        if error:
            raise BertmillError(error)
        return done == len(self.jobs)


def _work(rank: int, threads: int, jobs: list[Job], waiting: Any, reports: Any, stop: StopFlag) -> None:
    """A worker process: runs jobs until the queue ends or a stop is requested."""
    torch.set_num_threads(threads)
    # The main process handles signals and notifies the workers.
    for signal_number in shutdown.SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    try:
        device = pick_device(jobs[0].settings.use_gpu, rank)
        while not stop.is_set():
            number = waiting.get()
            if number is None:
                break
            if run_job(jobs[number], device, stop.is_set, lambda line: reports.put(("line", line))):
                reports.put(("done", number))
    except BertmillError as error:
        reports.put(("error", str(error)))
    reports.put(("end", rank))
