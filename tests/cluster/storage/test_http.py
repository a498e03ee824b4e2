"""Tests http:// with a real web server, alone and behind a proxy that injects faults."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from cluster.storage import retries
from schemas.errors import StorageError
from tests.support.fault_proxy import FaultProxy, script
from tests.support.s3_server import BUCKET, S3Server

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(retries, "FIRST_DELAY_SECONDS", 0.02)
    with FaultProxy(s3_server.web_port, script()) as proxy:
        yield proxy


def publish(proxy: FaultProxy, s3_folder: str, name: str, data: bytes) -> str:
    """Puts a file on the web server. Returns its http:// URL."""
    uri = storage.join(s3_folder, name)
    storage.put_bytes(uri, data)
    return uri.replace(f"s3://{BUCKET}", f"{proxy.endpoint}/buckets/{BUCKET}")


def test_reading_from_the_web(proxy: FaultProxy, s3_folder: str, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    uri = publish(proxy, s3_folder, "dump.xml.bz2", data)
    assert storage.size(uri) == len(data)
    assert storage.exists(uri)
    assert storage.read_bytes(uri) == data
    assert storage.read_range(uri, 1 << 20, 1000) == data[1 << 20 : (1 << 20) + 1000]
    assert storage.read_range(uri, len(data) - 5, 1000) == data[-5:]
    with storage.open_read(uri) as file:
        file.seek(-10, io.SEEK_END)
        assert file.read() == data[-10:]
    with storage.open_stream(uri) as stream:
        assert b"".join(iter(lambda: stream.read(100_000), b"")) == data
    storage.download_file(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert storage.expand_glob(uri) == [uri]


def test_a_range_reads_little(proxy: FaultProxy, s3_folder: str) -> None:
    """A dump of 20 GB is read by ranges, so a range must not fetch the file up to its start."""
    uri = publish(proxy, s3_folder, "big", os.urandom(8 << 20))
    before = proxy.sent
    storage.read_range(uri, 7 << 20, 1000)
    assert proxy.sent - before == 1000


def test_a_change_between_two_reads_is_an_error(proxy: FaultProxy, s3_folder: str) -> None:
    uri = publish(proxy, s3_folder, "changing", b"a" * (4 << 20))
    file = storage.open_read(uri)
    stream_plan = len(proxy.requests)
    proxy.plan = lambda number, _m, _p: "cut" if number == stream_plan else "pass"
    stream = storage.open_stream(uri)
    publish(proxy, s3_folder, "changing", b"b" * (4 << 20))
    with pytest.raises(StorageError, match="changed while it was read"):
        stream.read()
    file.seek(2 << 20)
    with pytest.raises(StorageError, match="changed while it was read"):
        file.read(1)


def test_parquet_from_the_web(proxy: FaultProxy, s3_folder: str) -> None:
    table = pa.table({"number": list(range(10_000))})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1_000)
    uri = publish(proxy, s3_folder, "t.parquet", sink.getvalue())
    assert storage.parquet_file(uri).read_row_group(3)["number"].to_pylist() == list(range(3000, 4000))


@pytest.mark.parametrize("fault", ["503", "429", "reset", "cut"])
def test_requests_are_retried_after_faults(proxy: FaultProxy, s3_folder: str, fault: str) -> None:
    data = os.urandom(2 << 20)
    uri = publish(proxy, s3_folder, "x", data)
    base = len(proxy.requests)
    proxy.plan = lambda number, _method, _path: fault if (number - base) % 3 != 2 else "pass"
    assert storage.read_bytes(uri) == data
    assert storage.read_range(uri, 5, 100) == data[5:105]
    with storage.open_stream(uri) as stream:
        assert stream.read() == data
    assert proxy.done[fault] >= 3


def test_missing_and_refused_pages_raise_different_errors(proxy: FaultProxy, s3_folder: str) -> None:
    uri = publish(proxy, s3_folder, "there", b"x").replace("there", "not-there")
    for call in (storage.read_bytes, storage.size, storage.open_read, storage.open_stream):
        with pytest.raises(FileNotFoundError, match="not-there"):
            call(uri)
    assert not storage.exists(uri)
    proxy.plan = lambda *_: "403"
    with pytest.raises(StorageError, match="HTTP status 403"):
        storage.read_bytes(uri)


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.3)
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9/x: read: gave up"):
        storage.read_bytes("http://127.0.0.1:9/x")


def test_the_web_is_read_only() -> None:
    uri = "https://example.org/x"
    writes: list[Callable[[], None]] = [lambda: storage.put_bytes(uri, b"x"), lambda: storage.delete(uri)]
    for write in writes:
        with pytest.raises(StorageError, match="https:// is read-only"):
            write()
    with pytest.raises(StorageError, match="has no list_files"):
        storage.list_files(uri)


def test_no_message_has_the_secrets_of_a_url(
    proxy: FaultProxy, s3_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uri = publish(proxy, s3_folder, "there", b"x").replace("http://", "http://user:passw0rd@")
    signed = f"{uri}?X-Amz-Signature=s1gnature"
    assert storage.read_bytes(signed) == b"x"
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.3)
    messages = []
    for fault, url in [("403", signed), ("503", signed), ("pass", signed.replace("there?", "missing?"))]:
        proxy.plan = lambda *_, fault=fault: fault
        with pytest.raises((StorageError, FileNotFoundError)) as refused:
            storage.read_bytes(url)
        messages.append(str(refused.value))
    dead = "http://user:passw0rd@127.0.0.1:9/x?X-Amz-Signature=s1gnature"
    for url in (dead, dead.replace("http:", "ftp:").partition("?")[0]):
        with pytest.raises(StorageError) as refused:
            storage.read_bytes(url)
        messages.append(str(refused.value))
    said = "\n".join([*messages, caplog.text])
    assert "attempt 1 failed" in caplog.text
    assert "://***@127.0.0.1" in said
    assert "passw0rd" not in said
    assert "s1gnature" not in said


def test_the_reason_is_the_innermost_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.0)
    with pytest.raises(StorageError) as caught:
        storage.read_bytes("http://no-such-host.invalid/x")
    assert str(caught.value).count("no-such-host") == 2
    assert "Failed to resolve 'no-such-host.invalid'" in str(caught.value)
    assert "HTTPConnection" not in str(caught.value)
