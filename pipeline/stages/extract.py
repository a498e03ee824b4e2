"""Stage extract: turns each work unit into a documents part and counts of kept and skipped pages."""

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import ray

from cluster import storage
from pipeline.config import BuildConfig
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.documents.part import Part
from pipeline.documents.reuse.page_index import PAGES, PageRange
from pipeline.documents.reuse.previous_pages import PreviousPages, Reused, reused_text, total_reused
from pipeline.documents.reuse.unit_pages import UnitPages
from pipeline.engine.commit import Marker, PartWriter, StageFolder
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import map_items
from pipeline.plugins import plugin_versions
from pipeline.sources.plan import plan_units
from pipeline.sources.units import Unit
from pipeline.stages.templates import PageCopies, TemplatesResult, stored_bytes
from schemas.columns.documents import DOCUMENTS, DOCUMENTS_VERSION
from schemas.errors import ConfigError, InputError

_NO_TEMPLATES = TemplatesResult()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnitCounts:
    """The counts of one unit."""

    text_bytes: int
    funnel: Funnel = field(default_factory=Funnel)
    pages: list[PageRange] = field(default_factory=list)
    """Page ids in the index of the part."""
    reused: Reused = field(default_factory=Reused)
    """Pages reused from an earlier build."""


@dataclass(frozen=True)
class ExtractResult:
    """The parts with documents, and the counts over all units."""

    folder: StageFolder[UnitCounts]
    parts: list[Part]
    funnel: Funnel
    reused: Reused = field(default_factory=Reused)


def extract_folder(
    config: BuildConfig, work_uri: str, units: list[Unit], templates: TemplatesResult = _NO_TEMPLATES
) -> StageFolder[UnitCounts]:
    """The stage's folder. It depends on the planned units and on the settings of cleaning."""
    inputs: list[Any] = [
        [unit.to_record() for unit in units],
        config.extraction.model_dump(mode="json"),
        templates.identity(),
        plugin_versions(config),
    ]
    rules = config.extraction.template_rules
    if rules is not None:
        # The file may change under the same name.
        try:
            inputs.append(hashlib.sha256(storage.read_bytes(rules)).hexdigest())
        except FileNotFoundError as error:
            raise ConfigError(f"extraction.template_rules: {rules}: no such file") from error
    return StageFolder.create(work_uri, "extract", UnitCounts, DOCUMENTS_VERSION, *inputs)


def run_extract(
    config: BuildConfig,
    work_uri: str,
    units: list[Unit] | None = None,
    templates: TemplatesResult = _NO_TEMPLATES,
    previous: PreviousPages | None = None,
    copies: PageCopies | None = None,
) -> ExtractResult:
    """Extracts the unfinished units. Raises InputError that names the faulty file.

    ``previous`` are the pages of an earlier build whose texts depend on the same rules. ``copies`` may have
    pages that stage templates read. This stage removes them at the end.
    """
    units = plan_units(config) if units is None else units
    folder = extract_folder(config, work_uri, units, templates)
    finished = folder.finished()
    pending = [unit for unit in units if unit.unit_id not in finished]
    progress = Progress("extract", len(pending), skipped=len(units) - len(pending))
    shared = ray.put(previous) if pending else None

    def work(unit: Unit) -> int:
        # A task has several units. A retried task may have committed some of them.
        marker = folder.marker(unit.unit_id) or extract_one(
            unit, config, folder, templates, ray.get(shared), copies
        )
        return marker.counts.text_bytes

    for text_bytes in map_items(pending, work, stored_bytes):
        progress.advance(text_bytes)
    result = collect(folder, [unit.unit_id for unit in units])
    if copies is not None:
        copies.remove()
    if result.reused.pages:
        logger.info("extract: %s", reused_text(result.reused))
    return result


def extract_one(
    unit: Unit,
    config: BuildConfig,
    folder: StageFolder[UnitCounts],
    templates: TemplatesResult = _NO_TEMPLATES,
    previous: PreviousPages | None = None,
    copies: PageCopies | None = None,
) -> Marker[UnitCounts]:
    """Extracts one unit and commits it: its documents, and the index of its Wikimedia pages.

    Raises InputError that names the faulty file.
    """
    funnel = Funnel()
    text_bytes = 0
    name, index_name = f"{unit.unit_id}.parquet", f"{unit.unit_id}.pages"
    with (
        PartWriter(DOCUMENTS, folder.path(name), name) as writer,
        PartWriter(PAGES, folder.path(index_name), index_name) as index,
    ):
        pages = UnitPages(index.write, previous)
        copy = None if copies is None or previous is None else copies.find(unit)
        try:
            for batch in extract_unit(unit, config, funnel, templates.table_of, pages, copy):
                writer.write(batch)
                text_bytes += pc.sum(batch["text_bytes"]).as_py() or 0
        except FileNotFoundError as error:
            raise InputError(
                f"{error}: existed when the build was planned; check that every node can read it"
            ) from error
        funnel.check(unit.uri)
        files = [writer.finish()]
        if unit.kind == "wikimedia":
            pages.records.flush()
            files.append(index.finish())
    counts = UnitCounts(text_bytes, funnel, pages.records.ranges(), pages.reused)
    return folder.commit(unit.unit_id, files, counts)


def collect(folder: StageFolder[UnitCounts], unit_ids: list[str]) -> ExtractResult:
    """The result of the stage from the markers of all units."""
    markers = folder.finished()
    funnel = Funnel()
    parts: list[Part] = []
    for unit_id in sorted(unit_ids):
        marker = markers[unit_id]
        funnel.add(marker.counts.funnel)
        file = marker.files[0]
        if file.rows:
            uri = storage.join(folder.uri, file.path)
            parts.append(Part(len(parts), uri, file.rows, marker.counts.text_bytes))
    reused = total_reused(markers[unit_id].counts.reused for unit_id in unit_ids)
    return ExtractResult(folder, parts, funnel, reused)
