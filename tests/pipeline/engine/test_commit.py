"""Tests that results do not count before their commit, and that another config does not find them."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.engine import commit
from pipeline.engine.commit import PartWriter, RowCounts, StageFolder, stable_hash
from schemas.errors import CorpusError

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def test_stable_hash_ignores_key_order_only() -> None:
    assert stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    assert stable_hash({"a": 1}) != stable_hash({"a": 2})


def test_a_unit_is_done_only_after_its_commit(tmp_path: Path) -> None:
    folder = StageFolder.create(str(tmp_path), "extract", RowCounts, {"seed": 1})
    with PartWriter(SCHEMA, folder.path("u1.parquet"), "u1.parquet") as writer:
        writer.write(pa.record_batch({"n": [1, 2]}, schema=SCHEMA))
        file = writer.finish()
    assert folder.finished() == {}
    folder.commit("u1", [file], RowCounts(2))
    marker = folder.finished()["u1"]
    assert marker.files[0].rows == 2
    assert marker.counts == RowCounts(2)


def test_an_abandoned_writer_leaves_no_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "x.parquet")
    with PartWriter(SCHEMA, uri, "x.parquet") as writer:
        writer.write(pa.record_batch({"n": [1]}, schema=SCHEMA))
    assert list(tmp_path.iterdir()) == []


def test_the_next_writer_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, signal, pyarrow as pa\n"
        "from pipeline.engine.commit import PartWriter\n"
        "with PartWriter(pa.schema([('n', pa.int64())]), '/nowhere', 'x') as writer:\n"
        "    writer.write(pa.record_batch({'n': [1]}))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with PartWriter(SCHEMA, str(tmp_path / "x.parquet"), "x.parquet"):
        assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert list(tmp_path.rglob("*.parquet")) == []


FULL_DISK = """
import os, resource, sys
import pyarrow as pa
from pipeline.engine.commit import PartWriter
from schemas.errors import StorageError
schema = pa.schema([("data", pa.binary())])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with PartWriter(schema, sys.argv[1], "x.parquet") as writer:
        writer.write(pa.record_batch({"data": [os.urandom(100_000)]}, schema=schema))
        writer.finish()
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("most_bytes", [50_000, 100_050], ids=["in-the-rows", "in-the-footer"])
def test_a_full_disk_for_temporary_files_is_one_line(tmp_path: Path, most_bytes: int) -> None:
    uri = tmp_path / "x.parquet"
    command = [sys.executable, "-c", FULL_DISK, str(uri), str(most_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"/.*/part\.parquet: write: .*too large; free space, or set TMPDIR .*\n", done.stdout)
    assert not uri.exists()


def test_another_config_finds_nothing(tmp_path: Path) -> None:
    StageFolder.create(str(tmp_path), "extract", RowCounts, {"seed": 1}).commit("u1", [], RowCounts(0))
    assert StageFolder.create(str(tmp_path), "extract", RowCounts, {"seed": 2}).finished() == {}


def test_what_another_version_of_the_code_committed_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StageFolder.create(str(tmp_path), "extract", RowCounts, {"seed": 1}).commit("u1", [], RowCounts(0))
    monkeypatch.setattr(commit, "CODE_VERSION", "9.9.9")
    assert StageFolder.create(str(tmp_path), "extract", RowCounts, {"seed": 1}).finished() == {}


def test_a_marker_of_another_config_is_refused(tmp_path: Path) -> None:
    folder = StageFolder(str(tmp_path), "f" * 64, RowCounts)
    StageFolder(str(tmp_path), "e" * 64, RowCounts).commit("u1", [], RowCounts(0))
    with pytest.raises(CorpusError, match="another unit or config"):
        folder.marker("u1")


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"{", ""),
        (b"[" * 100_000, ""),
        (b"[]", ""),
        (b'{"unit_id": "u1", "stage_hash": "x", "files": []}', "counts"),
        (b'{"unit_id": "u1", "stage_hash": "x", "files": [], "counts": {"rows": "1"}}', r"counts\.rows"),
        (b'{"unit_id": "u1", "stage_hash": "x", "files": [{"path": "p"}], "counts": {}}', r"files\.0\.rows"),
    ],
)
def test_a_broken_marker_names_its_file_and_field(tmp_path: Path, raw: bytes, field: str) -> None:
    (tmp_path / "u1.done.json").write_bytes(raw)
    folder = StageFolder(str(tmp_path), "f" * 64, RowCounts)
    with pytest.raises(CorpusError, match=rf"u1\.done\.json: not a marker of a finished unit: {field}"):
        folder.marker("u1")
