"""Tests that removals and vocabulary are the same for any workers, buckets and files."""

import random
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.config import BuildConfig, Dedup, Extraction, Instances, Source, Vocabulary
from pipeline.stages import dedup as stage_dedup
from pipeline.stages import vocabulary as stage_vocabulary
from pipeline.stages.dedup import run_dedup
from pipeline.stages.extract import run_extract
from pipeline.stages.vocabulary import run_vocabulary
from tests.pipeline.removal_files import all_removals
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray

SYLLABLES = ("ri", "sto", "bra", "wa", "mou", "fli", "gar", "tem", "hol", "ken", "lo", "ni")
RARE = "ᏣᎳᎩ"


@dataclass(frozen=True)
class Cut:
    """How to divide the work: dumps, CPUs that Ray Data may use, buckets of each shuffle."""

    dumps: int
    cpus: int
    buckets: int


def pages() -> list[str]:
    """Pages with distinct texts, two copies of some of them, and older revisions of others."""
    chance = random.Random(11)
    vocabulary = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(400)]
    texts = [" ".join(chance.choices(vocabulary, k=60)).capitalize() + "." for _ in range(120)]
    # Six words that occur once. Training skips them, but must not lose their letters.
    for number, letters in enumerate(permutations(RARE), 20):
        texts[number] += f" {''.join(letters)}."
    numbered = [*texts, *texts[:15], *texts[:5]]
    made = [page(number, text) for number, text in enumerate(numbered, 1)]
    old = [
        page(number, texts[-number]).replace(f"<id>{number}0</id>", "<id>1</id>") for number in range(1, 9)
    ]
    return made + old


def write(folder: Path, cut: Cut) -> Source:
    """All pages, in a different order for each number of dumps."""
    folder.mkdir()
    found = pages()
    random.Random(cut.dumps).shuffle(found)
    for number in range(cut.dumps):
        (folder / f"{number}.xml").write_text(HEAD + "".join(found[number :: cut.dumps]) + FOOT)
    return Source(name="wiki", kind="wikimedia", paths=[str(folder / "*.xml")])


def run(folder: Path, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    config = BuildConfig(
        output=str(folder / "out"),
        sources=[write(folder, cut)],
        extraction=Extraction(unit_bytes=1 << 16, min_chars=50),
        dedup=Dedup(max_templated=3),
        vocabulary=Vocabulary(size=500, unused=9, min_count=3),
        instances=Instances(validation_share=0.1),
    )
    options = ray.data.DataContext.get_current().execution_options
    monkeypatch.setattr(options, "resource_limits", ray.data.ExecutionResources(cpu=cut.cpus))
    work = str(folder / "work")
    extracted = run_extract(config, work)
    rows = sum(part.rows for part in extracted.parts)
    size = sum(part.text_bytes for part in extracted.parts)
    monkeypatch.setattr(stage_dedup, "ROWS_PER_BUCKET", -(-rows // cut.buckets))
    monkeypatch.setattr(stage_vocabulary, "BYTES_PER_BUCKET", -(-size // cut.buckets))
    deduplicated = run_dedup(config, work, extracted)
    made = run_vocabulary(config, work, extracted, deduplicated)
    removed = all_removals(deduplicated.removals)
    columns = (removed[name].to_pylist() for name in ("key", "reason", "kept_key"))
    return {
        "units": len(extracted.parts),
        "removed": sorted(zip(*columns, strict=True)),
        "tokenizer": {path.name: path.read_bytes() for path in (folder / "out" / "tokenizer").iterdir()},
        "counts": made.counts,
    }


def test_removals_and_vocabulary_for_any_workers_buckets_and_files(
    ray_session: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases pipeline-010, pipeline-014, pipeline-024 and pipeline-025, on Ray."""
    one = run(tmp_path / "one", Cut(dumps=1, cpus=1, buckets=1), monkeypatch)
    other = run(tmp_path / "other", Cut(dumps=5, cpus=4, buckets=3), monkeypatch)
    assert other.pop("units") > one.pop("units")
    assert {reason for _, reason, _ in one["removed"]} == {"duplicate", "duplicate-text"}
    assert len(one["removed"]) == 8 + 20
    assert one == other
    pieces = one["tokenizer"]["vocab.txt"].decode().split("\n")
    assert {*RARE, *("##" + letter for letter in RARE)} <= set(pieces)
