"""Tests what a restart of stage extract repeats and what it keeps."""

from pathlib import Path

import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.engine.commit import Marker, StageFolder
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import UnitCounts, extract_folder, extract_one, run_extract
from schemas.errors import ConfigError, InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster


def test_the_stage_reruns_when_dump_or_rules_change(tmp_path: Path) -> None:
    dump, rules = tmp_path / "enwiki.xml", tmp_path / "rules.yaml"

    def folder() -> str:
        config = BuildConfig(
            output="out",
            sources=[Source(name="wiki", kind="wikimedia", paths=[str(dump)])],
            extraction=Extraction(template_rules=str(rules)),
        )
        return extract_folder(config, str(tmp_path / "work"), plan_units(config)).uri

    dump.write_text(HEAD + page(1) + FOOT)
    with pytest.raises(ConfigError, match=r"template_rules: .*rules\.yaml: no such file"):
        folder()
    rules.write_text("rules: {}\n")
    first = folder()
    assert folder() == first
    rules.write_text("rules: {all: {silent: x}}\n")
    second = folder()
    dump.write_text(HEAD + page(2) + FOOT)
    assert len({first, second, folder()}) == 3


@pytest.mark.ray
def test_a_restarted_task_keeps_its_committed_parts(
    tmp_path: Path, ray_session: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of a worker, when the driver planned the task before its first commits."""
    for lang in ("de", "en", "fr", "it"):
        (tmp_path / f"{lang}wiki.xml").write_text(HEAD + page(1, "One sentence. " * 20) + FOOT)
    sources = [
        Source(name=lang, kind="wikimedia", lang=lang, paths=[str(tmp_path / f"{lang}wiki.xml")])
        for lang in ("de", "en", "fr", "it")
    ]
    config, work = BuildConfig(output="out", sources=sources), str(tmp_path / "work")
    extracted = run_extract(config, work)
    assert len(extracted.parts) == 4
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.*")}
    gone = next(path for path in sorted(written) if path.name.endswith(".done.json"))
    gone.unlink()
    finished, calls = StageFolder.finished, []

    def knows_nothing_at_first(folder: StageFolder[UnitCounts]) -> dict[str, Marker[UnitCounts]]:
        calls.append(folder.uri)
        return {} if len(calls) == 1 else finished(folder)

    monkeypatch.setattr(StageFolder, "finished", knows_nothing_at_first)
    assert run_extract(config, work) == extracted
    again = {path for path, when in written.items() if path.stat().st_mtime_ns != when}
    unit = gone.name.removesuffix(".done.json")
    assert again == {gone, *(gone.with_name(unit + suffix) for suffix in (".parquet", ".pages"))}


@pytest.mark.ray
def test_relative_sources_are_read_in_the_folder_of_the_driver(
    tmp_path: Path, ray_session: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's Ray, like any Ray cluster that a build joins, was started in another folder."""
    monkeypatch.chdir(tmp_path)
    Path("enwiki.xml").write_text(HEAD + page(1, "One sentence. " * 20) + FOOT)
    source = Source(name="wiki", kind="wikimedia", lang="en", paths=["enwiki.xml"])
    config = BuildConfig(output="out", sources=[source])
    assert run_extract(config, str(tmp_path / "work")).funnel.kept == 1


def test_a_file_that_a_node_cannot_see_is_named(tmp_path: Path) -> None:
    dump = tmp_path / "enwiki.xml"
    dump.write_text(HEAD + page(1) + FOOT)
    source = Source(name="wiki", kind="wikimedia", lang="en", paths=[str(dump)])
    config = BuildConfig(output="out", sources=[source])
    (unit,) = plan_units(config)
    folder = extract_folder(config, str(tmp_path / "work"), [unit])
    dump.unlink()
    with pytest.raises(InputError, match=r"enwiki\.xml: existed when the build was planned"):
        extract_one(unit, config, folder)
    assert folder.finished() == {}
