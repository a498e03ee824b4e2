"""Measures a build of a corpus of any size: times, memory, bytes and kills, beside the forecast of `plan`.

    python -m benchmarks.corpus.large.build FOLDER --gigabytes 20 --table benchmarks/results/large_build.md

The dumps come from corpus.py. The build has exact and near dedup and four passes. While it
runs, a thread reads the peak memory of each process twice a second. `bertmill verify` checks the corpus. A
second build is killed with all its processes three times, at random moments, and must publish the same bytes.
The forecast has the rates of this machine, which measure_rates.py measures on as many cores as the build has.

After each part, FOLDER/results.json and FOLDER/results.md have the results so far, and after each part and
stage FOLDER/results.jsonl has one more line. The same command continues with the first missing part. An
interrupted build starts again, because its times must be those of one run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos.build import published
from benchmarks.corpus.large.corpus import LANGUAGES, make
from benchmarks.corpus.large.results import Results
from benchmarks.corpus.watched_build import append_line, build, killed_build, watched
from schemas.manifest import MANIFEST_NAME, parse_manifest

ROOT = Path(__file__).resolve().parents[3]
PASSES = 4
KILLS = 3
SAMPLE_GIGABYTES = 0.1
"""Wikitext from which the rates of this machine are measured."""


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
        append_line(self.lines, {"part": part, "results": json.loads(self.results.dump())})
        print(f"{time.strftime('%H:%M:%S')} {part} done", flush=True)

    @property
    def lines(self) -> Path:
        """The file with a line for each part and stage."""
        return self.folder / "results.jsonl"

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

    def rates(self) -> None:
        """Measures the rates of this machine with all cores busy. Raises CalledProcessError if it fails."""
        sample, rates = self.folder / "sample", self.folder / "rates.json"
        make(sample, min(SAMPLE_GIGABYTES, self.arguments.gigabytes), 2, self.arguments.languages)
        cores = ("--processes", str(self.cores))
        sizes = (*cores, "--vocabulary", str(self.arguments.vocabulary), "--passes", str(PASSES))
        command = [sys.executable, "-m", "benchmarks.rates.measure_rates", f"{sample}/*.xml.bz2", *sizes]
        subprocess.run([*command, "--output", str(rates)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.results.rates = json.loads(rates.read_text())

    def build(self) -> None:
        """Builds without kills. Raises SystemExit if the build fails."""
        output = self.folder / "undisturbed"
        shutil.rmtree(output, ignore_errors=True)
        log = output.with_suffix(".log")
        run = build(self.config(output.name), self.cores, log, lines=self.lines)
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
            self.config(output.name), self.cores, log, run.seconds, seed, KILLS
        )
        self.results.equal = published(str(output)) == published(str(self.folder / "undisturbed"))

    def verify(self) -> None:
        """Runs `bertmill verify`. Raises SystemExit if it finds a problem."""
        began = time.monotonic()
        place = str(self.folder / "undisturbed")
        command = [sys.executable, "-m", "bertmill", "verify", place, "--cores", str(self.cores)]
        process = subprocess.Popen(command, cwd=ROOT, text=True)
        with watched(process) as watch:
            status = process.wait()
        if status:
            raise SystemExit(f"{place}: verify failed with status {status}")
        self.results.verified_seconds = time.monotonic() - began
        self.results.verify_cpu_seconds = sum(watch.cpu.values())
        self.results.verify_peak_bytes = max(watch.peaks.values())

    def run(self) -> Results:
        """Runs the missing parts. Nothing else runs while the rates are measured."""
        results = self.results
        parts: tuple[tuple[Callable[[], None], bool], ...] = (
            (self.generate, results.made is None),
            (self.rates, results.rates is None),
            (self.build, results.run is None),
            (self.verify, results.verified_seconds is None),
            (self.kill, results.equal is None),
        )
        for part, missing in parts:
            if missing:
                part()
                self.save(part.__name__)
        return results


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
    results = Benchmark(arguments).run()
    print(results.report())
    if arguments.table:
        with arguments.table.open("a") as file:
            file.write(results.report() + "\n")
    if not results.equal:
        raise SystemExit("the killed build published other bytes")


if __name__ == "__main__":
    main()
