"""Extracts every dump below a folder: checks that the counts close, and measures speed and memory.

    python -m benchmarks.extraction.extract_all DATA_DIR [--rounds N] [--unit-bytes N]

Prints Markdown with a line per wiki: pages seen, documents kept, pages skipped by reason, wikitext in MB, and
the rate in MB of wikitext per second of processor time of one core, from the compressed file to rows of
sentences, in the best of the rounds. It also prints the rate of bz2 alone, which takes most of the time, and
lists refused files with their message. Exit status 1 when the counts do not balance.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from benchmarks.peak_memory import peak_resident_bytes
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.documents.cleaning import Cleaner
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.sources.chunks import read_chunks
from pipeline.sources.documents import RawDocument
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from pipeline.sources.units import Unit
from pipeline.wikitext.site import SiteInfo
from schemas.errors import BertmillError
from schemas.tallies import add_fields


@dataclass
class Wiki:
    """Figures of one wiki, or of one unit."""

    files: int = 0
    rows: int = 0
    text_bytes: int = 0
    raw_bytes: int = 0
    seconds: float = 0.0
    unpacked_bytes: int = 0
    """XML out of bz2."""
    unpacking: float = 0.0
    """Seconds of bz2 decompression alone."""
    funnel: Funnel = field(default_factory=Funnel)

    def add(self, other: "Wiki") -> None:
        """Adds the figures and the funnel of ``other``."""
        add_fields(self, other)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unit-bytes", type=int, default=32 << 20)
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.rglob("*.xml*") if path.is_file())
    wikis: dict[str, Wiki] = defaultdict(Wiki)
    refused: list[str] = []
    slowest: list[tuple[float, str]] = []
    pa.array([""])  # pyarrow's first conversion in a process imports modules
    for path in paths:
        config = config_of(path, arguments.unit_bytes)
        try:
            for unit in plan_units(config):
                wikis[unit.dbname].add(measure(unit, config, arguments.rounds))
                slowest = sorted([*slowest, *clean_seconds(unit, config)])[-3:]
        except BertmillError as error:
            refused.append(str(error).replace(str(arguments.folder), "DATA_DIR"))
    balanced = all(wiki.rows == wiki.funnel.kept for wiki in wikis.values())
    print_report(wikis, slowest, f"{len(paths)} files, {len(refused)} refused", refused, balanced)
    return 0 if balanced else 1


def config_of(path: Path, unit_bytes: int) -> BuildConfig:
    source = Source(name="all", kind="wikimedia", paths=[str(path)])
    return BuildConfig(output="none", sources=[source], extraction=Extraction(unit_bytes=unit_bytes))


def measure(unit: Unit, config: BuildConfig, rounds: int) -> Wiki:
    """Figures of a unit, times the best of the rounds. Raises InputError on a damaged file."""
    best = Wiki(seconds=float("inf"), unpacking=float("inf"))
    for _ in range(rounds):
        wiki = Wiki(files=int(unit.start == 0))
        start = time.process_time()
        for batch in extract_unit(unit, config, wiki.funnel):
            wiki.rows += batch.num_rows
            wiki.text_bytes += sum(batch["text_bytes"].to_pylist())
        wiki.seconds = min(best.seconds, time.process_time() - start)
        wiki.raw_bytes = sum(counts.text_counts["raw_bytes"] for counts in wiki.funnel.languages.values())
        if unit.compression == "bz2":
            start = time.process_time()
            chunks = read_chunks(unit.uri, unit.compression, unit.start, unit.end, unit.size)
            wiki.unpacked_bytes = sum(len(chunk.data) for chunk in chunks)
            wiki.unpacking = min(best.unpacking, time.process_time() - start)
        best = wiki
    return best


def clean_seconds(unit: Unit, config: BuildConfig) -> Iterator[tuple[float, str]]:
    """Processor time of cleaning and title of every page."""
    cleaner = Cleaner(SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces)), config)
    for page in read_unit(unit, config.extraction):
        if isinstance(page, RawDocument):
            start = time.process_time()
            cleaner.clean(page)
            yield time.process_time() - start, f"{unit.dbname}: {page.title}"


def print_report(
    wikis: dict[str, Wiki], slowest: list[tuple[float, str]], files: str, refused: list[str], balanced: bool
) -> None:
    total = Wiki()
    for wiki in wikis.values():
        total.add(wiki)
    print("# Extraction of real dumps, one core\n")
    print(f"{files}, {len(wikis)} wikis. The accounting {'closes' if balanced else 'DOES NOT CLOSE'}.")
    print(
        f"bz2 alone: {total.unpacked_bytes / 1e6 / (total.unpacking or 1):.1f} MB of XML/s in the same run."
    )
    print(
        "Slowest pages: "
        + ", ".join(f"{title} {seconds:.3f} s" for seconds, title in reversed(slowest))
        + "."
    )
    peak = peak_resident_bytes() / 2**20
    print(f"Peak memory of the process: {peak:.0f} MB.\n")
    print("| wiki | files | pages | kept | MB wikitext | MB text | MB/s | skipped |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for name, wiki in [("all", total), *sorted(wikis.items(), key=lambda item: -item[1].raw_bytes)]:
        print_line(name, wiki)
    print("\nRefused:\n")
    print("\n".join(f"- {line}" for line in refused))


def print_line(name: str, wiki: Wiki) -> None:
    skipped = ", ".join(f"{reason} {count}" for reason, count in wiki.funnel.skipped.most_common())
    rate = wiki.raw_bytes / 1e6 / wiki.seconds if wiki.seconds else 0.0
    counts = f"{wiki.files} | {wiki.funnel.pages_seen} | {wiki.funnel.kept}"
    sizes = f"{wiki.raw_bytes / 1e6:.3f} | {wiki.text_bytes / 1e6:.3f} | {rate:.1f}"
    print(f"| {name} | {counts} | {sizes} | {skipped} |")


if __name__ == "__main__":
    sys.exit(main())
