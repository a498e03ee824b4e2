r"""Measures the wall-clock time of every stage of a build on one core and on two. Run it on an idle machine.

Every process of a build is bound to this number of cores, including the driver and Ray's processes.

    python -m benchmarks.rates.stage_scaling configs/demo.yaml --dumps 'FOLDER/*-multistream.xml.bz2' \
        --copies 32 --text FOLDER/english.jsonl.zst --megabytes 150 --write

A build that ends after extract reads --dumps, --copies times each under other names, because no real dump of
that size is available and copies are the same work. A whole build reads --text, which holds different
documents (`text`, `lang`), in --files pieces with exact and near dedup, which would remove copies. Without
the two, a build reads the sources of the config, --copies times and without exact dedup. --write keeps
seconds and ratios in bertmill/planning/rates.json, from which benchmarks/rates/write_scaling.py fills
docs/project/scaling.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.texts import records
from cluster import storage
from cluster.jobs.config_file import load_config
from pipeline.config import BuildConfig

ROOT = Path(__file__).resolve().parents[2]
RATES = ROOT / "bertmill" / "planning" / "rates.json"
_BEGINS = re.compile(r" ([\w-]+): \d+ units to do")
_ENDS = re.compile(r" ([\w-]+): .*, took ")


@dataclass(frozen=True)
class Work:
    """A build to time: its ``--field=value`` arguments, and the stage after which to end it, if any."""

    arguments: tuple[str, ...]
    until: str = ""
    suffix: str = ""
    """Suffix of the stages' names in the table."""


def copied(config: str, copies: int) -> list[str]:
    """The arguments that let the build of ``config`` read its sources ``copies`` times."""
    if copies == 1:
        return []
    sources = [
        {**source.model_dump(mode="json", exclude_unset=True), "name": f"{source.name}-{number}"}
        for source in load_config(BuildConfig, config).sources
        for number in range(copies)
    ]
    return [f"--sources={json.dumps(sources)}", "--dedup.exact=false"]


def of_dumps(pattern: str, copies: int) -> Work:
    """Extract of ``copies`` of every dump."""
    paths = storage.expand_glob(pattern)
    if not paths:
        raise SystemExit(f"{pattern}: no such file")
    sources = [
        {"name": f"dump-{file}-{number}", "kind": "wikimedia", "paths": [path]}
        for file, path in enumerate(paths)
        for number in range(copies)
    ]
    return Work((f"--sources={json.dumps(sources)}",), "extract", " (wikitext)")


def of_text(path: Path, folder: Path, megabytes: float, files: int) -> Work:
    """A whole build of the documents of ``path``, which are written to ``files`` files first."""
    folder.mkdir()
    read, handles = 0, [(folder / f"{number:03d}.jsonl").open("w") for number in range(files)]
    for number, record in enumerate(records(path)):
        handles[number % files].write(json.dumps(record) + "\n")
        read += len(record["text"].encode())
        if read >= megabytes * 1e6:
            break
    for handle in handles:
        handle.close()
    source = {"name": "text", "kind": "jsonl", "paths": [f"{folder}/*.jsonl"]}
    unit = -(-sum(file.stat().st_size for file in folder.iterdir()) // files)
    command = (f"--sources={json.dumps([source])}", "--dedup.near=true", f"--extraction.unit_bytes={unit}")
    return Work(command, "instances")


def stage_seconds(config: str, cores: int, work: Work) -> dict[str, float]:
    """Seconds from the first to the last line of every stage of a fresh build. Dedup counts as one stage."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    # An ended build may still have a worker that writes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            "pipeline/build_corpus.py",
            "--config",
            config,
            "--cpus",
            str(cores),
            f"--output={folder}/corpus",
            *work.arguments,
        ]
        # Ray's CPUs limit only its tasks. Driver, object store and Arrow would use the other core.
        everything = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(sorted(everything)[:cores]))
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(0, everything)
        started: dict[str, float] = {}
        found: dict[str, float] = {}
        for line in process.stderr or ():
            begins, ends = _BEGINS.search(line), _ENDS.search(line)
            if begins:
                started[begins[1]] = time.monotonic()
            elif ends:
                stage = ends[1].partition("-")[0]
                found[stage] = found.get(stage, 0.0) + time.monotonic() - started[ends[1]]
                if stage == work.until:
                    process.terminate()
        if process.wait() != 0 and work.until not in found:
            raise SystemExit(f"the build ended with {process.returncode}")
    return {name + work.suffix: seconds for name, seconds in found.items()}


def _shown(arguments: argparse.Namespace) -> str:
    """The arguments as the document shows them, files by name."""
    parts = [arguments.config]
    if arguments.dumps:
        parts.append(f"--dumps {arguments.dumps.rpartition('/')[2]}")
    if arguments.copies > 1:
        parts.append(f"--copies {arguments.copies}")
    if arguments.text:
        parts.append(f"--text {arguments.text.name} --megabytes {arguments.megabytes:g}")
    return " ".join(parts)


def main() -> None:
    """Measures, prints a table, and keeps the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--dumps", metavar="GLOB")
    parser.add_argument("--text", type=Path, metavar="FILE", help=".jsonl.zst or .jsonl.xz")
    parser.add_argument("--megabytes", type=float, default=150, help="of the text")
    parser.add_argument("--files", type=int, default=48, help="pieces of the text")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        todo = []
        if arguments.dumps:
            todo.append(of_dumps(arguments.dumps, arguments.copies))
        if arguments.text:
            text = Path(folder) / "text"
            todo.append(of_text(arguments.text, text, arguments.megabytes, arguments.files))
        if not todo:
            todo.append(Work(tuple(copied(arguments.config, arguments.copies))))
        one, two = ({}, {})  # type: dict[str, float], dict[str, float]
        for work in todo:
            one |= stage_seconds(arguments.config, 1, work)
            two |= stage_seconds(arguments.config, 2, work)
    speedup = {name: round(one[name] / two[name], 2) for name in one if name in two}
    print("| stage | 1 core | 2 cores | ratio |\n|---|---|---|---|")
    for name, ratio in speedup.items():
        print(f"| {name} | {one[name]:.1f} s | {two[name]:.1f} s | {ratio:.2f} |")
    if arguments.write:
        rates, day = json.loads(RATES.read_text()), datetime.now(UTC).date().isoformat()
        rates["build"]["two_core_speedup"] = {
            "measured": f"`stage_scaling.py {_shown(arguments)}`, {day}",
            "seconds": {name: [round(one[name], 1), round(two[name], 1)] for name in speedup},
            "ratios": speedup,
        }
        RATES.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
