"""Measures a build of a corpus of any size: times, memory, bytes and kills, beside the forecast of `plan`.

    python -m benchmarks.corpus.large_build FOLDER --gigabytes 20 --table benchmarks/results/large_build.md

The dumps come from large_corpus.py. The build has exact and near dedup and four passes. While it
runs, a thread reads the peak memory of each process twice a second. Then `bertmill verify` checks the result.
A second build is killed with all its processes three times, at random moments, and must publish the same
bytes.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import yaml

from benchmarks.chaos.build import descendants, published
from benchmarks.corpus.large_corpus import LANGUAGES, Made, make
from benchmarks.rates.measure_rates import cpu
from bertmill.planning.forecast import CorpusSize, forecast_build
from bertmill.planning.rates import load_rates
from cluster.jobs.config_file import load_config
from pipeline.config import BuildConfig

ROOT = Path(__file__).resolve().parents[2]
PASSES = 4
KILLS = 3
_SAMPLE_SECONDS = 0.5
_BEGINS = re.compile(r" ([\w-]+): \d+ units to do")
_ROLES = (("ray::", "worker"), ("raylet/raylet", "raylet"), ("gcs/gcs_server", "control store"))


@dataclass
class Run:
    """One start of the build until its end."""

    seconds: float
    status: int
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until the next one began."""
    cpu: dict[str, float] = field(default_factory=dict)
    """Stage -> CPU seconds of all processes in that time, which hardly depend on other load."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Kind of process -> bytes of the largest one."""


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


def peak_bytes(pid: int) -> int:
    """The highest resident size of a process so far (`VmHWM`), or 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) * 1024 if found else 0


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


@contextmanager
def watched(process: "subprocess.Popen[str]") -> Iterator[Watch]:
    """Yields peaks and CPU times, which a thread updates."""
    watch, ended = Watch(), threading.Event()

    def look() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            found = {pid: role(line) for pid, line in descendants(process.pid).items()}
            for pid, name in [*found.items(), (process.pid, "driver")]:
                watch.peaks[name] = max(watch.peaks.get(name, 0), peak_bytes(pid))
                watch.cpu[pid] = max(watch.cpu.get(pid, 0.0), cpu_seconds(pid))

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
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
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
                marks.append((stage_of(found[1]), time.monotonic() - began, sum(watch.cpu.copy().values())))
        status = process.wait()
    if timer is not None:
        timer.cancel()
    seconds = time.monotonic() - began
    run = Run(seconds, status, peaks=watch.peaks)
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


def killed_build(config: Path, cores: int, log: Path, undisturbed: float, seed: int) -> tuple[int, float]:
    """Kills a build KILLS times. Returns starts and seconds. Raises SystemExit when it does not finish."""
    chance, began = random.Random(seed), time.monotonic()
    for _ in range(KILLS):
        # Each life resumes, so together they do at most the work of a build without kills in the same time.
        share = chance.uniform(0.5, 1.0) / (KILLS + 1)
        if build(config, cores, log, undisturbed * share).status == 0:
            raise SystemExit("the build ended before it was killed; try again with another --seed")
    if build(config, cores, log).status:
        raise SystemExit(f"{log}: the killed build did not finish")
    return KILLS + 1, time.monotonic() - began


def write_config(folder: Path, name: str, vocabulary: int, unit_bytes: int) -> Path:
    """The config of a build of all dumps into FOLDER/NAME."""
    fields = {
        "output": str(folder / name),
        "sources": [{"name": "large", "kind": "wikimedia", "paths": [f"{folder}/dumps/*.xml.bz2"]}],
        "extraction": {"unit_bytes": unit_bytes},
        "dedup": {"exact": True, "near": True},
        "vocabulary": {"size": vocabulary},
        "instances": {"passes": PASSES},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def forecast_rows(config: Path, compressed: int, cores: int, run: Run) -> list[str]:
    """Lines that compare `plan` with what was measured, stage by stage."""
    rates = load_rates()
    loaded = load_config(BuildConfig, str(config))
    stages = forecast_build(CorpusSize.of(loaded, compressed, rates), cores, cores, rates)
    rows = []
    for stage in stages:
        measured, cpu_time = run.stages.get(stage.name, 0.0), run.cpu.get(stage.name, 0.0)
        # The serial part keeps one core busy.
        work = stage.core_hours * 3600 + rates.build.stages[stage.name].serial_seconds
        ratio = f"{work / cpu_time:.2f}" if cpu_time else "-"
        rows.append(
            f"| {stage.name} | {cpu_time:.1f} | {work:.1f} | {ratio} | {measured:.0f} | {stage.seconds:.0f} |"
        )
    return rows


def report(
    made: Made, run: Run, verified: float, killed: tuple[int, float], equal: bool, lines: Sequence[str],
    written: dict[str, int], cores: int,
) -> str:  # fmt: skip
    """The result as Markdown."""
    wikitext = made.wikitext_bytes / 1e6
    stages = [
        f"| {name} | {spent:.0f} | {run.cpu[name]:.0f} | {wikitext / spent:.2f} |"
        for name, spent in run.stages.items()
        if spent
    ]
    peaks = [f"| {name} | {size / 1e9:.2f} |" for name, size in sorted(run.peaks.items())]
    sizes = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in written.items())
    return "\n".join(
        [
            f"{wikitext:,.0f} MB of wikitext in {made.pages:,} pages ({made.planted:,} planted near"
            f" duplicates) and {made.files} files, {PASSES} passes, exact and near dedup, {cores} cores."
            f" {cpu()}, load {os.getloadavg()[0]:.1f}, {datetime.now(UTC).date().isoformat()}.",
            "",
            f"Build {run.seconds:.0f} s, {wikitext / run.seconds:.2f} MB/s. `bertmill verify` {verified:.0f}"
            f" s, no problem. Written: {sizes}. Killed {killed[0] - 1} times: {killed[1]:.0f} s,"
            f" {'the same bytes' if equal else 'OTHER BYTES'}.",
            "",
            "| stage | seconds | CPU seconds | MB/s of wikitext |",
            "|---|---:|---:|---:|",
            *stages,
            "",
            "| process | peak memory, GB |",
            "|---|---:|",
            *peaks,
            "",
            "| stage | CPU s | `plan`, core s | plan / CPU | measured s | `plan` s |",
            "|---|---:|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Generates, builds, verifies, kills, compares, and prints."""
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
    folder, cores = arguments.folder.resolve(), arguments.cores
    made = make(folder / "dumps", arguments.gigabytes, cores, arguments.languages)
    compressed = sum(path.stat().st_size for path in (folder / "dumps").glob("*.bz2"))
    config = write_config(folder, "undisturbed", arguments.vocabulary, arguments.unit_bytes)
    run = build(config, cores, folder / "undisturbed.log")
    if run.status:
        raise SystemExit(f"{folder}/undisturbed.log: the build failed with status {run.status}")
    output = folder / "undisturbed"
    written = {"work": tree_bytes(output / "work")}
    written["published"] = tree_bytes(output) - written["work"]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "bertmill", "verify", str(output)], cwd=ROOT, check=True)
    verified = time.monotonic() - began
    other = write_config(folder, "killed", arguments.vocabulary, arguments.unit_bytes)
    killed = killed_build(other, cores, folder / "killed.log", run.seconds, arguments.seed)
    equal = published(str(output)) == published(str(folder / "killed"))
    lines = forecast_rows(config, compressed, cores, run)
    text = report(made, run, verified, killed, equal, lines, written, cores)
    print(text)
    if arguments.table:
        with arguments.table.open("a") as file:
            file.write(text + "\n")
    if not equal:
        raise SystemExit("the killed build published other bytes")


if __name__ == "__main__":
    main()
