"""What does `previous` save? Extraction of two snapshots of dumps, the second with and without the first.

    python -m benchmarks.reuse DUMP.xml.bz2... [--share 0.05] [--repeats 3]

Prints Markdown. The second snapshot is the first with one more sentence in a share of the articles, and in a
second round in that share of the pages of all namespaces, templates included. Seconds are processor time of
stage extract: reading (decompression and XML), cleaning or reuse, writing of documents and index. Reading
alone stands beside it, since no page can be known before it is read. The best of the repeats counts. Exit
status 1 when a document or a count differs.
"""

import argparse
import bz2
import hashlib
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.documents.reuse.previous_pages import PreviousPages, Reused, total_reused
from pipeline.documents.template_scan import scan_unit, wiki_name
from pipeline.documents.template_tables import learn_wiki
from pipeline.engine.commit import Marker, StageFolder
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from pipeline.sources.units import Unit
from pipeline.stages.extract import UnitCounts, extract_folder, extract_one
from pipeline.stages.previous import previous_parts
from pipeline.stages.templates import TemplatesResult
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.table import NO_TEMPLATES, TemplateTable
from schemas.templates import FOUND

_PAGE = re.compile(rb"<page>.*?</page>", re.S)
_ADDED = b"\nOne more sentence was written in the month between the two snapshots."


@dataclass(frozen=True)
class Tables(TemplatesResult):
    """Template tables in memory."""

    tables: Mapping[str, TemplateTable] = None  # type: ignore[assignment]

    def table_of(self, unit: Unit) -> TemplateTable:
        """The table of the unit's wiki."""
        return self.tables.get(wiki_name(unit), NO_TEMPLATES)


@dataclass(frozen=True)
class Snapshot:
    """A folder of dumps: how they are read, and the tables of their wikis."""

    config: BuildConfig
    units: list[Unit]
    tables: Tables


@dataclass(frozen=True)
class Extracted:
    """The result of one extraction, and its seconds of processor time."""

    folder: StageFolder[UnitCounts]
    markers: dict[str, Marker[UnitCounts]]
    seconds: float

    def hashes(self) -> dict[str, str]:
        """Unit -> hash of its documents."""
        return {unit: marker.files[0].sha256 for unit, marker in self.markers.items()}

    def funnels(self) -> list[object]:
        """All counts of pages and of their texts."""
        return [marker.counts.funnel for marker in self.markers.values()]

    def reused(self) -> Reused:
        """What was reused."""
        return total_reused(marker.counts.reused for marker in self.markers.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("dumps", type=Path, nargs="+")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    equal = True
    print("| changed | pages | reused | reading alone | without | with | with / without | less reading |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for changed in ("articles", "all namespaces"):
        with tempfile.TemporaryDirectory() as folder:
            equal &= compare(Path(folder), arguments, changed)
    return 0 if equal else 1


def compare(folder: Path, arguments: argparse.Namespace, changed: str) -> bool:
    """Prints a line of the table. Returns whether the documents and counts are equal."""
    first = snapshot(folder / "1", arguments.dumps, 0.0, changed)
    second = snapshot(folder / "2", arguments.dumps, arguments.share, changed)
    earlier = extract(first, folder / "work1", None)
    pages = PreviousPages(previous_parts(earlier.folder))
    runs: dict[bool, list[Extracted]] = {False: [], True: []}
    reading = 1e9
    for number in range(arguments.repeats):
        reading = min(reading, read_seconds(second))
        for reuses in (False, True):
            work = folder / f"work2-{number}-{reuses}"
            runs[reuses].append(extract(second, work, pages if reuses else None))
    seconds = {reuses: min(run.seconds for run in found) for reuses, found in runs.items()}
    plain, reusing = runs[False][-1], runs[True][-1]
    reused = reusing.reused()
    share = reused.reused / max(1, reused.pages)
    whole = seconds[True] / seconds[False]
    rest = (seconds[True] - reading) / (seconds[False] - reading)
    print(
        f"| {arguments.share:.0%} of {changed} | {reused.pages:,} | {share:.1%} | {reading:.2f} s "
        f"| {seconds[False]:.2f} s | {seconds[True]:.2f} s | {whole:.1%} | {rest:.1%} |"
    )
    return plain.hashes() == reusing.hashes() and plain.funnels() == reusing.funnels()


def snapshot(folder: Path, dumps: list[Path], share: float, changed: str) -> Snapshot:
    """Writes the dumps, each as one bzip2 stream, with a share of the pages changed."""
    folder.mkdir()
    for dump in dumps:
        text = bz2.decompress(dump.read_bytes())
        mutated = _PAGE.sub(lambda match: mutate(match[0], share, changed), text)
        (folder / dump.name.replace("-multistream", "")).write_bytes(bz2.compress(mutated))
    config = BuildConfig.model_validate(
        {"output": "out", "sources": [{"name": "wiki", "kind": "wikimedia", "paths": [str(folder)]}]}
    )
    units = plan_units(config)
    return Snapshot(config, units, Tables(tables=dict(learned(units))))


def mutate(page: bytes, share: float, changed: str) -> bytes:
    """The page with one more sentence if it is one of the share, which its id decides."""
    if changed == "articles" and b"<ns>0</ns>" not in page:
        return page
    number = re.search(rb"<id>(\d+)</id>", page)
    draw = hashlib.blake2b(number[1] if number else b"", digest_size=4).digest()
    if int.from_bytes(draw, "big") >= share * 2**32:
        return page
    # After the first paragraph if there are two.
    start = page.find(b"<text")
    place = page.find(b"\n\n", start)
    place = place if place >= 0 else page.find(b"</text>", start)
    return page[:place] + _ADDED + page[place:] if place >= 0 else page


def learned(units: list[Unit]) -> Iterator[tuple[str, TemplateTable]]:
    """The template table of each wiki."""
    for unit in units:
        for file in unit.ranges:
            found = pa.Table.from_batches(scan_unit(file, 1 << 22, Counter()), FOUND)
            site = SiteInfo(file.lang, file.dbname, dict(file.site_namespaces))
            yield wiki_name(file), learn_wiki([found], site).table


def read_seconds(snapshot: Snapshot) -> float:
    """Processor time of reading all pages."""
    start = time.process_time()
    for unit in snapshot.units:
        for file in unit.ranges:
            for _ in read_unit(file, snapshot.config.extraction):
                pass
    return time.process_time() - start


def extract(snapshot: Snapshot, work: Path, previous: PreviousPages | None) -> Extracted:
    """Extracts all units in this process."""
    folder = extract_folder(snapshot.config, str(work), snapshot.units)
    start = time.process_time()
    for unit in snapshot.units:
        extract_one(unit, snapshot.config, folder, snapshot.tables, previous)
    seconds = time.process_time() - start
    return Extracted(folder, folder.finished(), seconds)


if __name__ == "__main__":
    sys.exit(main())
