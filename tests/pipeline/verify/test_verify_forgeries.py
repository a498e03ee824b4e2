"""Tests forgeries with valid rows and recomputed sums, hashes and counts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.instances.shards import encode_shard, shard_entry
from pipeline.verify.corpus import verify_corpus
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.verify.row_checks import RowColumns, RowTally, tally
from schemas.columns.shards import SHARD
from tests.pipeline.small_corpus import (
    SmallCorpus,
    build_small_corpus,
    count_languages,
    count_sequences,
    set_column,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a corpus, which the tests copy."""
    made = build_small_corpus(tmp_path_factory.mktemp("sound"))
    # Like a build with one copy of each document.
    edit(made, lambda manifest: set_copies(manifest, 1.0))
    for number in range(12):
        change(made, number, with_languages_in_keys)
    recount(made)
    assert verify_corpus(str(made.folder)).sound
    return made.folder


@pytest.fixture
def corpus(sound: Path, tmp_path: Path) -> SmallCorpus:
    return SmallCorpus(shutil.copytree(sound, tmp_path / "corpus"))


def with_languages_in_keys(table: pa.Table) -> pa.Table:
    names = zip(table.column("document_key").to_pylist(), table.column("lang").to_pylist(), strict=True)
    return set_column(table, "document_key", [f"golden/{lang}/{key.split('/')[1]}/0" for key, lang in names])


def edit(corpus: SmallCorpus, apply: Callable[[dict[str, Any]], Any]) -> None:
    manifest = corpus.manifest
    apply(manifest)
    corpus.rewrite_manifest(manifest)


def set_copies(manifest: dict[str, Any], copies: float) -> None:
    for counts in manifest["languages"].values():
        counts["copies"] = copies


def change(corpus: SmallCorpus, number: int, apply: Callable[[pa.Table], pa.Table]) -> None:
    table = pa.table(
        [column.combine_chunks() for column in apply(pq.read_table(corpus.shard(number))).columns],
        schema=SHARD,
    )
    replace(corpus, number, table, encode_shard(table))


def replace(corpus: SmallCorpus, number: int, table: pa.Table, data: bytes) -> None:
    corpus.shard(number).write_bytes(data)

    def apply(manifest: dict[str, Any]) -> None:
        places = [(entry, index) for entry in manifest["sets"] for index in range(len(entry["shards"]))]
        entry, index = places[number]
        path = entry["shards"][index]["path"]
        entry["shards"][index] = shard_entry(table, data, path).model_dump()
        count_languages(corpus.folder, entry)
        count_sequences(manifest)

    edit(corpus, apply)


def recount(corpus: SmallCorpus) -> None:
    """Adjusts the sums of the sets and the counts of the build to the shards."""
    files = CorpusFiles.open(str(corpus.folder))

    def apply(manifest: dict[str, Any]) -> None:
        for number, entry in enumerate(manifest["sets"]):
            total = RowTally()
            for shard in entry["shards"]:
                rows = RowColumns.of(pq.read_table(corpus.folder / shard["path"]))
                total.add(tally(rows, files.row_rules(files.manifest.sets[number])))
            for name in ("rows", "tokens"):
                entry[name] = sum(shard[name] for shard in entry["shards"])
            counts = manifest["counts"]["by_set"][f"{entry['name']}/{entry['split']}/{entry['pass_number']}"]
            for name in ("sequences", "sequence_tokens", "masked", "masked_by_mask", "masked_unchanged"):
                counts[name] = getattr(total, name)
            counts["labels"] = dict(total.labels)

    edit(corpus, apply)


def problems(corpus: SmallCorpus) -> str:
    report = verify_corpus(str(corpus.folder))
    assert not report.sound
    return "\n".join(report.lines())


def test_a_row_twice(corpus: SmallCorpus) -> None:
    many = [len(ids) for ids in pq.read_table(corpus.shard(6))["masked_ids"].to_pylist()]
    row = int(np.argmax(many))
    assert many[row] >= 16
    change(corpus, 6, lambda table: pa.concat_tables([table, table.slice(row, 1)]).unify_dictionaries())
    recount(corpus)
    assert f"{corpus.shard(6)}: has 1 duplicate rows, with the same masks" in problems(corpus)


@pytest.mark.parametrize("first", [0, 4])
def test_rows_that_changed_places_between_two_shards(corpus: SmallCorpus, first: int) -> None:
    one, other = (pq.read_table(corpus.shard(number)) for number in (first, first + 1))

    def swapped(table: pa.Table, guest: pa.Table) -> pa.Table:
        return pa.concat_tables([guest.slice(3, 1), table.slice(0, 3), table.slice(4)]).unify_dictionaries()

    change(corpus, first, lambda table: swapped(table, other))
    change(corpus, first + 1, lambda table: swapped(table, one))
    recount(corpus)
    assert f"{corpus.shard(first + 1)}: has a document that another shard of the set also has" in problems(
        corpus
    )


def test_documents_that_smoothing_repeats_may_lie_in_several_shards(corpus: SmallCorpus) -> None:
    edit(corpus, lambda manifest: set_copies(manifest, 2.5))
    table = pq.read_table(corpus.shard(1))
    change(corpus, 0, lambda other: pa.concat_tables([other, table.slice(0, 1)]).unify_dictionaries())
    recount(corpus)
    assert verify_corpus(str(corpus.folder)).sound


def test_labels_moved_on_by_one_row(corpus: SmallCorpus) -> None:
    def moved(table: pa.Table) -> pa.Table:
        labels = table.column("next_sentence_label").to_pylist()
        return set_column(table, "next_sentence_label", labels[-1:] + labels[:-1])

    for number in range(12):
        change(corpus, number, moved)
    recount(corpus)
    assert "random pairs have A and B of one document" in problems(corpus)


def test_languages_under_each_others_name(corpus: SmallCorpus) -> None:
    other = {"en": "fi", "fi": "en"}
    change(
        corpus,
        2,
        lambda table: set_column(table, "lang", [other[lang] for lang in table.column("lang").to_pylist()]),
    )
    recount(corpus)
    assert "is of another language than its document" in problems(corpus)


@pytest.mark.parametrize(("column", "value"), [("length", 64), ("segment_a_length", None)])
def test_statistics_that_lie(corpus: SmallCorpus, column: str, value: int | None) -> None:
    """Readers that filter by length would skip the row group."""
    table = pq.read_table(corpus.shard(0))
    data = corpus.shard(0).read_bytes()
    value = value or max(table.column(column).to_pylist())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    said, false = value.to_bytes(4, "little"), (value - 1).to_bytes(4, "little")
    assert data[footer:].count(b"\x04" + said) >= 1
    lied = data[:footer] + data[footer:].replace(b"\x04" + said, b"\x04" + false)
    replace(corpus, 0, table, lied)
    assert f"the footer says {column} is from" in problems(corpus)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"sequences": 5}, "language en: sequences is 5, but the sets have"),
        ({"pages_seen": 9, "pages_skipped": 1, "removed": 1, "documents": 6},
         "language en: pages_seen is not the sum of"),
        ({"documents": 6, "train_documents": 4, "validation_documents": 1},
         "language en: documents is not the sum of"),
        ({"pages_skipped": 6, "skipped": {"redirect": 5}}, "pages_skipped is not the sum of skipped"),
        ({"removed": 6, "removals": {"duplicate": 7}}, "removed is not the sum of removals"),
    ],
)  # fmt: skip
def test_accounts_of_languages(corpus: SmallCorpus, counts: dict[str, Any], message: str) -> None:
    edit(corpus, lambda manifest: manifest["languages"]["en"].update(counts))
    assert message in problems(corpus)


def test_a_language_without_an_account(corpus: SmallCorpus) -> None:
    edit(corpus, lambda manifest: manifest["languages"].pop("fi"))
    assert "language fi has rows but no counts" in problems(corpus)


def test_counts_that_were_taken_out(corpus: SmallCorpus) -> None:
    edit(corpus, lambda manifest: manifest["counts"]["by_set"].pop("len64/train/1"))
    assert "set len64/train/1 has no counts" in problems(corpus)
    edit(corpus, lambda manifest: manifest["counts"].update(by_set={}))
    assert "set len128/validation/0 has no counts" in problems(corpus)


def test_documents_that_do_not_add_up(corpus: SmallCorpus) -> None:
    def apply(manifest: dict[str, Any]) -> None:
        manifest["counts"]["documents"] = 7
        for counts in manifest["languages"].values():
            counts |= {"pages_seen": 4, "documents": 4, "train_documents": 4}

    edit(corpus, apply)
    assert "documents is not the sum over the languages" in problems(corpus)


def test_flipped_bits_anywhere_are_reported_and_never_raised(corpus: SmallCorpus) -> None:
    """The hash already reveals the damage. Reading such a file must not end in a traceback."""
    whole = corpus.shard(0).read_bytes()
    random = np.random.default_rng(3)
    for _ in range(30):
        data = bytearray(whole)
        for place in random.integers(0, len(data), 4):
            data[place] ^= 1 << int(random.integers(0, 8))
        corpus.shard(0).write_bytes(bytes(data))
        assert "is not the file in the manifest" in problems(corpus)
