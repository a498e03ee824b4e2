"""Tests the display of rows as text."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.verify.inspect_shards import ShardRow, inspect_rows, render_row
from schemas.errors import CorpusError
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ca", "##t", "##r", "sat", "mat"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> SmallCorpus:
    return build_small_corpus(tmp_path_factory.mktemp("inspected") / "corpus")


def test_targets_are_shown_with_their_replacements() -> None:
    row = ShardRow(
        input_ids=[2, 5, 6, 8, 4, 3, 5, 4, 3],
        segment_a_length=6,
        masked_positions=[3, 4, 6, 7],
        masked_ids=[7, 9, 5, 10],
        next_sentence_label=1,
        length=9,
        lang="en",
        document_key="wiki/en/12/3",
    )
    lines = list(render_row(row, 17, PIECES, {"0": "is_next", "1": "random_next"}))
    assert lines == [
        "row 17 · en · 9 tokens · 4 masked · label 1 random_next · wiki/en/12/3",
        "  A  [CLS] the ca⟨t→r⟩ ⟨sat⟩ [SEP]",
        "  B  ⟨=the⟩ ⟨mat⟩ [SEP]",
    ]


def test_a_segment_that_begins_inside_a_word_shows_it() -> None:
    row = ShardRow(
        input_ids=[2, 7, 9, 3, 8, 7, 3],
        segment_a_length=4,
        masked_positions=[],
        masked_ids=[],
        next_sentence_label=0,
        length=7,
        lang="en",
        document_key="k",
    )
    lines = list(render_row(row, 0, PIECES, {"0": "is_next"}))
    assert lines[1:] == ["  A  [CLS] ##t sat [SEP]", "  B  ##rt [SEP]"]


def test_rows_of_a_corpus(corpus: SmallCorpus) -> None:
    lines = list(inspect_rows(str(corpus.folder), start=3, rows=2))
    assert lines[0].startswith(str(corpus.shard(0)))
    heads = [line for line in lines if line.startswith("row ")]
    assert [head.split(" · ")[0] for head in heads] == ["row 3", "row 4"]
    assert sum(line.startswith("  B  ") for line in lines) == 2


def test_rows_of_one_language_and_one_shard(corpus: SmallCorpus) -> None:
    path = str(corpus.shard(4).relative_to(corpus.folder))
    lines = list(inspect_rows(str(corpus.manifest_path), shard=path, rows=500, lang="fi"))
    heads = [line for line in lines if line.startswith("row ")]
    assert len(heads) > 5
    assert all(" · fi · " in head for head in heads)


def test_past_the_end_there_are_no_rows(corpus: SmallCorpus) -> None:
    assert len(list(inspect_rows(str(corpus.folder), start=10**6))) == 2


def test_what_the_manifest_does_not_name_is_refused(corpus: SmallCorpus) -> None:
    with pytest.raises(CorpusError, match=r"no shard data/none\.parquet"):
        list(inspect_rows(str(corpus.folder), shard="data/none.parquet"))
    with pytest.raises(CorpusError, match="no shard with rows of language tlh"):
        list(inspect_rows(str(corpus.folder), lang="tlh"))


def test_a_file_that_is_not_a_shard_is_an_error(tmp_path: Path) -> None:
    damaged = build_small_corpus(tmp_path / "corpus")
    pq.write_table(pa.table({"a": [1]}), damaged.shard(0))
    with pytest.raises(CorpusError, match="does not have the columns"):
        list(inspect_rows(str(damaged.folder)))
