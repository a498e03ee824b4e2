"""Tests the corpus job on a part of the bundled sample, on the shared local Ray."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow.parquet as pq
import pytest
from transformers import BertTokenizerFast

from cluster.jobs.config_file import validate
from pipeline.build import build, dry_run
from pipeline.config import BuildConfig
from pipeline.report.html import html_report
from pipeline.report.tables import closing_table
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.inspect_shards import inspect_rows
from schemas.columns.shards import SHARD
from schemas.errors import ConfigError, InputError
from schemas.manifest import Manifest, parse_manifest
from tests.pipeline import builds
from tests.pipeline.builds import held_out_config
from tests.pipeline.conftest import Built
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


@pytest.fixture
def corpus(built: Built) -> Path:
    return built.folder


@pytest.fixture
def manifest(corpus: Path) -> Manifest:
    return parse_manifest((corpus / "manifest.json").read_bytes(), "manifest.json")


def test_every_page_document_and_token_is_accounted_for(manifest: Manifest) -> None:
    pages, tokens = manifest.counts.pages, manifest.counts.tokens
    assert pages.pages_seen == pages.kept + sum(pages.skipped.values()) > 0
    assert tokens.tokens_in == (tokens.tokens_used + tokens.tokens_cut + tokens.tokens_left_over) > 0
    languages = manifest.languages
    assert {"ar", "ru", "ja", "de"} <= set(languages)
    assert sum(counts.documents for counts in languages.values()) == manifest.counts.documents
    sequences = sum(counts.sequences for counts in languages.values())
    assert sequences == sum(entry.rows for entry in manifest.sets)


def test_the_manifest_counts_words_subwords_and_unknown_of_each_language(
    corpus: Path, manifest: Manifest
) -> None:
    tokenizer = BertTokenizerFast.from_pretrained(corpus / "tokenizer")
    # Held-out documents occur once, in a separate set. Training documents occur once in each of two passes.
    held_out = {
        key
        for entry in manifest.sets
        if (entry.name, entry.split) == ("len128", "validation")
        for shard in CorpusFiles.open(str(corpus)).shards(entry)
        for key in pq.read_table(corpus / shard.path, columns=["document_key"])["document_key"].to_pylist()
    }
    counted: dict[str, Counter[str]] = {}
    for part in sorted((corpus / "work").glob("extract-*/*.parquet")):
        for row in pq.read_table(part, columns=["key", "lang", "sentences"]).to_pylist():
            times = 1 if row["key"] in held_out else 2
            for encoded in tokenizer(row["sentences"], add_special_tokens=False).encodings:
                subwords = encoded.tokens
                words = [subword for subword in subwords if not subword.startswith("##")]
                found = {"words": len(words), "subwords": len(subwords), "unknown": subwords.count("[UNK]")}
                counted.setdefault(row["lang"], Counter()).update({k: v * times for k, v in found.items()})
    for lang in ("ru", "de"):
        counts = manifest.languages[lang]
        assert {name: getattr(counts, name) for name in counted[lang]} == dict(counted[lang])


def test_a_language_over_one_percent_unknown_is_warned_of(manifest: Manifest) -> None:
    counts = manifest.languages["ru"]
    limit = counts.subwords // 100
    for unknown, warned in ((limit, False), (limit + 1, True)):
        languages = {**manifest.languages, "ru": counts.model_copy(update={"unknown": unknown})}
        changed = manifest.model_copy(update={"languages": languages})
        for shown in (closing_table(changed), html_report(changed, {})):
            assert ("ru: 1.0% of the subwords are [UNK]" in shown) is warned


def test_both_lengths_and_all_passes_are_there(manifest: Manifest) -> None:
    rows = {(entry.name, entry.split, entry.pass_number): entry.rows for entry in manifest.sets}
    wanted: set[tuple[str, Literal["train", "validation"], int]] = {
        (name, "train", number) for name in ("len128", "len512") for number in (0, 1)
    }
    assert rows.keys() == wanted | {("len128", "validation", 0), ("len512", "validation", 0)}
    assert all(rows[key] > 0 for key in wanted)


def test_shards_are_what_the_manifest_says(corpus: Path, manifest: Manifest) -> None:
    listed = builds.published_files(corpus)
    for entry in manifest.sets:
        for shard in CorpusFiles.open(str(corpus)).shards(entry):
            table = pq.read_table(corpus / shard.path)
            assert table.schema.equals(SHARD)
            assert listed[shard.path] == shard.sha256
            assert table.num_rows == shard.rows
            assert max(table["length"].to_pylist()) <= entry.max_seq_length


def test_load_dataset_opens_the_folder(corpus: Path, manifest: Manifest, tmp_path: Path) -> None:
    loaded = datasets.load_dataset(str(corpus), "len128", cache_dir=str(tmp_path))
    rows = {
        split: sum(s.rows for s in manifest.sets if (s.name, s.split) == ("len128", split))
        for split in ("train", "validation")
    }
    assert {split: loaded[split].num_rows for split in loaded} == {k: v for k, v in rows.items() if v}


def test_the_documents_are_a_dataset_by_language(corpus: Path, manifest: Manifest, tmp_path: Path) -> None:
    listed = builds.published_files(corpus)
    assert {file.path: file.sha256 for file in manifest.documents} == {
        path: digest for path, digest in listed.items() if path.endswith(".parquet") and "documents/" in path
    }
    rows: dict[str, dict[str, Any]] = {}
    for lang, counts in manifest.languages.items():
        if not counts.documents:
            continue
        loaded = datasets.load_dataset(str(corpus / "documents"), lang, cache_dir=str(tmp_path))
        documents = {"train": counts.train_documents, "validation": counts.validation_documents}
        assert {split: loaded[split].num_rows for split in loaded} == {
            k: v for k, v in documents.items() if v
        }
        for split in loaded:
            rows |= {row["key"]: {**row, "split": split} for row in loaded[split]}
    assert len(rows) == manifest.counts.documents
    # The rows of every set come from the documents of its side, under the same keys.
    for entry in manifest.sets:
        for shard in CorpusFiles.open(str(corpus)).shards(entry):
            keys = pq.read_table(corpus / shard.path, columns=["document_key"])["document_key"].to_pylist()
            assert {rows[key]["split"] for key in keys} == {entry.split}
    for part in (corpus / "work").glob("extract-*/*.parquet"):
        for row in pq.read_table(part).to_pylist():
            published = rows[row["key"]]
            paragraphs = published["text"].split("\n\n")
            assert len(paragraphs) == len(row["paragraph_sentences"])
            assert published["text"].replace("\n\n", "").replace(" ", "") == "".join(
                row["sentences"]
            ).replace(" ", "")
            assert (published["id"], published["revision"]) == (row["page_id"], row["revision"])
            assert published["timestamp"].endswith("Z")
    (april,) = (row for row in rows.values() if row["title"] == "April" and row["lang"] == "simple")
    assert april["url"] == "https://simple.wikipedia.org/wiki/April"
    card = (corpus / "documents" / "README.md").read_text()
    assert "license:\n- cc-by-sa-4.0" in card
    assert "config_name: simple" in card


def test_inspect_shows_title_and_url_of_a_row(corpus: Path) -> None:
    lines = list(inspect_rows(str(corpus), rows=3, lang="simple"))
    assert (
        sum("· revision " in line and "· https://simple.wikipedia.org/wiki/" in line for line in lines) == 3
    )
    other = list(inspect_rows(str(corpus), rows=1, lang="ru"))
    assert sum("· revision " in line and "https://" not in line for line in other) == 1


def test_a_second_run_changes_nothing_and_does_nothing_again(corpus: Path) -> None:
    """Case pipeline-021."""
    before = builds.published_files(corpus)
    touched = {path: path.stat().st_mtime_ns for path in (corpus / "data").rglob("*.parquet")}
    work = work_times(corpus)
    time.sleep(0.01)
    text = build(validate(BuildConfig, held_out_config(corpus), "test"))
    assert "manifest.json" in text
    assert builds.published_files(corpus) == before
    assert {path: path.stat().st_mtime_ns for path in (corpus / "data").rglob("*.parquet")} == touched
    assert work_times(corpus) == work


def work_times(corpus: Path) -> dict[Path, int]:
    """When the files of the work folder were written, without those that identify the owner."""
    paths = (corpus / "work").rglob("*")
    return {path: path.stat().st_mtime_ns for path in paths if "attempts" not in path.parts}


def test_what_killed_writers_left_in_the_output_is_removed(corpus: Path) -> None:
    old, young = corpus / "data" / ".part-shard-0123", corpus / "work" / ".part-marker-4567"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    build(validate(BuildConfig, held_out_config(corpus), "test"))
    assert not old.exists()
    assert young.exists()  # another build may be writing it
    young.unlink()


@pytest.mark.parametrize("slot", ["validation-00000", "train-p01-00000"])
def test_a_single_unfinished_slot_is_made_again_to_the_byte(corpus: Path, slot: str) -> None:
    """Most units have no document for the single missing slot, and must not affect those that have one."""
    before = {path: path.read_bytes() for path in corpus.rglob("*.parquet")}
    manifest = (corpus / "manifest.json").read_bytes()
    # Other tests share the corpus, so the times of this build must not replace those of the first.
    timed = (corpus / "work" / "report.html").read_bytes()
    made = [path for path in before if path.stem == slot]
    markers = list((corpus / "work").glob(f"instances-*/{slot}.done.json"))
    assert len(made) == 2
    assert len(markers) == 1
    for path in (*made, *markers, corpus / "manifest.json"):
        path.unlink()
    build(validate(BuildConfig, held_out_config(corpus), "test"))
    assert {path: path.read_bytes() for path in corpus.rglob("*.parquet")} == before
    assert (corpus / "manifest.json").read_bytes() == manifest
    (corpus / "work" / "report.html").write_bytes(timed)


@pytest.mark.parametrize("killed", ["before the upload", "before the marker", "before the plan"])
def test_a_kill_inside_stage_documents_changes_no_byte(corpus: Path, killed: str) -> None:
    before = builds.published_files(corpus)
    timed = (corpus / "work" / "report.html").read_bytes()
    markers = sorted((corpus / "work").glob("documents-*/*.done.json"))
    plans = [path for path in markers if path.parent.name.startswith("documents-plan-")]
    assert len(plans) == 1
    written = [path for path in markers if path not in plans]
    if killed == "before the plan":
        written += plans
    lost = written[len(written) // 2 :]
    for marker in lost:
        for file in json.loads(marker.read_bytes())["files"]:
            path = corpus / file["path"]
            if killed == "before the marker":
                path.write_bytes(b"of a build that was killed")
            else:
                path.unlink()
        marker.unlink()
    for path in (corpus / "manifest.json", corpus / "documents" / "README.md"):
        path.unlink()
    build(validate(BuildConfig, held_out_config(corpus), "test"))
    assert builds.published_files(corpus) == before
    (corpus / "work" / "report.html").write_bytes(timed)


def test_another_config_on_the_same_output_is_refused(corpus: Path) -> None:
    changed = validate(BuildConfig, held_out_config(corpus, seed=8), "test")
    with pytest.raises(ConfigError, match=r"another config \(differs in seed\)"):
        build(changed)


def test_a_failed_build_leaves_nothing_that_counts(ray_session: RayCluster, tmp_path: Path) -> None:
    whole = (builds.SAMPLE / "dumps" / "simplewiki-pages-articles.xml.bz2").read_bytes()
    cut = tmp_path / "cutwiki-pages-articles.xml.bz2"
    cut.write_bytes(whole[: len(whole) // 2])
    source = {"name": "cut", "kind": "wikimedia", "paths": [str(cut)]}
    output = tmp_path / "corpus"
    with pytest.raises(InputError, match=r"cutwiki-pages-articles\.xml\.bz2"):
        build(validate(BuildConfig, builds.config(output, sources=[source]), "test"))
    assert not list(output.rglob("*.done.json"))
    assert not (output / "manifest.json").exists()
    # After the correction, the build can use the same output.
    cut.write_bytes(whole)
    build(validate(BuildConfig, builds.config(output, sources=[source]), "test"))
    assert (output / "manifest.json").exists()


def test_dry_run_shows_config_and_units_and_writes_nothing(tmp_path: Path) -> None:
    text = dry_run(validate(BuildConfig, builds.config(tmp_path / "corpus"), "test"))
    assert "ruwiki" in text
    assert "units" in text
    assert "validation_share: 0.1" in text
    assert list(tmp_path.iterdir()) == []


def test_the_report_and_card_name_every_language(corpus: Path, manifest: Manifest) -> None:
    report, card = (corpus / "report.html").read_text(), (corpus / "README.md").read_text()
    for lang in manifest.languages:
        assert f">{lang}<" in report
        assert f"- {lang}\n" in card
    assert "http" not in report
    assert "Time by stage" not in report
    timed = (corpus / "work" / "report.html").read_text()
    assert "Time by stage" in timed
    for stage in ("extract", "dedup-texts", "vocabulary", "instances"):
        assert f"<td>{stage}</td>" in timed
    assert json.loads((corpus / "manifest.json").read_text())["config_hash"][:12] in report
