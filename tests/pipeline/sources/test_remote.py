"""Tests that sources on a real S3 server, read by range, give the same results as local files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from pipeline.sources.units import Unit
from schemas.errors import InputError
from tests.pipeline.sources.dumps import LTG, LTG_INDEX, SAMPLE

pytestmark = pytest.mark.s3


def _config(path: str, kind: str, unit_bytes: int, **fields: Any) -> BuildConfig:
    source = Source(name="src", kind=kind, paths=[path], **fields)
    return BuildConfig(output="out", sources=[source], extraction=Extraction(unit_bytes=unit_bytes))


def _read(
    path: str, kind: str, unit_bytes: int = 1 << 17, **fields: Any
) -> tuple[list[Unit], list[RawDocument | Skip]]:
    config = _config(path, kind, unit_bytes, **fields)
    units = plan_units(config)
    return units, [item for unit in units for part in unit.ranges for item in read_unit(part, Extraction())]


def _upload(local: Path, folder: str) -> str:
    uri = storage.join(folder, local.name)
    storage.upload_file(str(local), uri)
    return uri


@pytest.mark.parametrize("index", [True, False])
def test_a_multistream_dump_is_read_by_range(s3_folder: str, index: bool) -> None:
    uri = _upload(LTG, s3_folder)
    if index:
        _upload(LTG_INDEX, s3_folder)
    units, pages = _read(storage.join(s3_folder, "*.xml.bz2"), "wikimedia")
    assert len(units) > 4
    assert {unit.uri for unit in units} == {uri}
    assert (units[0].expected_pages is not None) == index
    assert pages == _read(str(LTG), "wikimedia")[1]


def test_one_unit_of_a_remote_dump_reads_little_more_than_its_range(
    s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = _upload(LTG, s3_folder)
    config = _config(uri, "wikimedia", 1 << 16)
    units = plan_units(config)
    read = 0
    open_read = storage.open_read

    def counted(name: str) -> Any:
        file = open_read(name)
        inner = file.read

        def counting(size: int = -1) -> bytes:
            nonlocal read
            data = inner(size)
            read += len(data)
            return data

        monkeypatch.setattr(file, "read", counting, raising=False)
        return file

    class Counted:
        """The storage module with a counting open_read."""

        open_read = staticmethod(counted)

    monkeypatch.setattr("pipeline.sources.chunks.storage", Counted)
    assert list(read_unit(units[0], Extraction()))
    assert 0 < read < storage.size(uri) / 1.5


def test_published_extracts_are_read_by_row_group(s3_folder: str, tmp_path: Path) -> None:
    rows = [
        {
            "id": str(n),
            "url": f"https://ltg.wikipedia.org/wiki/{n}",
            "title": f"T{n}",
            "text": f"Text {n}. " * 50,
        }
        for n in range(500)
    ]
    local = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), local, row_group_size=50)
    uri = _upload(local, storage.join(s3_folder, "20231101.ltg"))
    units, documents = _read(uri, "wikipedia_parquet", unit_bytes=1 << 16)
    assert units[0].lang == "ltg"
    assert [document.page_id for document in documents] == [row["id"] for row in rows]
    assert isinstance(documents[7], RawDocument)
    assert documents[7].body == rows[7]["text"]
    _, of_folder = _read(s3_folder, "wikipedia_parquet", unit_bytes=1 << 30)
    assert of_folder == documents


def test_rows_and_books_on_s3(s3_folder: str, tmp_path: Path) -> None:
    local = tmp_path / "rows.jsonl"
    local.write_text(
        "".join(json.dumps({"id": n, "lang": "en", "text": f"Text {n}. " * 99}) + "\n" for n in range(500))
    )
    uri = _upload(local, s3_folder)
    units, documents = _read(uri, "jsonl")
    assert len(units) > 2
    assert documents == _read(str(local), "jsonl")[1]
    book = SAMPLE / "books" / "el" / "papadopoulou_paramoni.txt.gz"
    _upload(book, storage.join(s3_folder, "books"))
    (document,) = _read(storage.join(s3_folder, "books"), "bookcorpus", lang="el")[1]
    assert document == _read(str(book), "bookcorpus", lang="el")[1][0]


def test_a_missing_remote_file_is_named(s3_folder: str) -> None:
    with pytest.raises(InputError, match=r"source src: s3://.*no such file"):
        plan_units(_config(storage.join(s3_folder, "none.xml.bz2"), "wikimedia", 1 << 20))
