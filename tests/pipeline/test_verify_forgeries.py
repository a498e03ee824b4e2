"""Forgeries in which every row is sound by itself and all sums, hashes and counts are made anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus_files import CorpusFiles
from pipeline.row_checks import RowColumns, RowTally, tally
from pipeline.shards import encode_shard, shard_entry
from pipeline.verify import verify_corpus
from schemas.shards import SHARD
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus, set_column


@pytest.fixture
def corpus(tmp_path: Path) -> SmallCorpus:
    made = build_small_corpus(tmp_path / "corpus")
    # As a build of one copy of each document writes it.
    edit(made, lambda manifest: manifest.update(languages={"en": {"copies": 1.0}, "fi": {"copies": 1.0}}))
    for number in range(12):
        change(made, number, with_languages_in_keys)
    recount(made)
    assert verify_corpus(str(made.folder)).sound
    return made


def with_languages_in_keys(table: pa.Table) -> pa.Table:
    names = zip(table.column("document_key").to_pylist(), table.column("lang").to_pylist(), strict=True)
    return set_column(table, "document_key", [f"golden/{lang}/{key.split('/')[1]}/0" for key, lang in names])


def edit(corpus: SmallCorpus, apply: Callable[[dict[str, Any]], Any]) -> None:
    manifest = corpus.manifest
    apply(manifest)
    corpus.rewrite_manifest(manifest)


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
        entry["shards"][index] = shard_entry(table, data, entry["shards"][index]["path"])

    edit(corpus, apply)


def recount(corpus: SmallCorpus) -> None:
    """Makes the sums of the sets and the counts of the build fit the shards."""
    files = CorpusFiles.open(str(corpus.folder))

    def apply(manifest: dict[str, Any]) -> None:
        for entry in manifest["sets"]:
            total = RowTally()
            for shard in entry["shards"]:
                rows = RowColumns.of(pq.read_table(corpus.folder / shard["path"]))
                total.add(tally(rows, files.row_rules(entry)))
            for name in ("rows", "tokens"):
                entry[name] = sum(shard[name] for shard in entry["shards"])
            counts = manifest["counts"]["by_set"][f"{entry['name']}/{entry['split']}/{entry['pass']}"]
            for name in ("rows", "row_tokens", "masked", "masked_by_mask", "masked_unchanged"):
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
    assert f"{corpus.shard(6)}: has 1 rows twice, with the same masks" in problems(corpus)


@pytest.mark.parametrize("first", [0, 4])
def test_rows_that_changed_places_between_two_shards(corpus: SmallCorpus, first: int) -> None:
    one, other = (pq.read_table(corpus.shard(number)) for number in (first, first + 1))

    def swapped(table: pa.Table, guest: pa.Table) -> pa.Table:
        return pa.concat_tables([guest.slice(3, 1), table.slice(0, 3), table.slice(4)]).unify_dictionaries()

    change(corpus, first, lambda table: swapped(table, other))
    change(corpus, first + 1, lambda table: swapped(table, one))
    recount(corpus)
    assert f"{corpus.shard(first + 1)}: has a document that another shard of the set has too" in problems(
        corpus
    )


def test_documents_that_smoothing_repeats_may_lie_in_several_shards(corpus: SmallCorpus) -> None:
    edit(corpus, lambda manifest: manifest.update(languages={"en": {"copies": 2.5}, "fi": {"copies": 2.5}}))
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
    assert f"{column} is said to be from" in problems(corpus)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"en": {"instances": -1}, "fi": {}}, None),
        ({"en": {"instances": 5}, "fi": {}}, "language en: instances are 5, the shards have"),
        ({"en": {}}, "language fi has rows and no account"),
        ({"en": {"pages_seen": 9, "pages_skipped": 1, "duplicates": 1, "documents": 6}, "fi": {}},
         "language en: pages_seen are not the sum of"),
        ({"en": {"documents": 6, "train_documents": 4, "validation_documents": 1}, "fi": {}},
         "language en: documents are not the sum of"),
        ({"en": {"pages_skipped": 6, "skipped": {"redirect": 5}}, "fi": {}},
         "pages_skipped are not the sum"),
        ({"en": {"duplicates": 6, "dropped": {"exact": 7}}, "fi": {}}, "duplicates are not the sum"),
    ],
)  # fmt: skip
def test_accounts_of_languages(corpus: SmallCorpus, languages: dict[str, Any], message: str | None) -> None:
    if message is None:
        rows = sum(e["languages"].get("en", 0) for s in corpus.manifest["sets"] for e in s["shards"])
        edit(corpus, lambda manifest: manifest.update(languages={"en": {"instances": rows}, "fi": {}}))
        assert verify_corpus(str(corpus.folder)).sound
        return
    edit(corpus, lambda manifest: manifest.update(languages=languages))
    assert message in problems(corpus)


def test_counts_that_were_taken_out(corpus: SmallCorpus) -> None:
    edit(corpus, lambda manifest: manifest["counts"]["by_set"].pop("len64/train/1"))
    assert "set len64/train/1 has no counts" in problems(corpus)
    edit(corpus, lambda manifest: manifest.update(counts={}))
    assert "set len128/validation/0 has no counts" in problems(corpus)


def test_documents_that_do_not_add_up(corpus: SmallCorpus) -> None:
    def apply(manifest: dict[str, Any]) -> None:
        manifest["counts"]["documents"] = 7
        manifest["languages"] = {"en": {"documents": 4}, "fi": {"documents": 4}}

    edit(corpus, apply)
    assert "documents are not the sum over the languages" in problems(corpus)


def test_flipped_bits_anywhere_are_reported_and_never_raised(corpus: SmallCorpus) -> None:
    """The hash says so already; what is read of such a file afterwards must not end in a traceback."""
    whole = corpus.shard(0).read_bytes()
    random = np.random.default_rng(3)
    for _ in range(60):
        data = bytearray(whole)
        for place in random.integers(0, len(data), 4):
            data[place] ^= 1 << int(random.integers(0, 8))
        corpus.shard(0).write_bytes(bytes(data))
        assert "is not the file that the manifest names" in problems(corpus)
