"""Corpora that are refused before the first step, with the name of the fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.columns.shards import SHARD
from schemas.errors import ConfigError, CorpusError, StorageError
from tests.support.manifests import read_manifest, set_entry, write_manifest
from tests.trainer.synthetic import (
    LANGUAGES,
    SPECIAL_IDS,
    invented_rows,
    manifest,
    shard_entry,
    write_corpus,
    write_shard,
)
from trainer.data.corpus import check_model, check_shards, open_corpus
from trainer.data.rows import ShardRows


def corpus_of(
    tmp_path: Path, change: Any = lambda columns: None, objective: str = "nsp", rows: int = 20
) -> Path:
    """Writes a corpus of one shard with columns changed by ``change``. Returns its manifest's path."""
    columns = invented_rows(rows, 32, 200, objective, 1)
    change(columns)
    entry = write_shard(tmp_path / "train-32-0" / "shard-00000.parquet", columns, 8)
    entry["languages"] = {lang: rows for lang, rows in entry["languages"].items() if lang in LANGUAGES}
    return save(tmp_path, [set_entry("train-32-0", 32, 0, [entry])], objective)


def save(tmp_path: Path, sets: list[Any], objective: str = "nsp", **changes: Any) -> Path:
    path = tmp_path / "manifest.json"
    write_manifest(path, {**manifest(sets, 200, objective), **changes})
    return path


def read_all(path: Path) -> Any:
    """The row groups of the first pass."""
    corpus = open_corpus(str(path))
    passes = corpus.passes(32)
    rows = ShardRows(passes, corpus.limits(32))
    places = [
        (shard, group) for shard, place in enumerate(passes[0]) for group in range(len(place.row_groups))
    ]
    return [rows.group(0, shard, group) for shard, group in places]


def set_value(column: str, row: int, value: Any) -> Any:
    def change(columns: dict[str, Any]) -> None:
        columns[column][row] = value

    return change


def inside(column: str, row: int, place: Any, value: Any) -> Any:
    def change(columns: dict[str, Any]) -> None:
        columns[column][row][place] = value

    return change


def drop_segment_b(columns: dict[str, Any]) -> None:
    columns["segment_a_length"][9] = columns["length"][9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            inside("input_ids", 9, 3, 250),
            r"row group 1 row 1: input_ids 250 is outside the vocabulary of 20",
        ),
        (inside("input_ids", 9, 3, -2), r"row group 1 row 1: input_ids -2 is outside"),
        (inside("masked_ids", 0, 0, 200), r"row group 0 row 0: masked_ids 200 is outside"),
        (inside("masked_ids", 0, 0, SPECIAL_IDS["[SEP]"]), r"row 0: masked_ids 3 is a special token"),
        (inside("masked_positions", 2, -1, 32), r"row 2: masked_positions 32 is outside the row"),
        (inside("masked_positions", 2, 0, 31), r"row 2: masked_positions"),
        (set_value("masked_ids", 3, [7]), r"row 3: masked_ids differ in number"),
        (set_value("length", 4, 3), r"row 4: length is not the number of input_ids"),
        (set_value("segment_a_length", 5, 0), r"row 5: segment_a_length 0 is outside the row"),
        (drop_segment_b, r"row group 1 row 1: segment_a_length \d+ leaves no second segment"),
        (set_value("next_sentence_label", 6, -1), r"row 6: next_sentence_label -1 is neither 0 nor 1"),
        (set_value("lang", 7, "xx"), r"row 7: lang 'xx' is not in the manifest"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: Any, message: str) -> None:  # trainer-032, trainer-034
    with pytest.raises(CorpusError, match=rf"shard-00000.parquet: .*{message}"):
        read_all(corpus_of(tmp_path, change))


def test_rows_longer_than_the_set_are_refused(tmp_path: Path) -> None:
    columns = invented_rows(4, 64, 200, "nsp", 1, full=True)
    entry = write_shard(tmp_path / "train-32-0" / "shard-00000.parquet", columns, 8)
    with pytest.raises(CorpusError, match=r"row 0: length 64 is above max_seq_length 32"):
        read_all(save(tmp_path, [set_entry("train-32-0", 32, 0, [entry])]))


def test_a_label_without_sentence_objective_is_refused(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, set_value("next_sentence_label", 2, 1), objective="none")
    with pytest.raises(CorpusError, match="row 2: next_sentence_label 1 must be -1"):
        read_all(path)


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_good_rows_are_read_as_they_were_written(tmp_path: Path, objective: str) -> None:
    found = read_all(corpus_of(tmp_path, objective=objective))
    written = invented_rows(20, 32, 200, objective, 1)
    assert [len(group.lengths) for group in found] == [8, 8, 4]
    for name in ("input_ids", "masked_positions", "masked_ids"):
        found_values = np.concatenate([vars(group)[name] for group in found])
        assert found_values.tolist() == [value for row in written[name] for value in row]
    assert np.concatenate([group.labels for group in found]).tolist() == written["next_sentence_label"]


def shards_of(path: Path) -> Any:
    corpus = open_corpus(str(path))
    return [place for shards in corpus.passes(32) for place in shards]


def resave(tmp_path: Path, table: pa.Table) -> Path:
    """Puts ``table`` in place of the only shard and makes the manifest agree with its bytes."""
    shard = tmp_path / "train-32-0" / "shard-00000.parquet"
    pq.write_table(table, shard, row_group_size=8)
    entry = shard_entry(shard, ["de"] * table.num_rows)
    return save(tmp_path, [set_entry("train-32-0", 32, 0, [entry])])


def test_a_cut_an_empty_and_a_missing_shard_are_named(tmp_path: Path) -> None:  # trainer-036
    path = corpus_of(tmp_path)
    shard = tmp_path / "train-32-0" / "shard-00000.parquet"
    raw = shard.read_bytes()
    assert check_shards(shards_of(path)) == 1
    for damaged in (raw[:-100], b""):
        shard.write_bytes(damaged)
        with pytest.raises(CorpusError, match=rf"shard-00000.parquet: {len(damaged)} bytes, but the"):
            check_shards(shards_of(path))
    shard.write_bytes(b"\0" * len(raw))
    with pytest.raises(StorageError, match=r"shard-00000.parquet: read as Parquet"):
        check_shards(shards_of(path))
    shard.unlink()
    with pytest.raises(CorpusError, match=r"shard-00000.parquet: no such shard"):
        check_shards(shards_of(path))


def test_a_footer_of_the_right_size_and_the_wrong_bytes_is_named(tmp_path: Path) -> None:  # trainer-036
    path = corpus_of(tmp_path)
    shard = tmp_path / "train-32-0" / "shard-00000.parquet"
    raw = bytearray(shard.read_bytes())
    raw[-2000:-8] = bytes(1992)
    shard.write_bytes(raw)
    with pytest.raises(CorpusError, match=r"shard-00000.parquet: its footer cannot be read: \S+"):
        check_shards(shards_of(path))


def test_damage_inside_a_row_group_is_named(tmp_path: Path) -> None:
    path = corpus_of(tmp_path, rows=200)
    shard = tmp_path / "train-32-0" / "shard-00000.parquet"
    raw = bytearray(shard.read_bytes())
    raw[4:600] = b"\xff" * 596
    shard.write_bytes(raw)
    check_shards(shards_of(path))
    with pytest.raises(CorpusError, match=r"shard-00000.parquet: row group 0: cannot be read"):
        read_all(path)


def test_missing_and_wrong_columns_are_named(tmp_path: Path) -> None:  # trainer-036
    corpus_of(tmp_path)
    table = pq.read_table(tmp_path / "train-32-0" / "shard-00000.parquet")
    path = resave(tmp_path, table.drop_columns(["segment_a_length"]))
    with pytest.raises(CorpusError, match=r"shard-00000.parquet: column segment_a_length is missing"):
        check_shards(shards_of(path))
    place = table.schema.get_field_index("input_ids")
    floats = table["input_ids"].cast(pa.list_(pa.float32()))
    path = resave(tmp_path, table.set_column(place, pa.field("input_ids", floats.type), floats))
    with pytest.raises(CorpusError, match=r"column input_ids is list<.*float>, expected list<.*int32>"):
        check_shards(shards_of(path))


def test_a_shard_written_without_arrow_metadata_reads_the_same(tmp_path: Path) -> None:
    """Another writer does not keep the dictionary type of lang, but the rows are the same."""
    before = read_all(corpus_of(tmp_path))
    table = pq.read_table(tmp_path / "train-32-0" / "shard-00000.parquet")
    place = table.schema.get_field_index("lang")
    after = read_all(resave(tmp_path, table.set_column(place, "lang", table["lang"].cast(pa.string()))))
    for one, other in zip(before, after, strict=True):
        assert all(np.array_equal(vars(one)[name], vars(other)[name]) for name in vars(one))


def test_nulls_are_named(tmp_path: Path) -> None:
    columns = invented_rows(4, 32, 200, "nsp", 1)
    columns["masked_ids"][2] = None
    (tmp_path / "train-32-0").mkdir()
    schema = pa.schema([field.with_nullable(True) for field in SHARD])
    table = pa.table([pa.array(columns[f.name], f.type) for f in SHARD], schema=schema)
    with pytest.raises(CorpusError, match="row 2: masked_ids is null"):
        read_all(resave(tmp_path, table))


def test_a_shard_without_rows_is_legal(tmp_path: Path) -> None:
    columns = invented_rows(0, 32, 200, "nsp", 1)
    entry = write_shard(tmp_path / "train-32-0" / "shard-00001.parquet", columns, 8)
    full = write_shard(
        tmp_path / "train-32-0" / "shard-00000.parquet", invented_rows(9, 32, 200, "nsp", 1), 8
    )
    path = save(tmp_path, [set_entry("train-32-0", 32, 0, [full, entry])])
    assert check_shards(shards_of(path)) == 2


def test_row_groups_have_to_be_those_of_the_manifest(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
    text = read_manifest(path)
    text["sets"][0]["shards"][0]["row_groups"] = [10, 10]
    write_manifest(path, text)
    with pytest.raises(CorpusError, match="row groups differ from the manifest"):
        check_shards(shards_of(path))


def test_a_missing_or_wrong_shard_table_is_named(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
    table = tmp_path / "manifest" / "train-32-0-train-0.parquet"
    raw = table.read_bytes()
    table.write_bytes(raw[:-1] + b"?")
    with pytest.raises(CorpusError, match=rf"^{table}: is not the shard table in the manifest"):
        shards_of(path)
    table.unlink()
    with pytest.raises(CorpusError, match=rf"^{table}: no such shard table$"):
        open_corpus(str(path)).order(32, 1).locate(np.arange(1))


def test_a_language_without_counts_is_named(tmp_path: Path) -> None:
    path = corpus_of(tmp_path)
    text = read_manifest(path)
    text["sets"][0]["languages"]["tlh"] = 1
    write_manifest(path, text)
    with pytest.raises(CorpusError, match="set train-32-0/train/0: no counts of language 'tlh'"):
        open_corpus(str(path))


def test_a_missing_or_inverted_manifest_is_refused(tmp_path: Path) -> None:  # trainer-029
    with pytest.raises(CorpusError, match="no such corpus manifest"):
        open_corpus(str(tmp_path / "manifest.json"))
    path = corpus_of(tmp_path)
    text = read_manifest(path)
    text["label_convention"] = {"0": "random_next", "1": "is_next"}
    write_manifest(path, text)
    with pytest.raises(CorpusError, match="label_convention"):
        open_corpus(str(path))


def test_passes_have_to_be_complete(tmp_path: Path) -> None:
    path = write_corpus(tmp_path, passes=3)
    text = read_manifest(path)
    del text["sets"][1]
    write_manifest(path, text)
    with pytest.raises(CorpusError, match=r"length 32 has the passes \[0, 2\]"):
        open_corpus(str(path)).passes(32)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    corpus = open_corpus(str(corpus_of(tmp_path)))
    good: dict[str, Any] = {"vocab_size": 200, "pairs": True, "max_positions": 32, "lengths": [32]}
    check_model(corpus, **good)
    with pytest.raises(ConfigError, match="its vocabulary has 199 entries"):
        check_model(corpus, **{**good, "vocab_size": 199})
    with pytest.raises(ConfigError, match="max_positions 31 is too small for max_seq_length 32"):
        check_model(corpus, **{**good, "max_positions": 31})
    plain = open_corpus(str(corpus_of(tmp_path / "none", objective="none")))
    with pytest.raises(ConfigError, match=r"sentence-pair objective, but .* was built without one"):
        check_model(plain, **good)
