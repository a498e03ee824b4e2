"""Tests that verify accepts a sound corpus and names each of many corruptions."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from pipeline.config import MaskUnit, Objective
from pipeline.instances.make_instances import make_instances
from pipeline.verify.corpus import verify_corpus
from schemas.columns.shards import SHARD
from schemas.errors import CorpusError
from tests.pipeline.small_corpus import (
    SmallCorpus,
    build_small_corpus,
    set_column,
    small_bucket,
    small_settings,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SmallCorpus:
    return build_small_corpus(tmp_path_factory.mktemp("corpus") / "built")


@pytest.fixture
def corpus(built: SmallCorpus, tmp_path: Path) -> SmallCorpus:
    shutil.copytree(built.folder, tmp_path / "corpus")
    return SmallCorpus(tmp_path / "corpus")


def problems(corpus: SmallCorpus) -> str:
    report = verify_corpus(str(corpus.folder))
    assert not report.sound
    return "\n".join(report.lines())


@pytest.mark.parametrize(
    ("objective", "unit"),
    [("nsp", "whole_word"), ("nsp", "token"), ("sop", "span"), ("none", "ngram"), ("none", "token")],
)
def test_a_sound_corpus_is_sound(tmp_path: Path, objective: Objective, unit: MaskUnit) -> None:
    corpus = build_small_corpus(tmp_path / "corpus", objective, unit)
    report = verify_corpus(str(corpus.folder))
    assert list(report.problems) == []
    assert report.shards == 12
    assert report.tally.sequences == sum(entry["rows"] for entry in corpus.manifest["sets"]) > 2000
    assert "sound" in list(report.lines())[-1]
    assert verify_corpus(str(corpus.manifest_path)).sound


# ------------------------------------------------------------------ files


def flip_bits(corpus: SmallCorpus, place: float) -> None:
    path = corpus.shard(3)
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("place", [0.0, 0.1, 0.37, 0.5, 0.83, 0.999, 1.0])
def test_a_flipped_bit(corpus: SmallCorpus, place: float) -> None:
    flip_bits(corpus, place)
    assert f"{corpus.shard(3)}: is not the file in the manifest" in problems(corpus)


def test_swapped_files(corpus: SmallCorpus) -> None:
    one, other = corpus.shard(0), corpus.shard(1)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    found = problems(corpus)
    assert f"{one}: is not the file" in found
    assert f"{other}: is not the file" in found


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file(corpus: SmallCorpus, share: float) -> None:
    data = corpus.shard(2).read_bytes()
    corpus.shard(2).write_bytes(data[: int(share * len(data))])
    assert f"{corpus.shard(2)}: has {int(share * len(data))} bytes, but" in problems(corpus)


def test_a_missing_shard(corpus: SmallCorpus) -> None:
    corpus.shard(5).unlink()
    assert f"{corpus.shard(5)}: is missing" in problems(corpus)


def test_an_extra_shard(corpus: SmallCorpus) -> None:
    shutil.copy(corpus.shard(0), corpus.shard(0).with_name("train-0-00077.parquet"))
    assert "train-0-00077.parquet: is next to the shards" in problems(corpus)


def test_empty_files_beside_good_shards(corpus: SmallCorpus) -> None:
    """Case pipeline-020: the trainer follows the manifest, and verify names the files."""
    beside = corpus.shard(0).parent
    (beside / "x.parquet").write_bytes(b"")
    pq.write_table(SHARD.empty_table(), beside / "y.parquet")
    found = problems(corpus)
    assert "x.parquet: is next to the shards" in found
    assert "y.parquet: is next to the shards" in found


def test_another_vocabulary(corpus: SmallCorpus) -> None:
    path = corpus.folder / "tokenizer" / "vocab.txt"
    path.write_text(path.read_text().replace("w499", "w500"))
    assert "vocab.txt: is not the vocabulary" in problems(corpus)


def test_a_shorter_vocabulary(corpus: SmallCorpus) -> None:
    path = corpus.folder / "tokenizer" / "vocab.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    found = problems(corpus)
    assert "has 3 subwords, but the manifest says 1005" in found
    assert "[MASK] does not have the id 4" in found


def test_a_missing_vocabulary(corpus: SmallCorpus) -> None:
    (corpus.folder / "tokenizer" / "vocab.txt").unlink()
    assert "vocab.txt: is missing" in problems(corpus)


def test_a_corpus_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such manifest"):
        verify_corpus(str(tmp_path))


# ------------------------------------------------------------------ manifest


def test_an_edited_manifest(corpus: SmallCorpus) -> None:
    text = corpus.manifest_path.read_text()
    corpus.manifest_path.write_text(text.replace('"code_version": "test"', '"code_version": "best"'))
    with pytest.raises(CorpusError, match="was edited or damaged"):
        verify_corpus(str(corpus.folder))
    corpus.manifest_path.write_text(text[: len(text) // 2])
    with pytest.raises(CorpusError, match="Invalid JSON"):
        verify_corpus(str(corpus.folder))


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(manifest: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = manifest
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        old = place[last]
        place[last] = value(old) if callable(value) else value

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("sets.0.rows", lambda rows: rows + 1), "set len64/train/0: rows is not the sum"),
        (edit("sets.0.tokens", lambda tokens: tokens - 5), "tokens is not the sum"),
        (edit("sets.0.shards.0.sha256", "0" * 64), "is not the file"),
        (edit("sets.0.shards", lambda shards: [{**shard, "row_groups": [9]} for shard in shards]),
         "does not have the row groups in the manifest"),
        (edit("sets.0.languages.en", lambda rows: rows + 1), "set len64/train/0: languages do not add up"),
        (edit("sets.0.languages", lambda rows: {"en": rows["en"] - 1, "fi": rows["fi"] + 1}),
         "set len64/train/0: languages is not the sum over its shards"),
        (edit("sets.0.shards", lambda shards: shards[:1]), "rows is not the sum over its shards"),
        (edit("sets.0.shards", lambda shards: shards[::-1]), "the numbers of its shards do not ascend"),
        (edit("sets", lambda sets: sets[1:]), "is next to the shards or their tables"),
        (edit("sets", lambda sets: [*sets, sets[0]]), "duplicate set len64/train/0"),
        (edit("label_convention", {"0": "random_next", "1": "is_next"}), "is not that of nsp"),
        (edit("vocabulary.size", 1004), "has 1005 subwords, but the manifest says 1004"),
        (edit("vocabulary.special_ids", lambda ids: {**ids, "[SEP]": 2}), "[SEP] does not have the id 2"),
        (edit("sets.0.max_seq_length", 60), "longer than 60"),
        (edit("sets.0.max_predictions", 5), "more than max_predictions 5"),
        (edit("masking.probability", 0.1), "more targets than the masking rule gives"),
        (edit("masking.mask_share", 0.5), "of the targets are replaced by [MASK], not 0.500"),
        (edit("languages", lambda languages: {"en": languages["en"]}), "a language that the manifest does"),
        (edit("counts.by_set.len64/train/0.masked", 3), "masked is"),
        (edit("counts.by_set.len64/train/0.tokens_cut", 3), "tokens_in is not tokens_used"),
    ],
)  # fmt: skip
def test_a_manifest_that_was_edited_and_sealed_again(
    corpus: SmallCorpus, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    manifest = corpus.manifest
    change(manifest)
    corpus.rewrite_manifest(manifest)
    assert message in problems(corpus)


# ------------------------------------------------------------------ rows, with sums and hashes made to fit


def in_first_row(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[0] = change(values[0])
        return set_column(table, name, values)

    return apply


def both(*changes: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        for change in changes:
            table = change(table)
        return table

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_first_row("input_ids", lambda ids: [7, *ids[1:]]), "[CLS] is not at the start"),
        (in_first_row("input_ids", lambda ids: [*ids[:-1], 7]), "[SEP] is not at the end"),
        (in_first_row("input_ids", lambda ids: [*ids[:5], 2000, *ids[6:]]), "an id outside"),
        (in_first_row("input_ids", lambda ids: ids[:-1]), "length is not the number"),
        (in_first_row("length", lambda length: length - 1), "length is not the number"),
        (in_first_row("segment_a_length", lambda size: size - 1), "[SEP] is not between A and B"),
        (in_first_row("segment_a_length", lambda size: 2), "segment A or B is empty"),
        (in_first_row("next_sentence_label", lambda label: -1), "a label that nsp does not have"),
        (in_first_row("masked_positions", lambda places: [places[0], *places[:-1]]), "are not ascending"),
        (in_first_row("masked_positions", lambda places: [*places[:-1], 900]), "outside the row"),
        (in_first_row("masked_positions", lambda places: [-1, *places[1:]]), "outside the row"),
        (in_first_row("masked_positions", lambda places: places[1:]), "differ in number"),
        (in_first_row("masked_ids", lambda ids: [5000, *ids[1:]]), "a label outside the vocabulary"),
        (in_first_row("masked_ids", lambda ids: [1, *ids[1:]]), "a special token is a target"),
        (in_first_row("document_key", lambda key: ""), "no document key"),
        (both(in_first_row("masked_positions", lambda _: []), in_first_row("masked_ids", lambda _: [])),
         "no token is masked"),
        (both(in_first_row("masked_positions", lambda p: p[:3]), in_first_row("masked_ids", lambda i: i[:3])),
         "[MASK] at a position that is not a target"),
    ],
)  # fmt: skip
def test_a_false_row_in_a_shard_with_matching_hashes(
    corpus: SmallCorpus, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    corpus.replace_rows(change)
    assert message in problems(corpus)


def test_labels_that_are_all_the_same(corpus: SmallCorpus) -> None:
    corpus.replace_rows(lambda table: set_column(table, "next_sentence_label", [1] * table.num_rows))
    found = problems(corpus)
    assert "labels are" in found
    assert "rows have label 1, expected about" in found


def test_rows_that_were_left_out_or_doubled(corpus: SmallCorpus) -> None:
    corpus.replace_rows(lambda table: table.slice(1))
    assert "sequence_tokens is" in problems(corpus)
    corpus.replace_rows(lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    assert "in the counts" in problems(corpus)


def test_held_out_documents_in_a_training_shard(corpus: SmallCorpus) -> None:
    corpus.replace_rows(in_first_row("document_key", lambda key: "golden/130"))
    assert "has a document that is held out" in problems(corpus)


def test_pairs_of_a_document_with_itself(corpus: SmallCorpus) -> None:
    # Both halves of a bucket with a single document, with the label of a random pair.
    def self_pairs(table: pa.Table) -> pa.Table:
        tables = []
        for number in (29, 59, 25, 55):
            made = make_instances(small_bucket([number, number + 60]), small_settings(64, "sop"), 3, 0).table
            tables.append(made)
        made = pa.concat_tables(tables).combine_chunks()
        labels = np.ones(made.num_rows, np.int8).tolist()
        keys = made.column("document_key").to_pylist()
        rows = set_column(set_column(made, "next_sentence_label", labels), "document_key", keys)
        kept = table.filter(
            pa.array([key not in set(keys) for key in table.column("document_key").to_pylist()])
        )
        mixed = pa.concat_tables([kept.unify_dictionaries(), rows, made.unify_dictionaries()])
        return pa.table(
            [column.combine_chunks() for column in mixed.unify_dictionaries().columns], schema=SHARD
        )

    corpus.replace_rows(self_pairs)
    assert "random pairs have A and B of one document" in problems(corpus)


def test_a_shard_with_other_columns(corpus: SmallCorpus) -> None:
    path = corpus.shard(0)
    pq.write_table(pq.read_table(path).drop_columns(["length"]), path)
    assert f"{path}: does not have the columns of a shard" in problems(corpus)


@pytest.mark.s3
def test_a_corpus_on_s3(built: SmallCorpus, s3_folder: str) -> None:
    for path in sorted(built.folder.rglob("*")):
        if path.is_file():
            storage.upload_file(path, storage.join(s3_folder, str(path.relative_to(built.folder))))
    assert verify_corpus(s3_folder).sound
    storage.put_bytes(storage.join(s3_folder, "data/len64/stray.parquet"), b"")
    assert "stray.parquet" in "\n".join(verify_corpus(s3_folder).lines())
