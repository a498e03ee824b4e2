"""Stage extract: every work unit to a documents part and a funnel of what was kept and skipped."""

import hashlib
import logging
from dataclasses import dataclass

import pyarrow.compute as pc

from cluster import storage
from pipeline.commit import Marker, PartWriter, StageFolder
from pipeline.config import BuildConfig
from pipeline.extract import extract_unit
from pipeline.funnel import Funnel
from pipeline.plan import plan_units
from pipeline.progress import Progress
from pipeline.ray_stage import SIZE, Row, map_units
from pipeline.units import Unit
from schemas.documents import DOCUMENTS, DOCUMENTS_VERSION
from schemas.errors import ConfigError, InputError

LOG = logging.getLogger("bertmill.build")


@dataclass(frozen=True)
class Part:
    """A documents part. ``ordinal`` numbers the parts of a build in the order of their unit ids."""

    ordinal: int
    uri: str
    rows: int
    text_bytes: int


@dataclass(frozen=True)
class Extracted:
    """The stage's result: the parts that hold documents, and the counts over all units."""

    folder: StageFolder
    parts: list[Part]
    funnel: Funnel


def extract_folder(config: BuildConfig, work_uri: str, units: list[Unit]) -> StageFolder:
    """The stage's folder; it depends on the sources as planned and on how they are cleaned."""
    inputs = [[unit.to_record() for unit in units], config.extraction.model_dump(mode="json")]
    rules = config.extraction.template_rules
    if rules is not None:
        # The file may change under the same name.
        try:
            inputs.append(hashlib.sha256(storage.read_bytes(rules)).hexdigest())
        except FileNotFoundError as error:
            raise ConfigError(f"extraction.template_rules: {rules}: no such file") from error
    return StageFolder.create(work_uri, "extract", DOCUMENTS_VERSION, *inputs)


def run_extract(config: BuildConfig, work_uri: str, units: list[Unit] | None = None) -> Extracted:
    """Extracts what is not done yet. Raises InputError that names the file at fault."""
    units = plan_units(config) if units is None else units
    folder = extract_folder(config, work_uri, units)
    done = folder.finished()
    pending = [unit for unit in units if unit.unit_id not in done]
    progress = Progress("extract", len(pending), skipped=len(units) - len(pending))

    def work(row: Row) -> Row:
        unit = Unit.from_record(row["unit"])
        # A task has several units, and one that Ray begins again may have committed some of them.
        marker = folder.marker(unit.unit_id) or extract_one(unit, config, folder)
        return {"bytes": marker.counts["text_bytes"]}

    items = [
        {"unit": unit.to_record(), SIZE: sum(one.stored_bytes for one in unit.ranges)} for unit in pending
    ]
    for result in map_units(items, work):
        progress.advance(result["bytes"])
    return collect(folder, [unit.unit_id for unit in units])


def extract_one(unit: Unit, config: BuildConfig, folder: StageFolder) -> Marker:
    """Extracts one unit and commits it. Raises InputError that names the file at fault."""
    funnel = Funnel()
    text_bytes = 0
    name = f"{unit.unit_id}.parquet"
    with PartWriter(DOCUMENTS, folder.path(name), name) as writer:
        try:
            for batch in extract_unit(unit, config, funnel):
                writer.write(batch)
                text_bytes += pc.sum(batch["text_bytes"]).as_py() or 0
        except FileNotFoundError as error:
            raise InputError(
                f"{error}: was there when the build was planned; can every node see it?"
            ) from error
        file = writer.finish()
    funnel.check(unit.uri)
    return folder.commit(unit.unit_id, [file], {"funnel": funnel.to_record(), "text_bytes": text_bytes})


def collect(folder: StageFolder, unit_ids: list[str]) -> Extracted:
    """Adds up the markers of all units."""
    markers = folder.finished()
    funnel = Funnel()
    parts: list[Part] = []
    for unit_id in sorted(unit_ids):
        marker = markers[unit_id]
        funnel.add(Funnel.from_record(marker.counts["funnel"]))
        file = marker.files[0]
        if file.rows:
            uri = storage.join(folder.uri, file.path)
            parts.append(Part(len(parts), uri, file.rows, marker.counts["text_bytes"]))
    return Extracted(folder, parts, funnel)
