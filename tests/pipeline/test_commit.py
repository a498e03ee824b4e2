"""Markers and parts: nothing counts before its commit, nothing of another config is found."""

import os
import subprocess
import sys
import tempfile

import pyarrow as pa
import pytest

from pipeline import commit
from pipeline.commit import Marker, PartWriter, StageFolder, stable_hash
from schemas.errors import CorpusError

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def test_stable_hash_ignores_key_order_only() -> None:
    assert stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    assert stable_hash({"a": 1}) != stable_hash({"a": 2})


def test_a_unit_is_done_only_after_its_commit(tmp_path) -> None:
    folder = StageFolder.create(str(tmp_path), "extract", {"seed": 1})
    with PartWriter(SCHEMA, folder.path("u1.parquet"), "u1.parquet") as writer:
        writer.write(pa.record_batch({"n": [1, 2]}, schema=SCHEMA))
        file = writer.finish()
    assert folder.finished() == {}
    folder.commit("u1", [file], {"pages_seen": 2})
    marker = folder.finished()["u1"]
    assert marker.files[0].rows == 2
    assert marker.counts == {"pages_seen": 2}


def test_an_abandoned_writer_leaves_no_file(tmp_path) -> None:
    uri = str(tmp_path / "x.parquet")
    with PartWriter(SCHEMA, uri, "x.parquet") as writer:
        writer.write(pa.record_batch({"n": [1]}, schema=SCHEMA))
    assert list(tmp_path.iterdir()) == []


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, monkeypatch) -> None:
    script = (
        "import os, signal, pyarrow as pa\n"
        "from pipeline.commit import PartWriter\n"
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


def test_another_config_finds_nothing(tmp_path) -> None:
    StageFolder.create(str(tmp_path), "extract", {"seed": 1}).commit("u1", [], {})
    assert StageFolder.create(str(tmp_path), "extract", {"seed": 2}).finished() == {}


def test_what_another_version_of_the_code_committed_is_not_found(tmp_path, monkeypatch) -> None:
    StageFolder.create(str(tmp_path), "extract", {"seed": 1}).commit("u1", [], {})
    monkeypatch.setattr(commit, "CODE_VERSION", "9.9.9")
    assert StageFolder.create(str(tmp_path), "extract", {"seed": 1}).finished() == {}


def test_a_marker_of_another_config_is_refused(tmp_path) -> None:
    folder = StageFolder(str(tmp_path), "f" * 64)
    StageFolder(str(tmp_path), "e" * 64).commit("u1", [], {})
    with pytest.raises(CorpusError, match="another unit or config"):
        folder.marker("u1")


@pytest.mark.parametrize("raw", [b"{", b"[" * 100_000])
def test_a_broken_marker_names_its_file(raw: bytes) -> None:
    with pytest.raises(CorpusError, match=r"u1\.done\.json"):
        Marker.from_bytes(raw, "u1.done.json")
