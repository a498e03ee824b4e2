"""Extraction over every dump below a folder: does the accounting close, how fast is it, how much memory?

    python benchmarks/extract_all.py DATA_DIR [--unit-bytes N]

A line per wiki: pages seen, documents kept, pages skipped by reason, wikitext in MB, and the rate in MB of
wikitext per second of processor time of one core, from the compressed file to paragraphs and sentences.
Files that are refused are listed with their message. Exit status 1 when the counts do not balance.
"""

import argparse
import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.extract import extract_unit
from pipeline.funnel import Funnel
from pipeline.plan import plan_units
from schemas.errors import BertmillError


@dataclass
class Wiki:
    """Figures of one wiki."""

    funnel: Funnel = field(default_factory=Funnel)
    files: int = 0
    rows: int = 0
    raw_bytes: int = 0
    text_bytes: int = 0
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unit-bytes", type=int, default=32 << 20)
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.rglob("*.xml*") if path.is_file())
    wikis: dict[str, Wiki] = defaultdict(Wiki)
    refused: list[str] = []
    for path in paths:
        try:
            extract_file(path, arguments.unit_bytes, wikis)
        except BertmillError as error:
            refused.append(str(error))
    print_table(wikis)
    print(f"\n{len(paths)} files, {len(refused)} refused:")
    print("\n".join(f"  {line}" for line in refused))
    balanced = all(wiki.rows == wiki.funnel.kept for wiki in wikis.values())
    print(f"accounting {'closes' if balanced else 'DOES NOT CLOSE'}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0 if balanced else 1


def extract_file(path: Path, unit_bytes: int, wikis: dict[str, Wiki]) -> None:
    """Adds the figures of one file; a file that is refused half-way adds what its whole units gave."""
    source = Source(name="all", kind="wikimedia", paths=[str(path)])
    config = BuildConfig(output="none", sources=[source], extraction=Extraction(unit_bytes=unit_bytes))
    for unit in plan_units(config):
        funnel, rows, text_bytes = Funnel(), 0, 0
        start = time.process_time()
        for batch in extract_unit(unit, config, funnel):
            rows += batch.num_rows
            text_bytes += sum(batch["text_bytes"].to_pylist())
        wiki = wikis[unit.dbname]
        wiki.seconds += time.process_time() - start
        wiki.files += unit.start == 0
        wiki.rows += rows
        wiki.text_bytes += text_bytes
        wiki.raw_bytes += sum(counts.extra["raw_bytes"] for counts in funnel.languages.values())
        wiki.funnel.add(funnel)


def print_table(wikis: dict[str, Wiki]) -> None:
    print(f"{'wiki':16} {'files':>5} {'pages':>6} {'kept':>6} {'MB':>7} {'text MB':>7} {'MB/s':>6}  skipped")
    total = Wiki()
    for name, wiki in sorted(wikis.items(), key=lambda item: -item[1].raw_bytes):
        print_line(name, wiki)
        total.funnel.add(wiki.funnel)
        for figure in ("files", "rows", "raw_bytes", "text_bytes", "seconds"):
            setattr(total, figure, getattr(total, figure) + getattr(wiki, figure))
    print_line("all", total)


def print_line(name: str, wiki: Wiki) -> None:
    skipped = ", ".join(f"{reason} {count}" for reason, count in wiki.funnel.skipped.most_common())
    rate = wiki.raw_bytes / 1e6 / wiki.seconds if wiki.seconds else 0.0
    counts = f"{wiki.files:5} {wiki.funnel.pages_seen:6} {wiki.funnel.kept:6}"
    sizes = f"{wiki.raw_bytes / 1e6:7.3f} {wiki.text_bytes / 1e6:7.3f} {rate:6.2f}"
    print(f"{name:16} {counts} {sizes}  {skipped}")


if __name__ == "__main__":
    sys.exit(main())
