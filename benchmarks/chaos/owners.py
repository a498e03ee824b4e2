"""Mixes kills and double starts, and checks that a run never has two owners or loses a committed step.

    python -m benchmarks.chaos.owners --events 50 --table benchmarks/results/chaos_owners.md

Real processes train one run after another. Events hit a run in random order: its owner is killed or frozen,
and other processes start under its name before, during and after that. Checks: a start that meets a live
owner is refused and does no harm. At most one of several starts gets the run. Every start resumes from the
newest commit that was seen. Commits of an attempt end with the claim of the next one. A replaced owner
reports that it was replaced. Every execution of every step has the rows of an undisturbed run. The final
weights have the same SHA-256.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.chaos.faulty_trainer import ChaosTrainer, Fault
from benchmarks.chaos.ranks import Group, Life
from benchmarks.chaos.runs import EVERY, STEPS, Run, examine_rows, undisturbed, write_config
from benchmarks.chaos.store import Store
from cluster.jobs.lease import newest_attempt
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders

LEASE_SECONDS = 3
PACE_SECONDS = 0.08
REFUSED, REPLACED = "is training this run", "has been replaced by attempt"
KINDS = (
    "kill, then a start",
    "kill, then two starts at once",
    "start beside the owner",
    "start beside the owner, killed while it watches",
    "owner killed while a start watches",
    "owner frozen, start, owner thawed",
    "start with --take-over",
    "two starts with --take-over at once",
)


class Owners:
    """One run and the processes that try to own it."""

    def __init__(self, run: Run, results: "Results") -> None:
        self.run, self.results = run, results
        self.seen = 0
        """The newest step that was seen committed."""
        self._closed: dict[int, set[str]] = {}
        """Attempt -> its commits when the next attempt had started."""
        self._number = 0
        self.owner = self._start()

    def _start(self, *overrides: str) -> Group:
        self._number += 1
        self.results.processes += 1
        if self._number > 200:
            raise SystemExit(f"{self.run.uri} does not come to its end: {self.run.problems}")
        arguments = [f"--run.lease_seconds={LEASE_SECONDS}", *overrides]
        return Group(self.run.config, 1, Fault(), self.run.folder, self._number, arguments)

    def disturb(self, kind: str) -> bool:
        """Injects an event. Returns whether it happened before the run ended."""
        first = self.seen + self.run.random.randrange(1, EVERY + 2)
        if not self._until(first):
            return False
        {
            KINDS[0]: self._kill,
            KINDS[1]: self._kill_and_two,
            KINDS[2]: self._beside,
            KINDS[3]: self._beside_killed,
            KINDS[4]: self._killed_while_watched,
            KINDS[5]: self._frozen,
            KINDS[6]: self._take_over,
            KINDS[7]: self._two_take_over,
        }[kind]()
        self._look()
        return True

    def finish(self, weights: str) -> None:
        """Waits for the end of the run, and compares it with the undisturbed one."""
        life = self._ended(self.owner)
        while not life.finished and life.statuses != [0]:
            self.owner = self._start()
            life = self._ended(self.owner)
        self.run.check(life.weights == weights, "the final weights differ")
        self.run.check(self.run.committed() == STEPS, "the last step is not committed")

    def _until(self, step: int) -> bool:
        """Returns whether the owner has reached ``step`` and still trains. Starts an owner if none runs."""
        while True:
            self._look()
            if self.owner.poll():
                if self._ended(self.owner).finished or self.seen == STEPS:
                    return False
                self.owner = self._start()
            if self.owner.steps_done() >= min(step, STEPS - 2):
                return True
            time.sleep(0.02)

    def _look(self) -> None:
        """Reads the storage as a new start would."""
        committed = self.run.committed()
        self.run.check(committed >= self.seen, f"step {self.seen} was committed, now it is {committed}")
        self.seen = max(self.seen, committed)
        newest = newest_attempt(self.run.uri)
        found: dict[int, set[str]] = collections.defaultdict(set)
        for folder in list_folders(self.run.uri):
            if folder.committed:
                found[folder.attempt].add(folder.uri)
        for attempt in range(1, newest):
            known = self._closed.setdefault(attempt, found[attempt])
            late = found[attempt] - known
            self.run.check(not late, f"attempt {attempt} committed {late} beside a newer one")

    def _ended(self, group: Group) -> Life:
        """Returns the life of a process that has ended or will end by itself."""
        life = group.wait()
        examine_rows(self.run, life)
        self._look()
        return life

    def _refused(self, group: Group) -> None:
        life = self._ended(group)
        over = self.owner.poll()
        self.run.check(over or (life.statuses == [2] and REFUSED in life.output), _end_of(life))
        self.results.refused += life.statuses == [2]

    def _replaced(self, group: Group) -> None:
        life = self._ended(group)
        over = life.statuses == [0]
        self.run.check(over or (life.statuses == [2] and REPLACED in life.output), _end_of(life))
        self.results.replaced += life.statuses == [2]

    def _succeeds(self, before: int) -> None:
        """Checks that the new owner resumes from the newest commit."""
        while not self.owner.poll() and self.owner.steps_done() < 0:
            self._look()
            time.sleep(0.02)
        resumed = self.owner.resumed()
        self.run.check(resumed is None or resumed >= before, f"resumed at {resumed}, not at {before}")

    def _kill(self) -> None:
        done = self.owner.steps_done()
        self.owner.kill()
        self._ended(self.owner)
        before = self.seen
        self.owner = self._start()
        self._succeeds(before)
        self.results.repeated.append(max(0, done + 1 - before))

    def _kill_and_two(self) -> None:
        self.owner.kill()
        self._ended(self.owner)
        before = self.seen
        both = [self._start(), self._start()]
        while not any(group.poll() or group.steps_done() >= before for group in both):
            time.sleep(0.02)
        both.sort(key=lambda group: group.steps_done() < 0)
        self.owner, other = both
        self._refused(other)
        self._succeeds(before)

    def _beside(self) -> None:
        self._refused(self._start())

    def _beside_killed(self) -> None:
        other = self._start()
        time.sleep(self.run.random.uniform(0.05, 1.0))
        other.kill()
        other.wait()
        self.run.check(REPLACED not in self.owner.output(), "a killed start replaced the owner")

    def _killed_while_watched(self) -> None:
        other = self._start()
        time.sleep(self.run.random.uniform(0.05, 0.5))
        self.owner.kill()
        self._ended(self.owner)
        before = self.seen
        if other.wait_for_step(0):
            self.owner = other
        else:
            self._ended(other)  # it was refused, because the owner died too late
            self.owner = self._start()
        self._succeeds(before)

    def _frozen(self) -> None:
        frozen = self.owner
        frozen.signal(signal.SIGSTOP)
        self._look()
        before = self.seen
        self.owner = self._start()
        self._succeeds(before)
        frozen.signal(signal.SIGCONT)
        self._replaced(frozen)

    def _take_over(self) -> None:
        old = self.owner
        before = self.seen
        self.owner = self._start("--run.take_over=true")
        self._succeeds(before)
        self._replaced(old)

    def _two_take_over(self) -> None:
        old = self.owner
        both = [self._start("--run.take_over=true") for _ in range(2)]
        self._replaced(old)
        while not any(group.poll() for group in both):
            self._look()
            time.sleep(0.02)
        both.sort(key=lambda group: group.poll())
        self.owner, other = both
        self._replaced(other)


class Results:
    """The results of all events of one storage."""

    def __init__(self) -> None:
        self.events: collections.Counter[str] = collections.Counter()
        self.processes = self.refused = self.replaced = 0
        self.repeated: list[int] = []


def _end_of(life: Life) -> str:
    return f"ended with {life.statuses}: {life.output[-300:]!r}"


def chaos(place: str, count: int, generator: random.Random, folder: Path, manifest: Path) -> list[str]:
    """Injects ``count`` events on one storage. Returns the lines of the report."""
    started, results = time.monotonic(), Results()
    runs: list[Run] = []
    with Store(place, folder) as store:

        def new_run(name: str, rows: dict[int, dict[int, list[int]]]) -> Run:
            inner = folder / f"{place}-{name}"
            inner.mkdir()
            uri = f"{store.base}/{name}"
            return Run(uri, write_config(inner, manifest, uri, 0.1, "whole"), inner, store, generator, rows)

        reference = undisturbed(new_run("undisturbed", {}), 1)
        kinds = [kind for _ in range(count // len(KINDS) + 1) for kind in generator.sample(KINDS, len(KINDS))]
        kinds = kinds[:count]
        while kinds:
            run = new_run(f"run-{len(runs):02d}", reference.made)
            owners = Owners(run, results)
            while kinds and owners.disturb(kinds[-1]):
                results.events[kinds.pop()] += 1
            owners.finish(reference.weights)
            runs.append(run)
            print(f"{run.uri}: {len(run.problems)} problems", flush=True)
            for problem in run.problems:
                print(f"    {problem}", flush=True)
    return report(place, runs, results, time.monotonic() - started)


def report(place: str, runs: list[Run], results: Results, seconds: float) -> list[str]:
    """The table of one storage as Markdown lines."""
    problems = [problem for run in runs for problem in run.problems]
    repeated = results.repeated or [0]
    return [
        f"## {place}",
        "",
        f"{results.events.total()} events in {len(runs)} runs of {STEPS} steps,"
        f" {results.processes} processes,"
        f" {seconds:.0f} s. {results.refused} starts were refused, {results.replaced} owners were replaced,"
        f" and {len(problems)} checks failed. A kill repeats {statistics.median(repeated):g} steps"
        f" (median), at most {max(repeated)}.",
        "",
        "| event | times |",
        "|---|---:|",
        *(f"| {kind} | {results.events[kind]} |" for kind in KINDS),
        "",
        *(f"- {problem}" for problem in problems),
    ]


def main() -> int:
    """Runs everything. Returns 1 if a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=50, help="events per storage")
    parser.add_argument("--storage", nargs="+", choices=("file", "s3"), default=["file", "s3"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    ChaosTrainer.pace = PACE_SECONDS
    folder = Path(tempfile.mkdtemp(prefix="owners-"))
    manifest = write_corpus(folder / "corpus", shard_rows=(100, 90, 0, 66), lengths=(32,))
    lines: list[str] = []
    try:
        for place in arguments.storage:
            lines += chaos(place, arguments.events, random.Random(arguments.seed), folder, manifest)
    finally:
        shutil.rmtree(folder)
    text = "\n".join(lines)
    print(text)
    if arguments.table:
        command = f"PYTHONPATH=. python {' '.join(sys.argv)}"
        about = (
            f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, torch {torch.__version__}. Each run has"
            f" {STEPS} steps and a checkpoint every {EVERY} steps; an owner that is silent for"
            f" {LEASE_SECONDS} s counts as dead."
        )
        title = "# Kills and double starts of one run, mixed"
        arguments.table.write_text(f"{title}\n\n    {command}\n\n{about}\n\n{text}\n")
    return 1 if text.count(" 0 checks failed") != len(arguments.storage) else 0


if __name__ == "__main__":
    sys.exit(main())
