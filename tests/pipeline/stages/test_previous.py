"""Tests which builds the field ``previous`` accepts, and that a later build has the same bytes without it."""

import bz2
import hashlib
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs.config_file import validate
from pipeline.build import build
from pipeline.config import BuildConfig
from pipeline.engine.build_identity import BuildIdentity
from pipeline.sources.plan import plan_units
from pipeline.stages.dedup import run_dedup
from pipeline.stages.extract import extract_folder, extract_one, run_extract
from pipeline.stages.previous import open_previous, open_signatures, publish_pages, publish_signatures
from pipeline.stages.signatures import SignatureStage
from pipeline.stages.templates import run_templates
from schemas.errors import BertmillError, ConfigError
from tests.pipeline import builds
from tests.pipeline.documents.reuse.wikis import PROSE, articles, write_wiki
from tests.support.ray_cluster import RayCluster


def extracted(folder: Path, **fields: Any) -> BuildConfig:
    """A build of one page in ``folder``, with the files that ``previous`` reads."""
    path = write_wiki(folder / "dump", articles({1: PROSE}))
    sources = [{"name": "wiki", "kind": "wikimedia", "paths": [str(path)]}]
    config = BuildConfig.model_validate({"output": str(folder / "corpus"), "sources": sources, **fields})
    units = plan_units(config)
    stage = extract_folder(config, f"{config.output}/work", units)
    extract_one(units[0], config, stage)
    publish_pages(config, stage)
    (folder / "corpus" / "manifest.json").write_text("{}")
    return config


def next_build(folder: Path, previous: Path, **fields: Any) -> BuildConfig:
    sources = [{"name": "wiki", "kind": "wikimedia", "paths": [str(folder / "dump")]}]
    return BuildConfig.model_validate(
        {"output": str(folder / "next"), "previous": str(previous), "sources": sources, **fields}
    )


def test_a_build_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    extracted(tmp_path)
    corpus = tmp_path / "corpus"
    config = next_build(tmp_path, corpus)
    pages = open_previous(config)
    assert pages is not None
    assert len(pages) == 1

    def refused(previous: Path = corpus) -> str:
        with pytest.raises(BertmillError, match=rf"^previous: {re.escape(str(tmp_path))}") as error:
            open_previous(next_build(tmp_path, previous))
        assert "\n" not in str(error.value)
        return str(error.value)

    with pytest.raises(ConfigError, match=r"^previous: http://host/corpus: a web server cannot list") as web:
        open_previous(config.model_copy(update={"previous": "http://me:secret@host/corpus?signature=secret"}))
    assert "secret" not in str(web.value)
    assert "no build (no manifest.json)" in refused(tmp_path / "nothing")
    assert "is the output of this build" in refused(tmp_path / "next")
    (folder,) = (corpus / "work").glob("extract-*")
    (marker,) = folder.glob("*.done.json")
    complete = marker.read_text()
    marker.write_text(complete[:100])
    assert "not a marker of a finished unit" in refused()
    marker.write_text(complete)
    shutil.move(folder, tmp_path / "aside")
    assert f"{folder.name} was removed" in refused()
    shutil.move(tmp_path / "aside", folder)
    pointer = corpus / "work" / "pages.json"
    whole = pointer.read_text()
    pointer.write_text(whole[:50])
    assert "work/pages.json: damaged, or of another version" in refused()
    pointer.unlink()
    assert "has no work/pages.json" in refused()
    pointer.write_text(whole)
    (corpus / "manifest.json").unlink()
    assert "an unfinished build (no manifest.json)" in refused()


def test_nothing_is_reused_of_a_build_with_other_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted(tmp_path)
    corpus = tmp_path / "corpus"

    def warning(config: BuildConfig) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert open_previous(config) is None
        (record,) = caplog.records
        return record.getMessage()

    other = next_build(tmp_path, corpus, extraction={"headings": "keep", "page_seconds": 5})
    assert warning(other).endswith("it differs in extraction.headings, extraction.page_seconds")
    pointer = corpus / "work" / "pages.json"
    record = json.loads(pointer.read_text())
    pointer.write_text(json.dumps({**record, "version": 0}))
    assert warning(next_build(tmp_path, corpus)).endswith("it differs in the version of the page index")
    pointer.write_text(json.dumps(record))
    monkeypatch.setattr("pipeline.documents.reuse.rules_version.rules_sha256", lambda names: "other")
    assert warning(next_build(tmp_path, corpus)).endswith("it differs in code")


def test_the_field_is_not_part_of_the_corpus(tmp_path: Path) -> None:
    with_it, without = next_build(tmp_path, tmp_path / "corpus"), next_build(tmp_path, tmp_path / "other")
    write_wiki(tmp_path / "dump", articles({1: PROSE}))
    assert BuildIdentity.of(with_it) == BuildIdentity.of(without)


def mutated(dump: bytes) -> bytes:
    """About one in twenty pages gets one more sentence, and all of them a new revision."""

    def change(match: re.Match[bytes]) -> bytes:
        page, number = match[0], match[1]
        if int.from_bytes(hashlib.blake2b(number, digest_size=2).digest(), "big") % 20 == 0:
            page = page.replace(b"</text>", b"\n\nOne more sentence came in the month between.</text>")
        return page

    return re.sub(rb"<page>.*?<id>(\d+)</id>.*?</page>", change, dump, flags=re.S)


def snapshot(folder: Path, month: int) -> None:
    """The Latgalian Wikipedia of a month, and a dump of one page."""
    folder.mkdir()
    for name in ("ltgwiki-pages-articles-multistream", "arwiki-minidump-pages-articles"):
        raw = bz2.decompress((builds.SAMPLE / "dumps" / f"{name}.xml.bz2").read_bytes())
        raw = mutated(raw) if month == 2 else raw
        (folder / f"{name.replace('-multistream', '')}.xml.bz2").write_bytes(bz2.compress(raw))


def config_of_month(tmp_path: Path, output: Path, month: int, **fields: Any) -> BuildConfig:
    source = {"name": "wiki", "kind": "wikimedia", "paths": [str(tmp_path / f"dumps{month}")]}
    instances = {"bucket_bytes": 1 << 20, "lengths": [{"max_seq_length": 128, "max_predictions": 20}]}
    data = builds.config(output, sources=[source], instances=instances, dedup={"near": True}, **fields)
    return validate(BuildConfig, data, "test")


def ltg_units(stage: Path) -> dict[Path, list[dict[str, Any]]]:
    """Marker -> ranges of pages, of the units with pages of the Latgalian Wikipedia."""
    pages = {path: json.loads(path.read_text())["counts"]["pages"] for path in stage.glob("*.done.json")}
    return {path: found for path, found in pages.items() if found and found[0]["wiki"] == "ltgwiki"}


@pytest.mark.ray
def test_a_month_later_the_build_has_the_same_bytes(tmp_path: Path, ray_session: RayCluster) -> None:
    """Even if half of it was extracted without the earlier build, as after a kill."""
    for month in (1, 2):
        snapshot(tmp_path / f"dumps{month}", month)
    earlier = config_of_month(tmp_path, tmp_path / "1", 1)
    # Only the relevant stages of the earlier build.
    work, units = f"{earlier.output}/work", plan_units(earlier)
    templates = run_templates(earlier, work, units)
    extracted = run_extract(earlier, work, units, templates)
    publish_pages(earlier, extracted.folder)
    signatures = run_dedup(earlier, work, extracted).signatures
    assert signatures is not None
    publish_signatures(earlier, signatures)
    (tmp_path / "1" / "manifest.json").write_text("{}")

    output = tmp_path / "2"
    build(config_of_month(tmp_path, output, 2))
    plain = builds.published_files(output)
    for name in plain:
        (output / name).unlink()
    (stage,) = (output / "work").glob("extract-*")
    for path in (output / "work").iterdir():
        if path.is_dir() and path != stage:
            shutil.rmtree(path)
    # The names of units depend on the folder, so the pages decide which units to extract again.
    markers = sorted((ranges[0]["first"], path) for path, ranges in ltg_units(stage).items())
    assert len(markers) > 4
    for _, marker in markers[::2]:
        for path in stage.glob(f"{marker.name.removesuffix('.done.json')}*"):
            path.unlink()
    build(config_of_month(tmp_path, output, 2, previous=str(tmp_path / "1")))
    assert builds.published_files(output) == plain
    report = (output / "work" / "report.html").read_text()
    # Half of the units were extracted again, and the signatures of all.
    for pattern in ("extract reused", "dedup reused the signatures of"):
        line = re.search(rf"Stage {pattern} ([\d,]+) of ([\d,]+) ", report)
        assert line is not None
        reused, pages = (int(number.replace(",", "")) for number in line.groups())
        assert 0.85 * pages < reused < pages


def test_signatures_of_other_rules_are_not_reused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = extracted(tmp_path)
    later = next_build(tmp_path, tmp_path / "corpus", dedup={"near": True})
    pages = open_previous(later)

    def warning(build: BuildConfig) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert open_signatures(build, pages) is None
        (record,) = caplog.records
        return record.getMessage()

    assert warning(later).endswith("it has no work/signatures.json")
    stage = SignatureStage.create(f"{config.output}/work", [], config.dedup.jaccard)
    publish_signatures(config, stage)
    assert open_signatures(later, pages) is not None
    other = next_build(tmp_path, tmp_path / "corpus", dedup={"near": True, "jaccard": 0.5})
    assert warning(other).endswith("it differs in rows_per_band")
    pointer = tmp_path / "corpus" / "work" / "signatures.json"
    pointer.write_text(pointer.read_text()[:40])
    with pytest.raises(BertmillError, match=r"signatures\.json: damaged, or of another version"):
        open_signatures(later, pages)
