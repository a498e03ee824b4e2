"""Seconds of every stage of a build on one core and on two, by the clock: run it on a machine that is idle.

    python benchmarks/stage_scaling.py configs/demo.yaml --copies 8 --write

Starting tasks is a large share of a small build. --copies reads every source so many times under other names,
without dropping equal documents, so that there is work for minutes. --write keeps seconds and ratios in
bertmill/rates.json, from where benchmarks/write_scaling.py puts them into docs/scaling.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from cluster.config_file import load_config
from pipeline.config import BuildConfig

ROOT = Path(__file__).resolve().parents[1]
RATES = ROOT / "bertmill" / "rates.json"
_BEGINS = re.compile(r" ([\w-]+): \d+ units to do")
_ENDS = re.compile(r" ([\w-]+): .*, took ")


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


def stage_seconds(config: str, cores: int, copies: int = 1) -> dict[str, float]:
    """Seconds between the first and the last line of every stage of a fresh build."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "pipeline/build_corpus.py",
            "--config",
            config,
            "--cpus",
            str(cores),
            f"--output={folder}/corpus",
            *copied(config, copies),
        ]
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        begun: dict[str, float] = {}
        found: dict[str, float] = {}
        for line in process.stderr or ():
            begins, ends = _BEGINS.search(line), _ENDS.search(line)
            if begins:
                begun[begins[1]] = time.monotonic()
            elif ends:
                found[ends[1]] = time.monotonic() - begun[ends[1]]
        if process.wait() != 0:
            raise SystemExit(f"the build ended with {process.returncode}")
    return found


def main() -> None:
    """Measures, prints a table, and keeps the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    one, two = (stage_seconds(arguments.config, cores, arguments.copies) for cores in (1, 2))
    speedup = {name: round(one[name] / two[name], 2) for name in one if name in two}
    print("| stage | 1 core | 2 cores | ratio |\n|---|---|---|---|")
    for name, ratio in speedup.items():
        print(f"| {name} | {one[name]:.1f} s | {two[name]:.1f} s | {ratio:.2f} |")
    if arguments.write:
        rates, day = json.loads(RATES.read_text()), datetime.now(UTC).date().isoformat()
        rates["build"]["two_core_speedup"] = {
            "measured": f"`stage_scaling.py {arguments.config} --copies {arguments.copies}`, {day}",
            "seconds": {name: [round(one[name], 1), round(two[name], 1)] for name in speedup},
            "ratios": speedup,
        }
        RATES.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
