"""Measures how fast the first round of stage templates reads a dump, compared with plain reading.

    python -m benchmarks.extraction.template_speed DUMP.bz2... [--out benchmarks/results/template_speed.md]

For each dump the processor time of three things, the best of five rounds that take turns: bz2 alone,
reading its pages (bz2 and XML), and the scan for templates, which also reads the pages. The ratios hold on
any machine.
"""

import argparse
import bz2
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pipeline.documents.templates.scan import scan_unit
from pipeline.sources.mediawiki.dumps import plan_dump, read_wiki_pages
from pipeline.sources.units import Unit

_MAX_CHARS = 4_000_000
_ROUNDS = 5


def _wikitext_bytes(unit: Unit) -> int:
    return sum(len(page.raw_text) for page, _ in read_wiki_pages(unit, _MAX_CHARS) if page is not None)


def row(dump: Path) -> str:
    """A line of the table."""
    (unit,) = plan_dump(source="benchmark", uri=str(dump), name=dump.name, unit_bytes=1 << 40)
    steps: dict[str, Callable[[], object]] = {
        "bz2": lambda: bz2.decompress(dump.read_bytes()),
        "read": lambda: _wikitext_bytes(unit),
        "scan": lambda: list(scan_unit(unit, _MAX_CHARS, Counter())),
    }
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(_ROUNDS):
        for name, step in steps.items():
            started = time.process_time()
            step()
            best[name] = min(best[name], time.process_time() - started)
    megabytes = _wikitext_bytes(unit) / 1e6
    cells = [
        dump.name.split("-")[0], f"{megabytes:.2f}", *(f"{megabytes / best[name]:.1f}" for name in steps),
        f"{best['scan'] / best['read']:.2f}", f"{best['scan'] / best['bz2']:.2f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = [
        "# Stage templates: reading for templates",
        "",
        "MB of wikitext per second of one core, and the time of the scan as a multiple of reading the pages"
        " and of bz2 alone. The second round, which classifies templates, took 0.07 s for 75 of ltgwiki.",
        "",
        "| wiki | MB wikitext | bz2 alone MB/s | reading MB/s | scan MB/s | scan / reading | scan / bz2 |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *map(row, arguments.dumps),
    ]
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
