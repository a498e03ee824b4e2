"""Measures what `previous` saves: two snapshots of dumps, the second built with and without the first.

    python -m benchmarks.corpus.reuse DUMP.xml.bz2... [--share 0.05] [--repeats 5]

Prints Markdown. The second snapshot is the first with one more sentence in a share of the articles, and in a
second round in that share of the pages of all namespaces, templates included. Seconds are processor time of
this process. The repeats alternate, and the best counts. The stages that reuse are extract (reading, cleaning
or reuse, documents and index) and the signatures of near dedup. Stage templates reads the dump in any case.
With an earlier build it also copies the pages for extract, which counts among the stages that reuse. The
script also prints the costs of index, signatures and copies, and what copies would save in every build. Exit
status 1 when a document, a signature or a count differs.
"""

import argparse
import bz2
import hashlib
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.dedup.near import ranks_of
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.documents.part import Part
from pipeline.documents.removals import chosen_batches
from pipeline.documents.reuse.previous_pages import PreviousPages, Reused, reused_text, total_reused
from pipeline.documents.templates.scan import scan_unit, wiki_name
from pipeline.documents.templates.tables import learn_wiki
from pipeline.engine.commit import Marker, PartWriter, StageFolder
from pipeline.sources.mediawiki.dumps import read_wiki_pages, stored_page
from pipeline.sources.mediawiki.page import WikiPage
from pipeline.sources.plan import plan_units
from pipeline.sources.units import Unit
from pipeline.stages.extract import UnitCounts, extract_folder, extract_one
from pipeline.stages.previous import previous_parts
from pipeline.stages.signatures import PreviousSignatures, SignatureStage, reused_signatures_text
from pipeline.stages.templates import PageCopies, ScanCounts, TemplatesResult, scan_one
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.table import NO_TEMPLATES, TemplateTable
from schemas.columns.documents import DOCUMENTS
from schemas.columns.templates import SCANNED

COLUMNS = ["key", "content_hash", "sentences"]
_PAGE = re.compile(rb"<page>.*?</page>", re.S)
_ADDED = b"\nOne more sentence was written in the month between the two snapshots."


@dataclass(frozen=True)
class Tables(TemplatesResult):
    """Template tables in memory."""

    tables: Mapping[str, TemplateTable] = field(default_factory=dict)

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
        """The counts of reuse."""
        return total_reused(marker.counts.reused for marker in self.markers.values())

    def bytes(self, suffix: str) -> int:
        """Bytes of the files with a suffix."""
        return sum(path.stat().st_size for path in Path(self.folder.uri).glob(f"*{suffix}"))


@dataclass(frozen=True)
class Signed:
    """The band hashes of one extraction, and their seconds of processor time."""

    stage: SignatureStage
    seconds: float

    def hashes(self) -> dict[str, str]:
        """Unit -> hash of its file."""
        return {unit: marker.files[0].sha256 for unit, marker in self.stage.folder.finished().items()}

    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(marker.files[0].bytes for marker in self.stage.folder.finished().values())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("dumps", type=Path, nargs="+")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    equal = True
    for changed in ("articles", "all namespaces"):
        with tempfile.TemporaryDirectory() as folder:
            equal &= compare(Path(folder), arguments, changed)
    return 0 if equal else 1


def compare(folder: Path, arguments: argparse.Namespace, changed: str) -> bool:
    """Prints the tables of one kind of change. Returns whether documents, signatures and counts are equal."""
    first = snapshot(folder / "1", arguments.dumps, 0.0, changed)
    second = snapshot(folder / "2", arguments.dumps, arguments.share, changed)
    earlier = extract(first, folder / "work1", None)
    pages = PreviousPages(previous_parts(earlier.folder))
    signed = sign(earlier, folder / "work1", None)
    previous = PreviousSignatures(signed.stage.folder, pages)
    seconds: dict[str, list[float]] = defaultdict(list)
    no_pages = PreviousPages([])
    for number in range(arguments.repeats):
        seconds["bz2"].append(timed(lambda: decompress(second)))
        seconds["templates"].append(timed(partial(scan, second, folder / f"scan{number}")))
        seconds["copies"].append(copy(second, folder / f"reusing{number}"))
        copy(second, folder / f"copied{number}")
        seconds["copied extract"].append(extract(second, folder / f"copied{number}", no_pages).seconds)
        seconds["no index"].append(timed(partial(extract_without_index, second, folder / f"bare{number}")))
        plain = extract(second, folder / f"plain{number}", None)
        reusing = extract(second, folder / f"reusing{number}", pages)
        plain_signed = sign(plain, folder / f"plain{number}", None)
        reusing_signed = sign(reusing, folder / f"reusing{number}", previous)
        for name, run in (("extract", plain), ("extract with", reusing)):
            seconds[name].append(run.seconds)
        for name, signing in (("sign", plain_signed), ("sign with", reusing_signed)):
            seconds[name].append(signing.seconds)
    best = {name: min(found) for name, found in seconds.items()}
    print(f"\n## {arguments.share:.0%} of {changed} changed\n")
    print(f"Extract {reused_text(reusing.reused())}.")
    print(f"Near dedup {reused_signatures_text(reusing_signed.stage.counts())}.\n")
    print_table(best)
    print_costs(best, plain, plain_signed)
    print_copies(best, second, folder / "reusing0")
    same_files = plain_signed.hashes() == reusing_signed.hashes()
    return same_files and plain.hashes() == reusing.hashes() and plain.funnels() == reusing.funnels()


def print_table(best: Mapping[str, float]) -> None:
    """The stages with and without the earlier build. ``with`` has the copies of the pages."""
    reusing = best["extract"] + best["sign"]
    reusing_with = best["extract with"] + best["sign with"] + best["copies"]
    rows = [
        ("extract", best["extract"], best["extract with"]),
        ("signatures of near dedup", best["sign"], best["sign with"]),
        ("copies of pages", 0.0, best["copies"]),
        ("**stages that reuse, and copies**", reusing, reusing_with),
        ("templates, without copies", best["templates"], best["templates"]),
        ("**all three stages**", reusing + best["templates"], reusing_with + best["templates"]),
    ]
    print("| | without, s | with, s | with / without |\n|---|---:|---:|---:|")
    for name, without, with_previous in rows:
        share = f"{with_previous / without:.1%}" if without else ""
        print(f"| {name} | {without:.2f} | {with_previous:.2f} | {share} |")
    print(f"\nTo decompress the dumps once takes {best['bz2']:.2f} s.")


def print_costs(best: Mapping[str, float], plain: "Extracted", signed: "Signed") -> None:
    """Prints the costs of index and stored signatures for every build."""
    documents, index = (plain.bytes(suffix) for suffix in (".parquet", ".pages"))
    slower = best["extract"] / best["no index"] - 1
    print(
        f"\nIndex: {index / documents:.1%} of the bytes of the documents, {slower:.1%} of extract's time. "
        f"Stored signatures: {signed.bytes() / documents:.1%} of these bytes."
    )


def print_copies(best: Mapping[str, float], snapshot: Snapshot, work: Path) -> None:
    """The bytes of the copies, and the time that they would save in a build without an earlier one."""
    copies = sum(path.stat().st_size for path in work.glob("page-copies-*/*.parquet"))
    dumps = sum(file.size for unit in snapshot.units for file in unit.ranges)
    without = best["templates"] + best["extract"]
    saved = best["extract"] - best["copied extract"] - best["copies"]
    print(
        f"\nCopies have {copies / dumps:.1%} of the bytes of the dumps. Without an earlier build they"
        f" would save {saved / without:.1%} of the time of templates and extract."
    )


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
    """The page, with one more sentence if its id belongs to the share."""
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
            found = pa.Table.from_batches(scan_unit(file, 1 << 22, Counter()), SCANNED)
            site = SiteInfo(file.lang, file.dbname, dict(file.site_namespaces))
            yield wiki_name(file), learn_wiki([found], site).table


def timed(action: Callable[[], None]) -> float:
    """Processor time of an action."""
    start = time.process_time()
    action()
    return time.process_time() - start


def decompress(snapshot: Snapshot) -> None:
    """Decompresses all files with libbz2, whole."""
    for unit in snapshot.units:
        for file in unit.ranges:
            bz2.decompress(Path(file.uri).read_bytes())


def scan(snapshot: Snapshot, work: Path) -> None:
    """Scans all units for templates."""
    folder = StageFolder.create(str(work), "templates", ScanCounts)
    for unit in snapshot.units:
        scan_one(unit, folder, snapshot.config.extraction.max_page_chars)


def copy(snapshot: Snapshot, work: Path) -> float:
    """Copies the pages of all units. Returns the processor time, without that of reading the pages."""
    limit, seconds = snapshot.config.extraction.max_page_chars, 0.0
    copies = PageCopies.create(snapshot.config, str(work), snapshot.units)
    for unit in snapshot.units:
        files = [list(read_wiki_pages(file, limit)) for file in unit.ranges]
        seconds += timed(partial(copy_unit, unit, files, copies))
    return seconds


def copy_unit(unit: Unit, files: list[list[tuple[WikiPage | None, bool]]], copies: PageCopies) -> None:
    """Copies the pages of one unit."""
    with copies.writer(unit) as writer:
        if writer is None:
            return
        for number, (file, pages) in enumerate(zip(unit.ranges, files, strict=True)):
            site = SiteInfo(file.lang, file.dbname, dict(file.site_namespaces))
            for page, oversize in pages:
                writer.add(number, stored_page(page, oversize, file, site))


def extract_without_index(snapshot: Snapshot, work: Path) -> None:
    """Extracts all units and writes documents only."""
    for number, unit in enumerate(snapshot.units):
        with PartWriter(DOCUMENTS, str(work / f"{number}.parquet"), "part") as writer:
            for batch in extract_unit(unit, snapshot.config, Funnel(), snapshot.tables.table_of):
                writer.write(batch)
            writer.finish()


def extract(snapshot: Snapshot, work: Path, previous: PreviousPages | None) -> Extracted:
    """Extracts all units in this process, from copies of their pages if there are copies and ``previous``."""
    folder = extract_folder(snapshot.config, str(work), snapshot.units)
    copies = PageCopies.create(snapshot.config, str(work), snapshot.units)
    start = time.process_time()
    for unit in snapshot.units:
        extract_one(unit, snapshot.config, folder, snapshot.tables, previous, copies)
    seconds = time.process_time() - start
    return Extracted(folder, folder.finished(), seconds)


def sign(extracted: Extracted, work: Path, previous: PreviousSignatures | None) -> Signed:
    """Computes or reuses the band hashes of all documents, as the near round reads them."""
    threshold = BuildConfig.model_fields["dedup"].get_default(call_default_factory=True).jaccard
    stage = SignatureStage.create(str(work), [], threshold, extracted.folder, previous)
    files = [(marker.files[0].path, marker.files[0].rows) for marker in extracted.markers.values()]
    parts = [Part(number, extracted.folder.path(path), rows, 0) for number, (path, rows) in enumerate(files)]

    def run() -> None:
        for part in parts:
            with stage.part(part) as bands:
                for _, table in chosen_batches(part, np.ones(part.rows, bool), COLUMNS):
                    ranks_of(table["key"].to_pylist())
                    bands.of(table)

    return Signed(stage, timed(run))


if __name__ == "__main__":
    sys.exit(main())
