"""Builds, verifies and remasks a corpus of a script without spaces with a word list."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import BuildConfig, Source
from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import make_instances
from pipeline.instances.shards import write_shard
from pipeline.instances.word_lists import WORD_LIST_PATH, copy_word_list, load_word_list
from pipeline.verify.corpus import verify_corpus
from pipeline.verify.corpus_files import CorpusFiles
from schemas.errors import ConfigError, CorpusError
from schemas.masking.targets import offsets_of
from tests.pipeline.small_corpus import LENGTHS, SmallCorpus, build_small_corpus, small_settings
from tests.support.manifests import language_counts, set_entry
from tests.support.reference_instances import golden_vocabulary
from trainer.data.corpus import open_corpus
from trainer.data.dynamic_masks import dynamic_masks
from trainer.data.packing import RowTable, gather_rows
from trainer.data.rows import ShardRows

Row = dict[str, list[int]]
WORDS = ["北京", "大学", "大学生", "学生们"]


def config_of(folder: Path, words: Path | None) -> BuildConfig:
    source = Source(name="s", kind="text", paths=["x"])
    config = BuildConfig(output=str(folder), sources=[source])
    masking = config.instances.masking.model_copy(update={"words": None if words is None else str(words)})
    return config.model_copy(update={"instances": config.instances.model_copy(update={"masking": masking})})


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path, words: Path) -> SmallCorpus:
    """One set of Chinese text: the golden documents with characters in place of their pieces."""
    built = build_small_corpus(tmp_path / "corpus")
    sha256 = copy_word_list(config_of(built.folder, words))
    assert sha256 is not None
    pieces = chinese_vocabulary()
    settings = small_settings(64)
    settings = replace(
        settings,
        vocabulary=type(settings.vocabulary).from_pieces(pieces),
        segmenter=load_word_list(str(built.folder), sha256, tuple(pieces)),
    )
    rng = np.random.default_rng(3)
    ids = rng.integers(5, 10, 4000).astype(np.int32)
    bucket = BucketDocuments(
        token_ids=ids,
        sentence_offsets=offsets_of(np.full(200, 20)),
        document_offsets=offsets_of(np.full(20, 10)),
        languages=["zh"] * 20,
        keys=[str(number) for number in range(20)],
        copies=np.zeros(20, np.int64),
    )
    made = make_instances(bucket, settings, 1, 0)
    shard = write_shard(made.table, str(built.folder), "data/zh/train-00000.parquet").model_dump()
    raw = "".join(f"{piece}\n" for piece in pieces).encode()
    (built.folder / "tokenizer" / "vocab.txt").write_bytes(raw)
    manifest = built.manifest
    manifest["vocabulary"] |= {"sha256": hashlib.sha256(raw).hexdigest()}
    manifest["masking"] |= {"word_list": {"path": WORD_LIST_PATH, "sha256": sha256}}
    manifest["counts"]["by_set"] = {"len64/train/0": asdict(made.counts["zh"])}
    manifest["languages"] = {"zh": language_counts(sequences=shard["rows"])}
    manifest["sets"] = [set_entry("len64", 64, 0, [shard], max_predictions=LENGTHS[64])]
    built.rewrite_manifest(manifest)
    return built


def chinese_vocabulary() -> list[str]:
    pieces = golden_vocabulary()
    return [*pieces[:5], "北", "京", "大", "学", "们", *pieces[10:]]


def parted_words(ids: list[int], positions: set[int]) -> int:
    """Number of partly masked two-character words from the list, with 大学 only outside 大学生."""
    text = "".join("北京大学们"[token - 5] if 5 <= token < 10 else "|" for token in ids)
    return sum(
        text[at : at + 2] == word and len({at, at + 1} & positions) == 1
        for word in ("北京", "大学")
        for at in range(len(text))
    )


def rows_masked_twice(corpus: SmallCorpus) -> tuple[list[Row], list[Row]]:
    """All rows with the masks of the shards, and with new masks."""
    opened = open_corpus(str(corpus.manifest_path))
    order = opened.order(64, seed=1)
    places = order.locate(np.arange(order.cycle_rows))
    table = gather_rows(places, slice(None), ShardRows(opened.passes(64), opened.limits(64)))
    return unpacked(table), unpacked(dynamic_masks(opened, 64, seed=1).apply(table))


def unpacked(table: RowTable) -> list[Row]:
    """The rows one by one."""
    return [
        {
            "input_ids": table.input_ids[start : start + length].tolist(),
            "masked_positions": table.masked_positions[first : first + count].tolist(),
            "masked_ids": table.masked_ids[first : first + count].tolist(),
        }
        for start, length, first, count in zip(
            table.starts, table.lengths, table.masked_starts, table.masked_sizes, strict=True
        )
    ]


def test_static_and_dynamic_masks_keep_listed_words_together(corpus: SmallCorpus) -> None:
    assert list(verify_corpus(str(corpus.folder)).problems) == []
    opened = CorpusFiles.open(str(corpus.folder))
    rules = opened.row_rules(opened.manifest.sets[0])
    assert rules.segmenter is not None
    static, dynamic = rows_masked_twice(corpus)
    chosen = [set(row["masked_positions"]) for row in static]
    assert chosen != [set(row["masked_positions"]) for row in dynamic]
    for row in (*static, *dynamic):
        ids = list(row["input_ids"])
        for position, label in zip(row["masked_positions"], row["masked_ids"], strict=True):
            ids[position] = label
        assert parted_words(ids, set(row["masked_positions"])) == 0


def test_another_or_a_missing_word_list_is_found(corpus: SmallCorpus) -> None:
    path = corpus.folder / WORD_LIST_PATH
    path.write_text("北京", encoding="utf-8")
    assert "is not the word list" in "\n".join(verify_corpus(str(corpus.folder)).lines())
    with pytest.raises(CorpusError, match="word list of the manifest"):
        dynamic_masks(open_corpus(str(corpus.manifest_path)), 64, seed=1)
    path.unlink()
    assert f"{WORD_LIST_PATH}: is missing" in "\n".join(verify_corpus(str(corpus.folder)).lines())
    with pytest.raises(CorpusError, match="word list is missing"):
        load_word_list(str(corpus.folder), "0" * 64, ("a",))


def test_a_config_without_a_list_copies_none(tmp_path: Path) -> None:
    assert copy_word_list(config_of(tmp_path, None)) is None
    assert not (tmp_path / WORD_LIST_PATH).exists()


@pytest.mark.parametrize(
    ("raw", "message"),
    [(None, "no such file"), (b"\xff\xfe", "not UTF-8"), (b"\n \n", "contains no words")],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, raw: bytes | None, message: str) -> None:
    path = tmp_path / "words.txt"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(ConfigError, match=rf"instances\.masking\.words: .*{message}"):
        copy_word_list(config_of(tmp_path / "out", path))
