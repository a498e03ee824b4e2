"""A build as a process, with the time, CPU time and memory of its stages, that may be killed."""

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chaos.build import descendants
from benchmarks.corpus.large.results import Run

ROOT = Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.5
_BEGINS = re.compile(r" ([\w-]+): \d+ units to do")
_ROLES = (("ray::", "worker"), ("raylet/raylet", "raylet"), ("gcs/gcs_server", "control store"))


def stage_of(name: str) -> str:
    """The stage as `plan` names it, of a line of the log.

    >>> [stage_of(name) for name in ("dedup-texts", "dedup-near-bands", "tables", "extract")]
    ['dedup', 'near', 'templates', 'extract']
    """
    if name.startswith("dedup-near"):
        return "near"
    return "templates" if name == "tables" else name.split("-", maxsplit=1)[0]


def role(line: str) -> str:
    """The role of a process of a build, by its command line."""
    return next((name for mark, name in _ROLES if mark in line), "other processes of Ray")


def memory(pid: int) -> tuple[int, int]:
    """The highest resident size of a process so far (`VmHWM`), and its own memory now (`RssAnon`), in bytes.

    Both are 0 when it has ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    sizes = dict(re.findall(r"^(VmHWM|RssAnon):\s+(\d+)", status, re.MULTILINE))
    return 1024 * int(sizes.get("VmHWM", 0)), 1024 * int(sizes.get("RssAnon", 0))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, or 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Watch:
    """What a thread sees of a build's processes."""

    peaks: dict[str, int] = field(default_factory=dict)
    """Kind of process -> bytes of the largest one."""
    cpu: dict[int, float] = field(default_factory=dict)
    """Process -> CPU seconds so far."""
    roles: dict[int, str] = field(default_factory=dict)
    stage: str = ""
    """The stage that runs."""
    workers: dict[str, int] = field(default_factory=dict)
    """Stage -> bytes of the largest worker in it, which may be left from an earlier stage."""

    def look(self, driver: int) -> None:
        """Adds what the processes use now."""
        # A process that has just ended has no command line, and keeps its role.
        found = {pid: role(line) for pid, line in descendants(driver).items() if line}
        for pid, name in [*found.items(), (driver, "driver")]:
            peak, now = memory(pid)
            self.roles[pid] = name
            self.peaks[name] = max(self.peaks.get(name, 0), peak)
            self.cpu[pid] = max(self.cpu.get(pid, 0.0), cpu_seconds(pid))
            if name == "worker":
                self.workers[self.stage] = max(self.workers.get(self.stage, 0), now)

    def cpu_by_role(self) -> dict[str, float]:
        """Kind of process -> CPU seconds of all of them."""
        total: dict[str, float] = {}
        for pid, seconds in self.cpu.items():
            total[self.roles[pid]] = total.get(self.roles[pid], 0.0) + seconds
        return total


@contextmanager
def watched(process: "subprocess.Popen[str]") -> Iterator[Watch]:
    """Yields peaks and CPU times, which a thread updates."""
    watch, ended = Watch(), threading.Event()

    def look() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            watch.look(process.pid)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def start(config: Path, cores: int) -> "subprocess.Popen[str]":
    """Starts the build as a process that leads its own group."""
    command = [sys.executable, "pipeline/build_corpus.py", "--config", str(config), "--cpus", str(cores)]
    search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": search_path}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Adds one line of JSON to a file."""
    with path.open("a") as file:
        file.write(json.dumps({"time": time.strftime("%Y-%m-%d %H:%M:%S")} | record) + "\n")


def build(
    config: Path, cores: int, log: Path, kill_after: float | None = None, lines: Path | None = None
) -> Run:
    """Runs the build, and after ``kill_after`` seconds kills it with all processes that it started.

    Adds a line to ``lines`` when a stage begins.
    """
    began = time.monotonic()
    process = start(config, cores)
    marks: list[tuple[str, float, float]] = []
    timer = threading.Timer(kill_after, kill_all, [process]) if kill_after is not None else None
    if timer is not None:
        timer.start()
    with log.open("a") as sink, watched(process) as watch:
        for line in process.stderr or ():
            sink.write(line)
            found = _BEGINS.search(line)
            if found:
                watch.stage = stage_of(found[1])
                marks.append((watch.stage, time.monotonic() - began, sum(watch.cpu.copy().values())))
                if lines is not None:
                    append_line(lines, _begin(*marks[-1], watch))
        status = process.wait()
    if timer is not None:
        timer.cancel()
    seconds = time.monotonic() - began
    run = Run(seconds, status, peaks=watch.peaks, cpu_by_role=watch.cpu_by_role(), workers=watch.workers)
    for (name, begins, cpu_then), (_, end, cpu_now) in pairwise(
        [*marks, ("", seconds, sum(watch.cpu.values()))]
    ):
        run.stages[name] = run.stages.get(name, 0.0) + end - begins
        run.cpu[name] = run.cpu.get(name, 0.0) + cpu_now - cpu_then
    return run


def _begin(stage: str, seconds: float, cpu: float, watch: Watch) -> dict[str, Any]:
    """A stage that begins, with what the build has taken so far."""
    return {
        "begins": stage,
        "seconds": seconds,
        "cpu": cpu,
        "workers": dict(watch.workers),
        "peaks": dict(watch.peaks),
    }


def kill_all(process: "subprocess.Popen[str]") -> None:
    """Sends SIGKILL to the build and to every process that it started."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def killed_build(config: Path, cores: int, log: Path, undisturbed: float, seed: int, kills: int) -> float:
    """Seconds of a build that is killed ``kills`` times. Raises SystemExit if it does not finish."""
    chance, began = random.Random(seed), time.monotonic()
    for _ in range(kills):
        # Each life resumes, so together they do at most the work of a build without kills in the same time.
        share = chance.uniform(0.5, 1.0) / (kills + 1)
        if build(config, cores, log, undisturbed * share).status == 0:
            raise SystemExit("the build ended before it was killed; try again with another --seed")
    if build(config, cores, log).status:
        raise SystemExit(f"{log}: the killed build did not finish")
    return time.monotonic() - began
