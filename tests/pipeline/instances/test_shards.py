"""Tests that we, pyarrow and `datasets` read the same rows from shards as were written."""

import hashlib
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from pipeline.instances.make_instances import make_instances
from pipeline.instances.shards import encode_shard, write_shard
from schemas.columns.shards import ROW_GROUP_ROWS, SHARD
from schemas.errors import CorpusError
from schemas.shard_tables import row_groups
from tests.pipeline.instances.bucket_documents import Made, traceable


@pytest.fixture(scope="module")
def table() -> pa.Table:
    documents = [Made([9, 4, 12] * 20, lang) for lang in ("en", "de") for _ in range(120)]
    source = traceable(documents)
    return make_instances(source.bucket, source.settings(), 1, 0).table


def test_a_shard_has_what_its_entry_says(table: pa.Table, tmp_path: Path) -> None:
    entry = write_shard(table, str(tmp_path), "train/128/shard-00000.parquet")
    path = tmp_path / entry.path
    data = path.read_bytes()
    assert entry.bytes == len(data)
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    assert entry.rows == table.num_rows > 2 * ROW_GROUP_ROWS
    assert entry.tokens == sum(table.column("length").to_pylist())
    assert sum(entry.languages.values()) == table.num_rows
    assert list(entry.languages) == ["de", "en"]
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(SHARD)
    found = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert tuple(found) == row_groups(entry.rows, ROW_GROUP_ROWS)
    assert set(found[:-1]) == {ROW_GROUP_ROWS}
    assert file.read().equals(table)


def test_codec_page_index_and_dictionary(table: pa.Table) -> None:
    metadata = pq.read_metadata(pa.BufferReader(encode_shard(table)))
    for number in range(metadata.num_columns):
        column = metadata.row_group(0).column(number)
        assert column.compression == "ZSTD"
        assert column.has_offset_index
    names = {metadata.row_group(0).column(n).path_in_schema: n for n in range(metadata.num_columns)}
    assert "RLE_DICTIONARY" in metadata.row_group(0).column(names["lang"]).encodings
    assert metadata.row_group(0).column(names["length"]).has_column_index


def test_the_bytes_depend_on_the_rows_alone(table: pa.Table) -> None:
    again = pa.concat_tables([table.slice(0, 700), table.slice(700)])
    assert encode_shard(again) == encode_shard(table)
    assert encode_shard(table.slice(1)) != encode_shard(table)


def test_datasets_opens_a_shard_unchanged(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    write_shard(table, str(tmp_path), "train.parquet")
    files = {"train": str(tmp_path / "train.parquet")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    assert loaded.num_rows == table.num_rows
    assert loaded.column_names == SHARD.names
    first = table.slice(0, 1).to_pylist()[0]
    assert {name: loaded[0][name] for name in ("input_ids", "length", "document_key")} == {
        name: first[name] for name in ("input_ids", "length", "document_key")
    }


def test_an_empty_shard(tmp_path: Path) -> None:
    entry = write_shard(SHARD.empty_table(), str(tmp_path), "empty.parquet")
    assert (entry.rows, entry.languages) == (0, {})
    assert pq.read_table(tmp_path / "empty.parquet").schema.equals(SHARD)


def test_other_columns_are_refused(table: pa.Table) -> None:
    with pytest.raises(CorpusError, match="other types"):
        encode_shard(table.drop_columns(["length"]))


@pytest.mark.s3
def test_a_shard_on_s3(table: pa.Table, s3_folder: str, tmp_path: Path) -> None:
    local = write_shard(table, str(tmp_path), "a/b.parquet")
    assert write_shard(table, s3_folder, "a/b.parquet") == local
    assert (
        storage.read_bytes(storage.join(s3_folder, "a/b.parquet")) == (tmp_path / "a/b.parquet").read_bytes()
    )
