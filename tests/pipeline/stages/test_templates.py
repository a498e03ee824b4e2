"""The stage that learns templates: committed, resumed, part of what extraction depends on, inspectable."""

from pathlib import Path

import pytest

from bertmill.cli.command import main
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import extract_folder, run_extract
from pipeline.stages.templates import TemplatesResult, run_templates
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

PROSE = "The old pier stands {{dist|5}} from the water. It was built of grey stone in the old town. " * 4


def write(folder: Path, body: str) -> BuildConfig:
    folder.mkdir(exist_ok=True)
    template = page(2, body, title="Template:Dist", ns=10)
    (folder / "enwiki.xml").write_text(HEAD + page(1, PROSE) + template + FOOT)
    return BuildConfig(
        output=str(folder),
        sources=[Source(name="wiki", kind="wikimedia", paths=[str(folder / "enwiki.xml")])],
        extraction=Extraction(unit_bytes=1 << 16),
    )


@pytest.mark.ray
def test_tables_are_committed_used_and_shown(
    tmp_path: Path, ray_session: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, "{{{1}}} miles")
    work, units = str(tmp_path / "work"), plan_units(config)
    templates = run_templates(config, work, units)
    extracted = run_extract(config, work, units, templates)
    counts = extracted.funnel.languages["en"].text_counts
    assert counts["calls_learned"] == 4
    assert counts["sentences_dropped"] == 0
    without = run_extract(config, work, units)
    assert without.folder.uri != extracted.folder.uri
    assert without.funnel.languages["en"].text_counts["calls_unknown"] == 4

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("template*/*")}
    assert run_templates(config, work, units) == templates
    assert {path: path.stat().st_mtime_ns for path in written} == written
    table = next(path for path in written if path.parent.name.startswith("template-tables"))
    for path in written:
        if path.parent == table.parent:
            path.unlink()
    assert run_templates(config, work, units).identity() == templates.identity()

    assert main(["templates", str(tmp_path), "enwiki"]) == 0
    assert "Dist [1] {{{1}}} miles" in capsys.readouterr().out
    assert main(["templates", str(tmp_path), "dewiki"]) == 2
    assert "no wiki 'dewiki'; there are enwiki" in capsys.readouterr().err
    assert main(["templates", str(tmp_path / "none"), "enwiki"]) == 2


@pytest.mark.ray
def test_extraction_depends_on_what_was_learned(tmp_path: Path, ray_session: RayCluster) -> None:
    folders = set()
    for body in ("{{{1}}} miles", "{{{1}}} km"):
        config = write(tmp_path, body)
        units = plan_units(config)
        templates = run_templates(config, str(tmp_path / "work"), units)
        # The units differ too, so the same ones are taken for both.
        folders.add(extract_folder(config, str(tmp_path / "work"), [], templates).uri)
    assert len(folders) == 2


def test_nothing_is_learned_where_that_is_off_or_no_dump_is_read(tmp_path: Path) -> None:
    config = write(tmp_path, "x")
    off = config.model_copy(update={"extraction": Extraction(learn_templates=False)})
    assert run_templates(off, str(tmp_path), plan_units(config)) == TemplatesResult()
    assert run_templates(config, str(tmp_path), []) == TemplatesResult()
