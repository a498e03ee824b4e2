"""Tests the stage that hashes Content File Exports, and the next stages with several files of one wiki."""

import bz2
import hashlib
from pathlib import Path

import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.engine.progress import recorded
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import run_extract
from pipeline.stages.hashes import run_hashes
from pipeline.stages.templates import run_templates
from schemas.errors import InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

PROSE = (
    "The old pier stands {{dist|5}} or {{far|6}} from the water. It was built of grey stone in the old town. "
    * 4
)


@pytest.mark.ray
def test_an_export_of_three_files_is_checked_and_gives_its_templates_to_all(
    tmp_path: Path, ray_session: RayCluster
) -> None:
    pages = [
        page(1, PROSE) + page(2, "{{{1}}} miles", title="Template:Dist", ns=10),
        page(3, PROSE.replace("pier", "mill")),
        page(4, "{{{1}}} feet", title="Template:Far", ns=10),
    ]
    folder, sums = tmp_path / "export", ""
    folder.mkdir()
    for number, text in enumerate(pages):
        path = folder / f"enwiki-2026-09-01-p{number}p{number}.xml.bz2"
        path.write_bytes(bz2.compress((HEAD + text + FOOT).encode()))
        sums += f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
    (folder / "SHA256SUMS").write_text(sums)
    (folder / "_SUCCESS").touch()
    source = Source(name="wiki", kind="wikimedia", paths=[str(folder)])
    config = BuildConfig(output=str(tmp_path), sources=[source], extraction=Extraction(unit_bytes=1 << 16))
    work, units = str(tmp_path / "work"), plan_units(config)

    with recorded() as times:
        run_hashes(work, units)
        run_hashes(work, units)
    assert [(one.total, one.skipped) for one in times] == [(3, 0), (0, 3)]
    templates = run_templates(config, work, units)
    counts = run_extract(config, work, units, templates).funnel.languages["en"].text_counts
    assert (counts["calls_learned"], counts["sentences_dropped"]) == (16, 0)

    (folder / "SHA256SUMS").write_text(sums.replace(sums[:64], "0" * 64))
    with pytest.raises(
        InputError, match=r"p0p0\.xml\.bz2: damaged .* SHA256SUMS lists 0000.*check_hashes: false"
    ):
        run_hashes(work, plan_units(config))
    config = config.model_copy(update={"sources": [source.model_copy(update={"check_hashes": False})]})
    run_hashes(work, plan_units(config))
