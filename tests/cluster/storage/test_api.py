"""Tests that each storage function works alike on local files, Google Cloud Storage and S3."""

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import storage
from schemas.errors import StorageError


@pytest.fixture(params=["path", "file", "gs", pytest.param("s3", marks=pytest.mark.s3)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("s3", "gs"):
        return str(request.getfixturevalue(f"{request.param}_folder"))
    return str(tmp_path) if request.param == "path" else f"file://{tmp_path}"


def test_bytes_come_back(folder: str) -> None:
    uri = storage.join(folder, "a/b", "c.bin")
    storage.put_bytes(uri, b"one")
    storage.put_bytes(uri, b"two, longer")
    assert storage.read_bytes(uri) == b"two, longer"
    assert storage.size(uri) == 11
    assert storage.exists(uri)
    assert not storage.exists(storage.join(folder, "a"))


def test_ranges(folder: str) -> None:
    uri = storage.join(folder, "r")
    storage.put_bytes(uri, bytes(range(100)))
    assert storage.read_range(uri, 10, 5) == bytes(range(10, 15))
    assert storage.read_range(uri, 95, 50) == bytes(range(95, 100))
    assert storage.read_range(uri, 100, 5) == b""
    assert storage.read_range(uri, 500, 5) == b""
    assert storage.read_range(uri, 5, 0) == b""


def test_an_empty_file(folder: str) -> None:
    uri = storage.join(folder, "empty")
    storage.put_bytes(uri, b"")
    assert storage.read_bytes(uri) == b""
    assert storage.size(uri) == 0
    assert storage.read_range(uri, 0, 10) == b""
    with storage.open_read(uri) as file:
        assert file.read() == b""
    with storage.open_stream(uri) as stream:
        assert stream.read() == b""


def test_missing_files_are_file_not_found(folder: str, tmp_path: Path) -> None:
    uri = storage.join(folder, "nothing", "here.txt")
    for call in (
        lambda: storage.read_bytes(uri),
        lambda: storage.read_range(uri, 0, 1),
        lambda: storage.size(uri),
        lambda: storage.open_read(uri),
        lambda: storage.open_stream(uri),
        lambda: storage.parquet_file(uri),
        lambda: storage.download_file(uri, tmp_path / "local"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert str(caught.value) == uri
    assert not storage.exists(uri)
    assert not (tmp_path / "local").exists()
    storage.delete(uri)
    storage.delete_prefix(storage.join(folder, "nothing"))


def test_listing_is_sorted_recursive_and_only_below_the_folder(folder: str) -> None:
    for name in ("run/b", "run/a/z", "run/a/y", "runs/other"):
        storage.put_bytes(storage.join(folder, name), name.encode())
    listed = storage.list_files(storage.join(folder, "run"))
    assert [info.uri for info in listed] == [storage.join(folder, f"run/{n}") for n in ("a/y", "a/z", "b")]
    assert [info.size for info in listed] == [7, 7, 5]
    assert [info.uri for info in storage.list_files(storage.join(folder, "run") + "/")] == [
        info.uri for info in listed
    ]
    assert storage.list_files(storage.join(folder, "none")) == []


def test_deletions_stay_below_the_folder(folder: str) -> None:
    for name in ("run/b", "run/a/z", "runs/other", "run.txt"):
        storage.put_bytes(storage.join(folder, name), b"x")
    storage.delete(storage.join(folder, "run", "b"))
    assert [info.uri for info in storage.list_files(storage.join(folder, "run"))] == [
        storage.join(folder, "run/a/z")
    ]
    storage.delete_prefix(storage.join(folder, "run"))
    assert storage.list_files(storage.join(folder, "run")) == []
    assert storage.exists(storage.join(folder, "runs/other"))
    assert storage.exists(storage.join(folder, "run.txt"))


@pytest.mark.parametrize("uri", ["/", "file:///", "s3://corpus", "s3://corpus/", "gs://corpus/"])
def test_a_whole_root_is_never_deleted(uri: str) -> None:
    with pytest.raises(StorageError, match="refusing"):
        storage.delete_prefix(uri)


def test_put_if_absent_creates_once(folder: str) -> None:
    uri = storage.join(folder, "marker")
    assert storage.put_if_absent(uri, b"first")
    assert not storage.put_if_absent(uri, b"second")
    assert not storage.put_if_absent(uri, b"first")
    assert storage.read_bytes(uri) == b"first"
    storage.delete(uri)
    assert storage.put_if_absent(uri, b"third")


def test_of_32_racing_creators_one_wins(folder: str) -> None:
    for game in range(2):
        uri = storage.join(folder, f"race-{game}")
        start = threading.Barrier(32)
        won: list[int] = []

        def creator(
            number: int, uri: str = uri, start: threading.Barrier = start, won: list[int] = won
        ) -> None:
            start.wait()
            if storage.put_if_absent(uri, f"creator {number}".encode()):
                won.append(number)

        threads = [threading.Thread(target=creator, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert storage.read_bytes(uri) == f"creator {won[0]}".encode()


def test_files_go_up_and_down(folder: str, tmp_path: Path) -> None:
    local = tmp_path / "source.bin"
    local.write_bytes(os.urandom(70 << 20))  # above the multipart threshold
    uri = storage.join(folder, "big.bin")
    storage.upload_file(local, uri)
    assert storage.size(uri) == 70 << 20
    storage.download_file(uri, tmp_path / "new/copy.bin")
    assert (tmp_path / "new/copy.bin").read_bytes() == local.read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy.bin"]
    with pytest.raises(FileNotFoundError):
        storage.upload_file(tmp_path / "not there", uri)


def test_open_read_seeks(folder: str) -> None:
    data = os.urandom(3 << 20)
    uri = storage.join(folder, "seek")
    storage.put_bytes(uri, data)
    with storage.open_read(uri) as file:
        assert file.seekable()
        assert file.read(10) == data[:10]
        file.seek(-7, io.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(2 << 20)
        assert file.read(1 << 20) == data[2 << 20 :]
        assert file.read(1) == b""
        assert file.tell() == len(data)


def test_open_stream_reads_on(folder: str) -> None:
    data = os.urandom(5 << 20)
    uri = storage.join(folder, "stream")
    storage.put_bytes(uri, data)
    with storage.open_stream(uri) as stream:
        assert b"".join(iter(lambda: stream.read(100_000), b"")) == data


def test_parquet_by_row_group(folder: str) -> None:
    table = pa.table({"number": list(range(1000)), "text": [f"row {n}" for n in range(1000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100)
    uri = storage.join(folder, "table.parquet")
    storage.put_bytes(uri, sink.getvalue())
    file = storage.parquet_file(uri)
    assert file.metadata.num_row_groups == 10
    assert file.read_row_group(7, columns=["number"])["number"].to_pylist() == list(range(700, 800))
    assert file.read().equals(table)


def test_a_cut_parquet_file_is_named(folder: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"number": [1, 2, 3]}), sink)
    for name, data in (("cut", sink.getvalue()[:-10]), ("empty", b"")):
        uri = storage.join(folder, name)
        storage.put_bytes(uri, data)
        with pytest.raises(StorageError, match=f"{name}: read as Parquet"):
            storage.parquet_file(uri)


GLOBS = ["*.xml", "*", "**/*.xml", "d?/*", "d[12]/*.bz2", "d[!1]/*", "**", "a.xml", "none", "d1", "*/*/x.xml"]


@pytest.mark.parametrize("pattern", GLOBS)
def test_globs_mean_the_same_everywhere(folder: str, tmp_path: Path, pattern: str) -> None:
    root = tmp_path / "reference"
    for name in ("a.xml", "b.xml", "c.txt", "d1/e.xml", "d1/f.bz2", "d2/f.bz2", "d2/deep/x.xml"):
        storage.put_bytes(storage.join(folder, "g", name), b"x")
        storage.put_bytes(str(root / name), b"x")
    expected = {str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file()}
    if pattern == "**":  # pathlib's ** is folders only
        expected = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    found = storage.expand_glob(storage.join(folder, "g") + "/" + pattern)
    assert found == sorted(storage.join(folder, "g", name) for name in expected)


@pytest.mark.parametrize("part", ["..", "a/../../b", "/etc/passwd", "", "a//b", ".", "a\\..\\b", "a\0b"])
def test_no_name_leaves_its_folder(part: str) -> None:
    with pytest.raises(StorageError, match="must be a name inside"):
        storage.join("s3://bucket/run", part)


@given(
    st.lists(st.from_regex(r"[a-z0-9._-]{1,9}", fullmatch=True).filter(lambda p: p.strip(".")), max_size=4)
)
def test_joined_names_stay_below_their_base(parts: list[str]) -> None:
    for base in ("s3://bucket/run", "/data/run/", "file:///data/run", "run"):
        joined = storage.join(base, *parts)
        assert joined == "/".join([base.rstrip("/"), *parts])


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(StorageError, match="ftp://"):
        storage.read_bytes("ftp://host/file")


def test_local_faults_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(
        StorageError, match=r"file/below: write: Not a directory|file/below: write: File exists"
    ):
        storage.put_bytes(str(tmp_path / "file" / "below"), b"y")
    with pytest.raises(StorageError, match="Is a directory"):
        storage.read_bytes(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_unfinished_local_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".part-shard.parquet-0123").write_bytes(b"half")
    (tmp_path / "shard.parquet").write_bytes(b"whole")
    assert [info.uri for info in storage.list_files(str(tmp_path))] == [f"{tmp_path}/shard.parquet"]


def test_local_files_of_killed_writers_are_removed_when_nobody_writes_to_them(tmp_path: Path) -> None:
    for name in ("data/.part-shard.parquet-0123", "data/shard.parquet", "work/.part-old.json-4567"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"half")
    os.utime(tmp_path / "work/.part-old.json-4567", (1000, 1000))
    assert storage.abort_uploads(str(tmp_path / "nowhere"), older_than=4e9) == 0
    assert storage.abort_uploads(str(tmp_path), older_than=999) == 0
    assert storage.abort_uploads(str(tmp_path), older_than=1001) == 1
    assert storage.abort_uploads(str(tmp_path), older_than=4e9) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["shard.parquet"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A rename over /dev/stdout or a pipe would replace it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "source").write_bytes(b"x")
    writes: list[Callable[[], object]] = [
        lambda: storage.put_bytes(str(pipe), b"x"),
        lambda: storage.put_if_absent(str(pipe), b"x"),
        lambda: storage.upload_file(tmp_path / "source", str(pipe)),
    ]
    for write in writes:
        with pytest.raises(StorageError, match="pipe: write: exists and is not a regular file"):
            write()
    assert pipe.is_fifo()
