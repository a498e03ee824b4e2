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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.extract import Cleaner, extract_unit
from pipeline.funnel import Funnel
from pipeline.plan import plan_units
from pipeline.site import SiteInfo
from pipeline.sources.chunks import read_chunks
from pipeline.sources.documents import RawDocument
from pipeline.sources.reader import read_unit
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
    unpacked_bytes: int = 0
    unpacking: float = 0.0
    """Seconds of bz2 decompression alone, in the same run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unit-bytes", type=int, default=32 << 20)
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.rglob("*.xml*") if path.is_file())
    wikis: dict[str, Wiki] = defaultdict(Wiki)
    pa.array([""])  # pyarrow's first conversion imports what it needs, once in a process
    refused: list[str] = []
    for path in paths:
        try:
            extract_file(path, arguments.unit_bytes, wikis)
        except BertmillError as error:
            refused.append(str(error))
    print_table(wikis)
    slowest = sorted(page for path in paths for page in clean_seconds(path))[-3:]
    print("\nslowest pages: " + ", ".join(f"{seconds:.3f} s {title}" for seconds, title in reversed(slowest)))
    print(f"\n{len(paths)} files, {len(refused)} refused:")
    print("\n".join(f"  {line}" for line in refused))
    balanced = all(wiki.rows == wiki.funnel.kept for wiki in wikis.values())
    print(f"accounting {'closes' if balanced else 'DOES NOT CLOSE'}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0 if balanced else 1


def extract_file(path: Path, unit_bytes: int, wikis: dict[str, Wiki]) -> None:
    """Adds the figures of one file; a file that is refused half-way adds what its whole units gave."""
    config = config_of(path, unit_bytes)
    for unit in plan_units(config):
        funnel, rows, text_bytes = Funnel(), 0, 0
        start = time.process_time()
        unpacked = sum(
            len(chunk.data) for chunk in read_chunks(unit.uri, unit.compression, unit.start, unit.end)
        )
        unpacking = time.process_time() - start
        start = time.process_time()
        for batch in extract_unit(unit, config, funnel):
            rows += batch.num_rows
            text_bytes += sum(batch["text_bytes"].to_pylist())
        wiki = wikis[unit.dbname]
        wiki.seconds += time.process_time() - start
        wiki.files += unit.start == 0
        wiki.rows += rows
        if unit.compression == "bz2":
            wiki.unpacked_bytes += unpacked
            wiki.unpacking += unpacking
        wiki.text_bytes += text_bytes
        wiki.raw_bytes += sum(counts.extra["raw_bytes"] for counts in funnel.languages.values())
        wiki.funnel.add(funnel)


def clean_seconds(path: Path) -> Iterator[tuple[float, str]]:
    """Processor time of cleaning and title of every page; nothing of a file that is refused."""
    config = config_of(path, 1 << 30)
    try:
        for unit in plan_units(config):
            cleaner = Cleaner(SiteInfo(unit.lang, unit.dbname, dict(unit.site_namespaces)), config)
            for page in read_unit(unit, config.extraction.max_page_chars):
                if isinstance(page, RawDocument):
                    start = time.process_time()
                    cleaner.clean(page)
                    yield time.process_time() - start, f"{unit.dbname}: {page.title}"
    except BertmillError:
        return


def config_of(path: Path, unit_bytes: int) -> BuildConfig:
    source = Source(name="all", kind="wikimedia", paths=[str(path)])
    return BuildConfig(output="none", sources=[source], extraction=Extraction(unit_bytes=unit_bytes))


def print_table(wikis: dict[str, Wiki]) -> None:
    print(f"{'wiki':16} {'files':>5} {'pages':>6} {'kept':>6} {'MB':>7} {'text MB':>7} {'MB/s':>6}  skipped")
    total = Wiki()
    for name, wiki in sorted(wikis.items(), key=lambda item: -item[1].raw_bytes):
        print_line(name, wiki)
        total.funnel.add(wiki.funnel)
        for figure in ("files", "rows", "raw_bytes", "text_bytes", "seconds", "unpacked_bytes", "unpacking"):
            setattr(total, figure, getattr(total, figure) + getattr(wiki, figure))
    print_line("all", total)
    rate = total.unpacked_bytes / 1e6 / total.unpacking
    print(f"bz2 decompression alone, in the same run: {rate:.1f} MB/s of XML")


def print_line(name: str, wiki: Wiki) -> None:
    skipped = ", ".join(f"{reason} {count}" for reason, count in wiki.funnel.skipped.most_common())
    rate = wiki.raw_bytes / 1e6 / wiki.seconds if wiki.seconds else 0.0
    counts = f"{wiki.files:5} {wiki.funnel.pages_seen:6} {wiki.funnel.kept:6}"
    sizes = f"{wiki.raw_bytes / 1e6:7.3f} {wiki.text_bytes / 1e6:7.3f} {rate:6.2f}"
    print(f"{name:16} {counts} {sizes}  {skipped}")


if __name__ == "__main__":
    sys.exit(main())
