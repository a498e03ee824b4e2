"""Kills nodes, workers and drivers of trainings under Ray Train, and checks the results.

Called by train.py with --nodes. A Ray of several nodes of one CPU each runs a job of two ranks. The
faults of NODE_FAULTS strike one after another, each within some steps after the first step of an attempt. The
checks are those of runs.py, and that a drained node costs no step.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos import runs as chaos_runs
from benchmarks.chaos.faulty_trainer import Fault
from benchmarks.chaos.ranks import Life
from benchmarks.chaos.runs import EVERY, Rows, Run
from benchmarks.chaos.store import Store
from tests.support.ray_cluster import ROOT
from tests.trainer.node_cluster import Nodes, environment
from trainer.checkpoint.folders import list_folders

STEPS = 500
TITLE = "Training runs under Ray Train with injected faults"
EXPLAINED = (
    f"Under Ray Train, two ranks on nodes of one CPU each: runs of {STEPS} steps, a checkpoint every {EVERY}"
    " steps, and a fault in every attempt. Repeated steps are those that an attempt had made and the next"
    " attempt made again."
)
_DRIVER = "import sys; from benchmarks.chaos.node_job import main; sys.exit(main())"
_ROOM = 160
"""No fault starts in this number of last steps, because Ray notices a drain seconds later."""
NODE_FAULTS = ("node killed", "node drained", "worker killed", "worker frozen", "driver killed")
_DRAWN = (*NODE_FAULTS[:2] * 3, *NODE_FAULTS[2:])
_NOTICE_SECONDS = 60


@dataclass
class Attempt:
    """The diaries of one attempt's workers so far."""

    number: int
    processes: dict[int, int] = field(default_factory=dict)
    """Rank -> process."""
    life: Life = field(default_factory=lambda: Life(Fault(), 2, [], -1, {}))

    @property
    def steps(self) -> int:
        """The highest step that was started, or -1 before all ranks have started one."""
        return max((step for step, ranks in self.life.made.items() if len(ranks) == 2), default=-1)


class Job:
    """One training, with its driver and the diaries of its workers."""

    def __init__(self, run: Run, nodes: Nodes, diaries: Path) -> None:
        self.run, self._nodes, self._diaries = run, nodes, diaries
        self.before: dict[int, int] = {}
        """Attempt -> step of the newest checkpoint that earlier attempts had committed at its start."""
        self.driver = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts a driver, with its output in a file."""
        with (self.run.folder / "driver.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", _DRIVER, str(self.run.config)],
                cwd=ROOT,
                env={**environment(), "RAY_ADDRESS": self._nodes.address},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def attempts(self) -> list[Attempt]:
        """All attempts so far, the oldest first."""
        found: dict[int, Attempt] = {}
        name = self.run.uri.rpartition("/")[2]
        for path in sorted(self._diaries.glob(f"{name}-*.jsonl")):
            lines = path.read_text().splitlines(keepends=True)
            records = [json.loads(line) for line in lines if line.endswith("\n")]
            joined = [record for record in records if record["event"] == "joined"]
            if joined:
                number = joined[0]["attempt"]
                _read(records, found.setdefault(number, Attempt(number)))
        return [found[number] for number in sorted(found)]

    def await_attempt(self, after: int) -> Attempt | None:
        """The attempt after ``after`` once all its ranks make steps, or None if the driver has ended."""

        def running_attempt() -> Attempt | None:
            newest = self.attempts()[-1:]
            return newest[0] if newest and newest[0].number > after and newest[0].steps >= 0 else None

        found = (
            wait(lambda: running_attempt() is not None or self.driver.poll() is not None, 300)
            and running_attempt()
        )
        if not found:
            return None
        folders = list_folders(self.run.uri)
        earlier = [f.step for f in folders if f.committed and f.attempt < found.number]
        self.before[found.number] = max(earlier, default=0)
        return found

    def newest(self) -> Attempt:
        """The attempt that continues."""
        return self.attempts()[-1]


def _read(records: list[dict[str, Any]], attempt: Attempt) -> None:
    """Adds the diary of one process."""
    life = attempt.life
    for record in records:
        if record["event"] == "joined":
            attempt.processes[record["rank"]] = record["process"]
        elif record["event"] == "step":
            life.made.setdefault(record["step"], {})[record["rank"]] = record["rows"]
        elif record["event"] == "resumed":
            life.resumed = record["step"]
        elif record["event"] == "committed":
            life.committed.append(record["step"])
        elif record["event"] == "finished":
            life.weights, life.loss = record["weights"], record["loss"]


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for ``condition``. Returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def strike(job: Job, nodes: Nodes, kind: str, attempt: Attempt, rank: int) -> None:
    """Injects the fault into ``rank``."""
    process = attempt.processes[rank]
    if kind == "node killed":
        nodes.tell(f"kill {process}")
        nodes.tell("add")
    elif kind == "node drained":
        nodes.tell(f"drain {process} {_NOTICE_SECONDS}")
        nodes.tell("add")
    elif kind == "driver killed":
        job.driver.kill()
        job.driver.wait()
        job.driver = job.start()
    else:
        os.kill(process, signal.SIGKILL if kind == "worker killed" else signal.SIGSTOP)


def _has_step(job: Job, step: int) -> bool:
    return job.newest().steps >= step or job.driver.poll() is not None


def live_through(job: Job, nodes: Nodes, kinds: list[str], generator: random.Random) -> dict[int, str]:
    """Injects faults of ``kinds`` while steps for another one are left. Returns attempt -> what ended it."""
    ended: dict[int, str] = {}
    last = 0
    while (attempt := job.await_attempt(last)) is not None:
        nodes.tell("drop")
        last = attempt.number
        if not kinds or attempt.life.resumed > STEPS - _ROOM:
            break
        step = attempt.life.resumed + generator.randrange(1, 4 * EVERY)
        wait(partial(_has_step, job, step), 60)
        kind = kinds.pop()
        strike(job, nodes, kind, attempt, generator.randrange(2))
        ended[last] = kind
        print(f"    attempt {last} from step {attempt.life.resumed}: {kind}", flush=True)
    while job.await_attempt(last) is not None:
        last = job.newest().number
    status = job.driver.wait(300)
    output = (job.run.folder / "driver.log").read_text(errors="replace")
    job.run.check(status == 0, f"the driver ended with {status}: {output[-1500:]}")
    return ended


def examine(job: Job, ended: dict[int, str]) -> None:
    """Checks every attempt against the undisturbed run and against the one before it."""
    run = job.run
    for attempt in job.attempts():
        run.lives.append(attempt.life)
        known = len(run.repeated)
        chaos_runs.examine(run, attempt.life, job.before.get(attempt.number, 0))
        if run.happened and run.faults[-1] == "node drained" and len(run.repeated) > known:
            run.check(run.repeated[-1][1] == 0, f"{run.repeated[-1][1]} steps repeated after a drain")
        run.happened = attempt.number in ended
        if run.happened:
            run.faults.append(ended[attempt.number])


def write_config(folder: Path, manifest: Path, uri: str, form: str) -> Path:
    """Writes the config of a longer run than without Ray, because its workers take seconds to start."""
    path = chaos_runs.write_config(folder, manifest, uri, 0.1, form)
    config = yaml.safe_load(path.read_text())
    config["phases"][0]["steps"] = STEPS
    config["workers"] |= {"num_workers": 2, "max_failures": -1}
    path.write_text(yaml.safe_dump(config))
    return path


def chaos(
    place: str, faults: int, seed: int, form: str, folder: Path, store: Store, manifest: Path
) -> list[str]:
    """Makes all runs on one storage. Returns the lines of the report."""
    started, generator = time.monotonic(), random.Random(seed)
    rounds = [generator.sample(_DRAWN, len(_DRAWN)) for _ in range(faults // len(_DRAWN) + 1)]
    kinds = [kind for kinds in rounds for kind in kinds][:faults]

    def new_run(name: str, expected: Rows) -> Run:
        uri, inner = f"{store.base}/{name}", folder / f"{place}-{name}"
        inner.mkdir()
        config = write_config(inner, manifest, uri, form)
        return Run(uri, config, inner, store, random.Random(0), expected, STEPS)

    reference = chaos_runs.undisturbed(new_run("undisturbed-nodes", {}), 2)
    diaries = folder / f"{place}-diaries"
    diaries.mkdir()
    nodes = Nodes(3, {"CHAOS_DIARY": str(diaries), "TMPDIR": tempfile.gettempdir()})
    runs: list[Run] = []
    try:
        while kinds:
            run = new_run(f"nodes-{len(runs):02d}", reference.made)
            job = Job(run, nodes, diaries)
            try:
                examine(job, live_through(job, nodes, kinds, generator))
            finally:
                job.driver.kill()
                job.driver.wait()
            chaos_runs.examine_end(run, reference, exact=True)
            runs.append(run)
            chaos_runs.show(run)
    finally:
        nodes.end()
    lines = chaos_runs.report(f"{place}, nodes of a Ray cluster", runs, [], [], time.monotonic() - started)
    return [line for line in lines if not line.startswith("Changing number")]
