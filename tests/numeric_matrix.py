"""Runs the tests of floating-point values on every instruction set, number of threads and version of torch.

    python -m tests.numeric_matrix --quick                        # one thread, without the slow tests
    python -m tests.numeric_matrix --python OTHER/bin/python      # a second torch beside this one's
    python -m tests.numeric_matrix --write                        # writes benchmarks/results/numeric.md

Sums in another order differ by rounding. A test that fails in one cell only has a tolerance that does not
follow from its arithmetic, or its result depends on rounding.
"""

import argparse
import itertools
import os
import platform
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/numeric.md"
TESTS = "numeric and not (ray or s3 or gs or process or gpu)"
# The same limit for torch's kernels, oneDNN and MKL.
_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
LEVELS = {
    "default": ("default", "SSE41", "SSE4_2"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512"),
}
THREADS = (1, 2, 4)


@dataclass(frozen=True)
class Cell:
    """One run of the tests."""

    torch: str
    level: str
    threads: int
    passed: int
    skipped: int
    failures: tuple[str, ...]
    seconds: float

    def row(self) -> str:
        """A row of the table."""
        failed = "<br>".join(self.failures) or "0"
        return (
            f"| {self.torch} | {self.level} | {self.threads} | {self.passed} | {self.skipped} | {failed} |"
            f" {self.seconds:.0f} |"
        )


def levels_here() -> list[str]:
    """The levels up to that of this processor."""
    names = list(LEVELS)
    own = torch.backends.cpu.get_cpu_capability().lower()
    return names[: names.index(own) + 1] if own in names else ["default"]


def run(python: str, level: str, threads: int, selection: str, paths: list[str]) -> Cell:
    """Runs the selected tests in a separate process."""
    version = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()
    environment = {
        **os.environ,
        **dict(zip(_VARIABLES, LEVELS[level], strict=True)),
        "OMP_NUM_THREADS": str(threads),
        "TEST_THREADS": str(threads),
    }
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [python, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--durations=0", "--tb=short",
             "-m", selection, f"--junitxml={report}", *paths],
            cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        if done.returncode:
            print(done.stdout, file=sys.stderr)
        (suite,) = ET.parse(report).getroot().iter("testsuite")
    cases = list(suite.iter("testcase"))
    failures = tuple(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - skipped - len(failures)
    return Cell(version, level, threads, passed, skipped, failures, time.monotonic() - began)


def processor() -> str:
    """The processor's name, where Linux gives it."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1] if found else platform.processor()


def main() -> int:
    """Runs the matrix and prints its table. The exit status is 1 when a test failed in any cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one thread, without the slow tests")
    parser.add_argument(
        "--python", action="append", default=[], help="another interpreter, with another torch"
    )
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULT.relative_to(ROOT)}")
    parser.add_argument("paths", nargs="*", default=["tests"], help="test files or folders")
    arguments = parser.parse_args()
    selection = f"{TESTS} and not slow" if arguments.quick else TESTS
    lines = [
        f"{processor()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "",
        "| torch | instructions | threads | passed | skipped | failed | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    numbers = (1,) if arguments.quick else THREADS
    cells = list(itertools.product((sys.executable, *arguments.python), levels_here(), numbers))
    failed = False
    # As many at a time as there are CPUs for their threads.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // max(numbers))) as pool:
        for cell in pool.map(lambda it: run(it[0], it[1], it[2], selection, arguments.paths), cells):
            failed |= bool(cell.failures)
            lines.append(cell.row())
            print(lines[-1], flush=True)
    if arguments.write:
        command = "python -m tests.numeric_matrix" + (" --python ..." if arguments.python else "")
        RESULT.write_text(
            f"# Floating-point tests on every instruction set\n\n`{command}`\n\n" + "\n".join(lines) + "\n"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
