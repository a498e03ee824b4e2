"""The examples of a source reader, a document filter and template rules, in one build."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import bertmill
from schemas.manifest import parse_manifest
from tests.pipeline import builds
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

BODY = "The harvest was good this year and the barn is full. We will write again when the snow has melted. "


def sources(folder: Path) -> list[dict[str, Any]]:
    rows = [f"{number};Letter {number};Letter {number}. {BODY * 3}" for number in range(30)]
    rows += [f"30;Scores;{'12345 67890 ' * 30}", "31;Lost;"]
    (folder / "letters.csv").write_text("\n".join(["id;title;text", *rows]) + "\n")
    climate = "At noon it is {{temperature|21|F}} there.{{weather box/small|x=1}} " + BODY
    pages = (page(number, f"Village {number}. {climate * 3}") for number in range(9))
    (folder / "enwiki.xml").write_text(HEAD + "".join(pages) + FOOT)
    letters = {"name": "letters", "kind": "examples.csv_reader:CsvReader", "lang": "en"}
    return [
        {**letters, "paths": [str(folder / "*.csv")], "options": {"delimiter": ";"}},
        {"name": "wiki", "kind": "wikimedia", "lang": "en", "paths": [str(folder / "enwiki.xml")]},
        # Enough words for a vocabulary.
        {
            "name": "book",
            "kind": "bookcorpus",
            "lang": "en",
            "paths": [str(builds.SAMPLE / "books/en/*ebooks*")],
        },
    ]


def extracted_sentences(work: Path) -> list[str]:
    parts = [pq.read_table(part, columns=["sentences"]) for part in work.glob("extract*/*.parquet")]
    return [sentence for part in parts for row in part["sentences"].to_pylist() for sentence in row]


@pytest.mark.ray
def test_a_build_with_all_three(ray_session: RayCluster, tmp_path: Path) -> None:
    config = builds.config(
        tmp_path / "corpus",
        sources=sources(tmp_path),
        extraction={
            "filters": [{"use": "examples.digit_filter:MaxDigits", "options": {"share": 0.2}}],
            "template_functions": "examples.template_functions:RULES",
        },
        vocabulary={"size": 300, "unused": 9},
        instances={"validation_share": 0.1},
    )
    result = bertmill.build(config)
    manifest = parse_manifest(Path(result.manifest).read_bytes(), result.manifest)
    assert manifest.counts.pages.skipped == {"too-many-digits": 1, "no-text": 1}
    assert manifest.counts.documents == 40
    sentences = "\n".join(extracted_sentences(tmp_path / "corpus" / "work"))
    assert "At noon it is 21 °F there." in sentences
    assert "x=1" not in sentences
