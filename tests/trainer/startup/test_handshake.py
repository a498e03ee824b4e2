"""Ranks that do not have the same config, corpus or code refuse to train together."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError, CorpusError
from tests.trainer.runs import TINY, Group, train_config, write_config
from tests.trainer.states import reasons
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks, single_rank
from trainer.startup.handshake import (
    common_fields,
    compare_ranks,
    open_common_corpus,
    source_digest,
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32,))


class OtherRank(Ranks):
    """Rank 0 of two, where some facts of rank 1 differ."""

    def gather(self, value: Any) -> list[Any]:
        return [value, {**value, **OTHERS}]


OTHERS: dict[str, Any] = {}


def two_ranks(monkeypatch: pytest.MonkeyPatch, **others: Any) -> Ranks:
    for name, value in others.items():
        monkeypatch.setitem(OTHERS, name, value)
    return OtherRank(**{f.name: getattr(single_rank(), f.name) for f in dataclasses.fields(Ranks)})


def config_of(folder: Path, manifest: Path, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(train_config(folder, manifest, **changes))


def test_equal_ranks_pass_and_the_first_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compare_ranks({"a": 1, "b": None}, two_ranks(monkeypatch))
    others = {"b": 3, "c": 4, "host": "h1"}
    with pytest.raises(ConfigError, match=r"rank 1 \(host h1\) and rank 0 \(host .*differ in the b: 3 and 2"):
        compare_ranks({"a": 1, "b": 2}, two_ranks(monkeypatch, **others))


def test_a_fact_that_only_the_other_rank_has_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"differ in the extra: 1 and None"):
        compare_ranks({"a": 1}, two_ranks(monkeypatch, extra=1))


@pytest.mark.parametrize(
    "fact",
    ["torch version", "source code of bertmill", "corpus manifest (SHA-256)", "vocabulary (SHA-256)"],
)
def test_code_libraries_and_corpus_are_compared(
    tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_common_corpus(config_of(tmp_path, manifest), two_ranks(monkeypatch, **{fact: "another"}))
    assert f"differ in the {fact}: another and" in str(caught.value)


def test_every_field_counts_but_places_and_caches_of_a_host(tmp_path: Path, manifest: Path) -> None:
    fields = dict(common_fields(config_of(tmp_path, manifest)))
    assert {
        "seed",
        "phases.0.learning_rate",
        "logging.every_steps",
        "data.masking",
        "run.name",
        "evaluation",
        "stability.max_skipped",
    } <= fields.keys()
    assert not {"data.manifest", "data.cache_bytes", "compile_cache"} & fields.keys()


def test_a_vocabulary_file_of_another_corpus_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_corpus(tmp_path / "corpus", lengths=(32,))
    config = config_of(tmp_path, path)
    vocabulary = path.parent / "tokenizer" / "vocab.txt"
    vocabulary.write_bytes(vocabulary.read_bytes() + b"x")
    with pytest.raises(CorpusError, match=r"vocab\.txt: is not the vocabulary of"):
        open_common_corpus(config, single_rank())
    vocabulary.unlink()
    open_common_corpus(config, single_rank())
    assert "vocab.txt: no such file; an export of this run will need it" in reasons(caplog)


def test_the_digest_of_the_code_is_that_of_its_files() -> None:
    assert source_digest() == source_digest()
    assert len(source_digest()) == 64


def test_a_rank_with_another_config_ends_all_before_anything_is_claimed(
    tmp_path: Path, manifest: Path
) -> None:
    config = write_config(tmp_path, train_config(tmp_path, manifest, model=TINY))
    group = Group(config, ranks=2, overrides_of_last=["--phases.0.learning_rate=0.001"])
    output = group.finish(2, 2)
    assert output.count("differ in the config field phases.0.learning_rate: 0.001 and 0.005") == 2
    assert not (tmp_path / "runs").exists()
