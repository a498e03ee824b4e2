"""Creates small wikis in two versions, and extracts them with and without the earlier one."""

import bz2
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.documents.reuse.previous_pages import PreviousPages, Reused, total_reused
from pipeline.documents.templates.scan import scan_unit
from pipeline.documents.templates.tables import learn_wiki
from pipeline.engine.commit import StageFolder
from pipeline.sources.plan import plan_units
from pipeline.sources.units import Unit
from pipeline.stages.extract import UnitCounts, extract_folder, extract_one
from pipeline.stages.previous import previous_parts
from pipeline.stages.templates import PageCopies, ScanCounts, TemplatesResult, scan_one
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.table import TemplateTable
from schemas.columns.templates import SCANNED
from tests.pipeline.sources.dumps import FOOT, HEAD, page

TEMPLATE = 10
PROSE = "The old pier stands far from the water. It was built of grey stone in the old town. " * 3


@dataclass(frozen=True)
class Tables(TemplatesResult):
    """Template tables in memory."""

    table: TemplateTable = field(default_factory=TemplateTable)

    def table_of(self, unit: Unit) -> TemplateTable:
        return self.table


@dataclass
class Extracted:
    """A finished extraction in ``folder``."""

    folder: StageFolder[UnitCounts]

    @property
    def pages(self) -> PreviousPages:
        return PreviousPages(previous_parts(self.folder))

    @property
    def reused(self) -> Reused:
        return total_reused(marker.counts.reused for marker in self.folder.finished().values())

    def outcome(self) -> list[Any]:
        """Hashes of all files and all counts, without the counts of reuse."""
        markers = self.folder.finished().values()
        return [(marker.files, marker.counts.funnel, marker.counts.pages) for marker in markers]

    def files(self, suffix: str = ".parquet") -> list[Path]:
        return sorted(Path(self.folder.uri).glob(f"*{suffix}"))


def articles(texts: Mapping[int, str]) -> str:
    return "".join(page(number, text) for number, text in texts.items())


def templates(bodies: Mapping[str, str]) -> str:
    """``bodies`` by name."""
    return "".join(
        page(1000 + number, body, title=f"Template:{name}", ns=TEMPLATE)
        for number, (name, body) in enumerate(sorted(bodies.items()))
    )


def write_wiki(folder: Path, pages: str, head: str = HEAD, suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"enwiki.xml{suffix}"
    raw = (head + pages + FOOT).encode()
    path.write_bytes(bz2.compress(raw) if suffix == ".bz2" else raw)
    return path


def config_of(path: Path, **extraction: Any) -> BuildConfig:
    source = {"name": "wiki", "kind": "wikimedia", "paths": [str(path)]}
    return BuildConfig.model_validate(
        {"output": "out", "sources": [source], "extraction": {"unit_bytes": 1 << 16, **extraction}}
    )


def table_of(units: list[Unit]) -> TemplateTable:
    found = [pa.Table.from_batches(scan_unit(unit, 1 << 22, Counter()), SCANNED) for unit in units]
    return learn_wiki(found, SiteInfo(units[0].lang, units[0].dbname, dict(units[0].site_namespaces))).table


def extract(path: Path, work: Path, previous: PreviousPages | None = None, **extraction: Any) -> Extracted:
    """Extracts all units in this process. With an earlier build, reads copies of the pages."""
    config = config_of(path, **extraction)
    units = plan_units(config)
    folder = extract_folder(config, str(work), units)
    tables = Tables(table=table_of(units))
    copies = PageCopies.create(config, str(work), units)
    if previous is not None:
        scan(units, work, copies)
    for unit in units:
        extract_one(unit, config, folder, tables, previous, copies)
    return Extracted(folder)


def scan(units: list[Unit], work: Path, copies: PageCopies) -> None:
    """Scans the units for templates, and makes copies of their pages."""
    scanned = StageFolder.create(str(work), "templates", ScanCounts)
    for unit in units:
        scan_one(unit, scanned, 1 << 22, copies)
