"""Builds a corpus with every kind of duplicate. Each one is removed for its own reason, for any files."""

import json
import random
import zlib
from pathlib import Path

import pytest

from cluster.jobs.config_file import validate
from pipeline.build import build
from pipeline.config import BuildConfig
from pipeline.documents.selection import read_kept
from pipeline.report.html import html_report
from pipeline.stages.dedup import run_dedup
from pipeline.stages.extract import run_extract
from pipeline.stages.split import split_of
from schemas.manifest import Manifest, parse_manifest
from tests.pipeline import builds
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray

OPENINGS = ("riv", "sto", "bri", "wat", "mou", "fli", "gar", "tem", "hol", "ken")
WORDS = [f"{a}{b}{c}" for a in OPENINGS for b in "aeiou" for c in ("ng", "rs", "l", "den", "mp", "tch", "fy")]
QUESTION = "in what year did the builders of the old stone bridge over the river finish their work"


def one_word_changed(text: str) -> str:
    words = text.split(" ")
    return " ".join([*words[:70], "otherwise", *words[71:]])


def documents() -> list[dict[str, str]]:
    chance = random.Random(5)

    def text(count: int) -> str:
        return ". ".join(" ".join(chance.choices(WORDS, k=12)).capitalize() for _ in range(count)) + "."

    plain = [text(12) for _ in range(40)]
    bodies = {f"plain{number:02}": body for number, body in enumerate(plain)}
    bodies |= {f"same{number}": plain[number] for number in range(3)}
    bodies |= {f"near{number}": one_word_changed(plain[10 + number]) for number in range(4)}
    bodies["told"] = f"{text(5)} They asked {QUESTION} and nobody knew."
    return [{"id": name, "lang": "en", "title": name, "text": body} for name, body in bodies.items()]


def run(folder: Path, order: int) -> Manifest:
    """Builds from three files in a given order, with lines in a given order."""
    folder.mkdir()
    rows = documents()
    names = [0, 1, 2]
    for items in (rows, names):
        random.Random(order).shuffle(items)
    for row in rows:
        with (folder / f"{zlib.crc32(row['id'].encode()) % 3}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    (folder / "set.txt").write_text(QUESTION + "?\n")
    paths = [str(folder / f"{name}.jsonl") for name in names]
    data = builds.config(
        folder / "corpus",
        sources=[{"name": "made", "kind": "jsonl", "paths": paths, "lang": "en"}],
        dedup={"near": True, "evaluation": [str(folder / "set.txt")], "max_paragraph_documents": 30},
        vocabulary={"size": 400, "unused": 9},
    )
    build(validate(BuildConfig, data, "test"))
    return parse_manifest((folder / "corpus" / "manifest.json").read_bytes(), "manifest.json")


def test_each_kind_of_duplicate_has_its_own_reason(ray_session: RayCluster, tmp_path: Path) -> None:
    one, other = run(tmp_path / "one", 1), run(tmp_path / "other", 2)
    assert one.counts.removals == {"contaminated": 1, "duplicate-text": 3, "near-duplicate": 4}
    assert one.counts.documents == 40
    # Case pipeline-007: the report shows the share of near duplicates by language.
    assert one.languages["en"].removals == one.counts.removals
    assert f"<td>{4 / 48:.1%}</td>" in html_report(one, {})
    assert one.counts == other.counts
    assert [entry.shards.sha256 for entry in one.sets] == [entry.shards.sha256 for entry in other.sets]


@pytest.mark.parametrize("exact", [True, False])
def test_documents_with_the_same_rest_go_or_stay_on_one_side(
    ray_session: RayCluster, tmp_path: Path, exact: bool
) -> None:
    """Two notices occur on many pages. Pages that differ only in them are one document."""
    chance = random.Random(2)
    notices = ["This page was made from the list of places.", "This page needs the help of its readers."]
    bodies = [" ".join(chance.choices(WORDS, k=60)).capitalize() + "." for _ in range(60)]
    rows = [
        {"id": f"{number}-{notice}", "lang": "en", "title": "t", "text": f"{body}\n{notices[notice]}"}
        for number, body in enumerate(bodies)
        for notice in ((0, 1) if number < 20 else (number % 2,))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = builds.config(
        tmp_path / "corpus",
        sources=[{"name": "made", "kind": "jsonl", "paths": [str(tmp_path / "rows.jsonl")]}],
        dedup={"exact": exact, "max_paragraph_documents": 25},
        instances={"validation_share": 0.4},
    )
    config = validate(BuildConfig, data, "test")
    work = str(tmp_path / "work")
    extracted = run_extract(config, work)
    found = run_dedup(config, work, extracted)
    assert found.counts == ({"en": {"duplicate-text": 20}} if exact else {})
    sides: dict[str, set[bool]] = {}
    for part in extracted.parts:
        for table in read_kept(part, found.removals, ["content_hash", "sentences"]):
            held_out = split_of(config).is_validation(table["content_hash"].to_pylist())
            for sentences, side in zip(table["sentences"].to_pylist(), held_out.tolist(), strict=True):
                sides.setdefault(" ".join(sentences), set()).add(side)
    assert sides.keys() == set(bodies)
    assert all(len(side) == 1 for side in sides.values())
    assert {True, False} == set().union(*sides.values())
