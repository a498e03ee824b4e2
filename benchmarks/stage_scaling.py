"""Seconds of every stage of a build on one core and on two, by the clock: run it on a machine that is idle.

    python benchmarks/stage_scaling.py CONFIG [--write]

--write keeps the ratios in bertmill/rates.json, from where docs/scaling.md shows them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RATES = ROOT / "bertmill" / "rates.json"
_BEGINS = re.compile(r" ([\w-]+): \d+ units to do")
_ENDS = re.compile(r" ([\w-]+): .*, took ")


def stage_seconds(config: str, cores: int) -> dict[str, float]:
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
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    one, two = (stage_seconds(arguments.config, cores) for cores in (1, 2))
    speedup = {name: round(one[name] / two[name], 2) for name in one if name in two}
    print("| stage | 1 core | 2 cores | ratio |\n|---|---|---|---|")
    for name, ratio in speedup.items():
        print(f"| {name} | {one[name]:.1f} s | {two[name]:.1f} s | {ratio:.2f} |")
    if arguments.write:
        rates = json.loads(RATES.read_text())
        rates["build"]["two_core_speedup"] = {
            "measured": f"benchmarks/stage_scaling.py {arguments.config}",
            "seconds": {name: [round(one[name], 1), round(two[name], 1)] for name in speedup},
            "ratios": speedup,
        }
        RATES.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
