"""Measures a build of a corpus of any size: times, memory, bytes and kills, beside the forecast of `plan`.

    python -m benchmarks.corpus.large_build FOLDER --gigabytes 20 --table benchmarks/results/large_build.md

The dumps come from large_corpus.py. The build has exact and near dedup and four passes. While it
runs, a thread reads the peak memory of each process twice a second. A second build is killed with all its
processes three times, at random moments, and must publish the same bytes. Meanwhile `bertmill verify` checks
the first.

After each part, FOLDER/results.json and FOLDER/results.md have the results so far. The same command continues
with the first missing part. An interrupted build starts again, because its times must be those of one run.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos.build import descendants, published
from benchmarks.corpus.large_corpus import LANGUAGES, make
from benchmarks.corpus.large_results import Results, Run
from schemas.manifest import MANIFEST_NAME, parse_manifest

ROOT = Path(__file__).resolve().parents[2]
PASSES = 4
KILLS = 3
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


def build(config: Path, cores: int, log: Path, kill_after: float | None = None) -> Run:
    """Runs the build, and after ``kill_after`` seconds kills it with all processes that it started."""
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


def kill_all(process: "subprocess.Popen[str]") -> None:
    """Sends SIGKILL to the build and to every process that it started."""
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def killed_build(config: Path, cores: int, log: Path, undisturbed: float, seed: int) -> float:
    """Seconds of a build that is killed KILLS times. Raises SystemExit if it does not finish."""
    chance, began = random.Random(seed), time.monotonic()
    for _ in range(KILLS):
        # Each life resumes, so together they do at most the work of a build without kills in the same time.
        share = chance.uniform(0.5, 1.0) / (KILLS + 1)
        if build(config, cores, log, undisturbed * share).status == 0:
            raise SystemExit("the build ended before it was killed; try again with another --seed")
    if build(config, cores, log).status:
        raise SystemExit(f"{log}: the killed build did not finish")
    return time.monotonic() - began


def config_fields(folder: Path, name: str, vocabulary: int, unit_bytes: int) -> dict[str, Any]:
    """The config of a build of all dumps into FOLDER/NAME."""
    return {
        "output": str(folder / name),
        "sources": [{"name": "large", "kind": "wikimedia", "paths": [f"{folder}/dumps/*.xml.bz2"]}],
        "extraction": {"unit_bytes": unit_bytes},
        "dedup": {"exact": True, "near": True},
        "vocabulary": {"size": vocabulary},
        "instances": {"passes": PASSES},
    }


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def amounts(output: Path) -> dict[str, float]:
    """The work of a build, by the names of `CorpusSize`."""
    manifest = parse_manifest((output / MANIFEST_NAME).read_bytes(), str(output))
    return {
        "documents": manifest.counts.documents,
        "written_tokens": sum(entry.tokens for entry in manifest.sets),
    }


class Benchmark:
    """The parts of one measurement. Each one adds to the results, and is skipped if they have it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder: Path = arguments.folder.resolve()
        self.arguments = arguments
        self.cores: int = arguments.cores
        self.folder.mkdir(parents=True, exist_ok=True)
        saved = self.folder / "results.json"
        fields = self.fields("undisturbed")
        self.results = Results.load(saved) if saved.exists() else Results.empty(fields, self.cores, KILLS)

    def save(self, part: str) -> None:
        """Writes the results so far."""
        for name, text in (("results.json", self.results.dump()), ("results.md", self.results.report())):
            # A reader never sees half a file.
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.replace(self.folder / name)
        print(f"{time.strftime('%H:%M:%S')} {part} done", flush=True)

    def fields(self, name: str) -> dict[str, Any]:
        """The config of the build into FOLDER/NAME."""
        return config_fields(self.folder, name, self.arguments.vocabulary, self.arguments.unit_bytes)

    def config(self, name: str) -> Path:
        """The file with that config."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(self.fields(name)))
        return path

    def generate(self) -> None:
        """Makes the dumps."""
        began, dumps = time.monotonic(), self.folder / "dumps"
        self.results.made = make(dumps, self.arguments.gigabytes, self.cores, self.arguments.languages)
        self.results.compressed_bytes = sum(path.stat().st_size for path in dumps.glob("*.bz2"))
        self.results.generated_seconds = time.monotonic() - began

    def build(self) -> None:
        """Builds without kills. Raises SystemExit if the build fails."""
        output = self.folder / "undisturbed"
        shutil.rmtree(output, ignore_errors=True)
        log = output.with_suffix(".log")
        run = build(self.config(output.name), self.cores, log)
        if run.status:
            raise SystemExit(f"{log}: the build failed with status {run.status}")
        self.results.written["work"] = tree_bytes(output / "work")
        self.results.written["published"] = tree_bytes(output) - self.results.written["work"]
        self.results.amounts = amounts(output)
        self.results.run = run

    def kill(self) -> None:
        """Builds again with kills and compares all bytes. Raises SystemExit if the build does not finish."""
        run, output = self.results.run, self.folder / "killed"
        assert run is not None, "the build comes first"
        shutil.rmtree(output, ignore_errors=True)
        log, seed = output.with_suffix(".log"), self.arguments.seed
        self.results.killed_seconds = killed_build(
            self.config(output.name), self.cores, log, run.seconds, seed
        )
        self.results.equal = published(str(output)) == published(str(self.folder / "undisturbed"))

    def verify(self) -> None:
        """Runs `bertmill verify`. Raises CalledProcessError if it finds a problem."""
        began = time.monotonic()
        command = [sys.executable, "-m", "bertmill", "verify", str(self.folder / "undisturbed")]
        subprocess.run(command, cwd=ROOT, check=True)
        self.results.verified_seconds = time.monotonic() - began

    def run(self) -> Results:
        """Runs the missing parts. `bertmill verify` runs during the second build."""
        results = self.results
        for part, missing in ((self.generate, results.made is None), (self.build, results.run is None)):
            if missing:
                part()
                self.save(part.__name__)
        later = ((self.kill, results.equal is None), (self.verify, results.verified_seconds is None))
        with ThreadPoolExecutor() as pool:
            running = {pool.submit(part): part.__name__ for part, missing in later if missing}
            for ended in as_completed(running):
                ended.result()
                self.save(running[ended])
        return results


def main() -> None:
    """Generates, builds, kills, compares, verifies, and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--languages", type=int, default=LANGUAGES)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=119_547)
    parser.add_argument("--unit-bytes", type=int, default=32 << 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="file to which the result is added")
    arguments = parser.parse_args()
    results = Benchmark(arguments).run()
    print(results.report())
    if arguments.table:
        with arguments.table.open("a") as file:
            file.write(results.report() + "\n")
    if not results.equal:
        raise SystemExit("the killed build published other bytes")


if __name__ == "__main__":
    main()
