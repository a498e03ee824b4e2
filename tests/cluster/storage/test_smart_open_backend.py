"""Tests files that smart-open reads, from the real S3 server by the scheme s3a."""

from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from schemas.errors import StorageError
from tests.pipeline.sources.dumps import LTG


@pytest.fixture
def folder(s3_folder: str) -> str:
    """The same folder by a scheme that smart-open handles instead of our own S3 client."""
    return s3_folder.replace("s3://", "s3a://")


def _upload(local: Path, folder: str) -> str:
    storage.upload_file(local, storage.join(folder.replace("s3a://", "s3://"), local.name))
    return storage.join(folder, local.name)


def _read(uri: str) -> tuple[int, list[RawDocument | Skip]]:
    config = BuildConfig(
        output="out",
        sources=[Source(name="src", kind="wikimedia", paths=[uri])],
        extraction=Extraction(unit_bytes=1 << 17),
    )
    units = plan_units(config)
    return len(units), [
        item for unit in units for span in unit.ranges for item in read_unit(span, Extraction())
    ]


@pytest.mark.s3
def test_a_multistream_dump_is_read_by_range_through_smart_open(folder: str) -> None:
    units, pages = _read(_upload(LTG, folder))
    assert units > 4
    assert pages == _read(str(LTG))[1]


@pytest.mark.s3
def test_ranges_streams_and_whole_files(folder: str, tmp_path: Path) -> None:
    raw = LTG.read_bytes()
    uri = _upload(LTG, folder)
    assert storage.size(uri) == len(raw)
    assert storage.read_range(uri, 1000, 77) == raw[1000:1077]
    assert storage.read_range(uri, len(raw) - 5, 100) == raw[-5:]
    assert storage.read_range(uri, len(raw) + 5, 100) == b""
    assert storage.read_range(uri, 5, 0) == b""
    with storage.open_read(uri) as file:
        file.seek(-9, 2)
        assert file.read() == raw[-9:]
        file.seek(500)
        assert file.read(10) == raw[500:510]
    with storage.open_stream(uri) as stream:
        assert stream.read() == raw
    storage.download_file(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == storage.read_bytes(uri) == raw


@pytest.mark.s3
def test_parquet_reads_its_own_ranges(folder: str, tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {number}" for number in range(5000)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=500)
    found = storage.parquet_file(_upload(tmp_path / "rows.parquet", folder))
    assert found.read_row_group(7).equals(table.slice(3500, 500))


@pytest.mark.s3
def test_a_missing_file_differs_from_a_fault(folder: str) -> None:
    uri = storage.join(folder, "none.xml.bz2")
    assert not storage.exists(uri)
    with pytest.raises(FileNotFoundError, match=r"none\.xml\.bz2"):
        storage.read_bytes(uri)


def test_writing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="sftp:// is read-only and has no put_bytes"):
        storage.put_bytes("sftp://host/file", b"")


@pytest.mark.process  # starts the `hdfs` command
def test_a_transport_that_cannot_seek_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # smart-open runs `hdfs dfs -cat FILE` and reads from a pipe.
    program = tmp_path / "hdfs"
    program.write_text("#!/bin/sh\necho text\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(StorageError, match="hdfs:// cannot seek, so it cannot be read by range"):
        storage.size("hdfs://host/dump.xml.bz2")


@pytest.mark.skipif(find_spec("paramiko") is not None, reason="the library is installed")
def test_a_transport_without_its_library_names_it() -> None:
    with pytest.raises(StorageError, match=r"ssh://host/x: open: .*smart_open\[ssh\]"):
        storage.size("ssh://host/x")


def test_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(StorageError, match="unknown storage nowhere://"):
        storage.size("nowhere://host/x")
