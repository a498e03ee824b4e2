"""Tests that a build with a word list masks listed words whole, and that another list is another config."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster.jobs.config_file import validate
from pipeline.build import build
from pipeline.config import BuildConfig
from pipeline.engine.build_identity import BuildIdentity
from pipeline.instances.word_lists import WORD_LIST_PATH
from pipeline.verify.corpus import verify_corpus
from schemas.errors import ConfigError, InputError
from tests.pipeline import builds
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray

# Frequent in the page of the sample. The last one also occurs in 博物館 and in other words.
WORDS = ["都市", "世界", "地区", "現在", "国際", "首都", "大学", "人口", "博物館", "博物"]


def config_of(folder: Path, words: Path) -> dict[str, Any]:
    dumps = [str(builds.SAMPLE / "dumps" / "jawiki-minidump-pages-articles.xml.bz2")]
    return builds.config(
        folder,
        sources=[{"name": "ja", "kind": "wikimedia", "paths": dumps}],
        instances={
            "validation_share": 0.0,
            "lengths": [{"max_seq_length": 128, "max_predictions": 20}],
            "masking": {"unit": "whole_word", "words": str(words)},
        },
    )


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(ray_session: RayCluster, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("build") / "corpus"
    build(validate(BuildConfig, config_of(output, words), "test"))
    return output


def test_listed_words_are_masked_whole(corpus: Path, words: Path) -> None:
    assert list(verify_corpus(str(corpus)).problems) == []
    manifest = json.loads((corpus / "manifest.json").read_text())
    digest = hashlib.sha256(words.read_bytes()).hexdigest()
    assert manifest["masking"]["word_list"] == {"path": WORD_LIST_PATH, "sha256": digest}
    pieces = (corpus / "tokenizer" / "vocab.txt").read_text(encoding="utf-8").split("\n")
    found: Counter[str] = Counter()
    for path in sorted(corpus.glob("data/**/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found.update(masked_words(row, pieces))
    assert found["whole"] > 20
    assert found["part"] == 0


def masked_words(row: dict[str, Any], pieces: list[str]) -> Counter[str]:
    """How often two-character words from the list, outside 博物館, are masked whole and in part."""
    ids = list(row["input_ids"])
    targets = set(row["masked_positions"])
    for position, label in zip(row["masked_positions"], row["masked_ids"], strict=True):
        ids[position] = label
    # Each subword becomes one unique character, so that positions in the text equal positions in the row.
    text = "".join(pieces[index] if len(pieces[index]) == 1 else "|" for index in ids)
    found: Counter[str] = Counter()
    for word in (word for word in WORDS if len(word) == 2 and word != "博物"):
        for at in (at for at in range(len(text)) if text.startswith(word, at)):
            masked = len({at, at + 1} & targets)
            found.update(["", "part", "whole"][masked : masked + 1])
    return found


def test_another_list_under_the_same_name_is_another_config(
    corpus: Path, words: Path, tmp_path: Path
) -> None:
    BuildIdentity.of(validate(BuildConfig, config_of(corpus, words), "test")).check_output(str(corpus))
    other = tmp_path / words.name
    other.write_text("都市\n", encoding="utf-8")
    before = words.read_bytes()
    words.write_bytes(other.read_bytes())
    try:
        with pytest.raises(ConfigError, match=r"differs in instances\.masking\.words\.sha256"):
            build(validate(BuildConfig, config_of(corpus, words), "test"))
    finally:
        words.write_bytes(before)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"instances": {"masking": {"words": "/none.txt"}}},
            r"instances\.masking\.words: /none\.txt: no such",
        ),
        (
            {"extraction": {"template_rules": "/none.yaml"}},
            r"extraction\.template_rules: /none\.yaml: no such",
        ),
        ({"dedup": {"evaluation": ["/none/*.txt"]}}, r"dedup\.evaluation: /none/\*\.txt: no such file"),
        ({"vocabulary": {"path": "/none/vocab.txt"}}, r"vocabulary\.path: /none/vocab\.txt: no such file"),
    ],
)
def test_a_missing_file_is_reported_before_any_work(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(validate(BuildConfig, builds.config(tmp_path / "out", **fields), "test"))
    assert not (tmp_path / "out").exists()


def test_an_evaluation_set_belongs_to_a_build_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text('{"q": "a question"}\n')
    config = validate(
        BuildConfig,
        builds.config(tmp_path / "out", dedup={"evaluation": [str(tmp_path / "*.jsonl")]}),
        "test",
    )
    BuildIdentity.of(config).claim_output(config.output)
    BuildIdentity.of(config).check_output(config.output)
    (tmp_path / "set.jsonl").write_text('{"q": "another question"}\n')
    with pytest.raises(ConfigError, match=r"differs in dedup\.evaluation\..*set\.jsonl"):
        build(config)
    (tmp_path / "set.jsonl").write_text('{"q":')
    with pytest.raises(InputError, match=r"set\.jsonl: cannot read the evaluation file"):
        build(config)


def test_unused_slots_that_fill_the_vocabulary_are_refused(tmp_path: Path) -> None:
    fields = {"vocabulary": {"size": 300, "unused": 295}}
    with pytest.raises(ConfigError, match="size 300 leaves no room for subwords with 295 unused slots"):
        validate(BuildConfig, builds.config(tmp_path / "out", **fields), "test")
