"""Tests storage with a faulty store: errors, resets, lost responses, a frozen and a killed server."""

import io
import os
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import storage
from cluster.storage import retries, s3
from schemas.errors import StorageError
from tests.support.fault_proxy import FaultProxy, Plan, script
from tests.support.s3_server import S3Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.s3


def from_now(proxy: FaultProxy, plan: Plan) -> None:
    """Restarts the count of requests at zero for ``plan``."""
    base = len(proxy.requests)
    proxy.plan = lambda number, method, path: plan(number - base, method, path)


@pytest.mark.parametrize("fault", ["503", "500", "429", "reset", "lost"])
def test_requests_are_retried_after_five_faults(
    proxy: FaultProxy, s3_folder: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """trainer-047, first half."""
    uri = storage.join(s3_folder, "x")
    from_now(proxy, script(*[fault] * 5))
    storage.put_bytes(uri, b"content")
    assert f"{uri}: write: attempt 1 failed, retrying in" in caplog.text
    from_now(proxy, script(*[fault] * 5))
    assert storage.read_bytes(uri) == b"content"
    assert proxy.done[fault] == 10


@pytest.mark.parametrize("fault", ["500", "reset", "lost"])
def test_listing_sizes_and_deletions_are_repeated_too(proxy: FaultProxy, s3_folder: str, fault: str) -> None:
    uri = storage.join(s3_folder, "x")
    storage.put_bytes(uri, b"content")
    from_now(proxy, script(*[fault] * 4))
    assert [info.uri for info in storage.list_files(s3_folder)] == [uri]
    from_now(proxy, script(*[fault] * 4))
    assert storage.size(uri) == 7
    from_now(proxy, script(*[fault] * 4))
    storage.delete(uri)
    from_now(proxy, script(*[fault] * 4))
    assert not storage.exists(uri)


def test_a_lost_answer_to_a_conditional_put_is_not_a_lost_race(proxy: FaultProxy, s3_folder: str) -> None:
    """The first attempt creates the object but loses the response. The retry gets 412 for its own object."""
    uri = storage.join(s3_folder, "claim")
    from_now(proxy, script("lost"))
    assert storage.put_if_absent(uri, b"same bytes")
    assert not storage.put_if_absent(uri, b"same bytes")
    from_now(proxy, script("lost", "503"))
    assert not storage.put_if_absent(uri, b"same bytes")
    from_now(proxy, script("lost", "lost", "reset", "lost"))
    assert storage.put_if_absent(storage.join(s3_folder, "other"), b"same bytes")


def test_races_behind_a_bad_network_have_one_winner(proxy: FaultProxy, s3_folder: str) -> None:
    generator = random.Random(7)
    actions = ["pass", "pass", "lost", "503", "reset"]
    proxy.plan = lambda _number, _method, _path: generator.choice(actions)
    for game in range(3):
        uri = storage.join(s3_folder, f"race-{game}")
        won: list[int] = []

        def creator(number: int, uri: str = uri, won: list[int] = won) -> None:
            if storage.put_if_absent(uri, b"the same for all"):
                won.append(number)

        threads = [threading.Thread(target=creator, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
    assert proxy.done["lost"] > 3


def test_bodies_that_break_off_are_read_again(proxy: FaultProxy, s3_folder: str, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    uri = storage.join(s3_folder, "body")
    storage.put_bytes(uri, data)
    from_now(proxy, script("cut", "cut", "cut", "cut"))
    assert storage.read_bytes(uri) == data
    from_now(proxy, script("cut", "cut", "cut", "cut"))
    assert storage.read_range(uri, 1000, 1 << 20) == data[1000 : 1000 + (1 << 20)]
    from_now(proxy, script("pass", "cut", "cut", "reset", "cut"))
    storage.download_file(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data


def test_a_stream_resumes_where_it_broke(proxy: FaultProxy, s3_folder: str) -> None:
    data = os.urandom(6 << 20)
    uri = storage.join(s3_folder, "stream")
    storage.put_bytes(uri, data)
    from_now(proxy, script("pass", "cut", "503", "cut", "reset", "cut"))
    with storage.open_stream(uri) as stream:
        assert b"".join(iter(lambda: stream.read(70_000), b"")) == data
    assert proxy.done["cut"] >= 3
    ranged = len([1 for method, _ in proxy.requests if method == "GET"])
    assert ranged >= 4


def test_a_stream_does_not_mix_two_versions(proxy: FaultProxy, s3_folder: str) -> None:
    uri = storage.join(s3_folder, "mixed")
    storage.put_bytes(uri, b"a" * (6 << 20))
    from_now(proxy, script("pass", "cut"))
    with storage.open_stream(uri) as stream:
        storage.put_bytes(uri, b"b" * (6 << 20))
        with pytest.raises(StorageError, match="changed while it was read"):
            stream.read()


def test_parquet_over_a_bad_network(proxy: FaultProxy, s3_folder: str) -> None:
    table = pa.table({"number": list(range(50_000))})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=5_000)
    uri = storage.join(s3_folder, "t.parquet")
    storage.put_bytes(uri, sink.getvalue())
    generator = random.Random(3)
    proxy.plan = lambda _number, _method, _path: generator.choice(["pass", "cut", "503", "reset"])
    assert storage.parquet_file(uri).read().equals(table)


def test_uploads_in_parts_over_a_bad_network_leave_no_parts(
    proxy: FaultProxy, s3_folder: str, tmp_path: Path
) -> None:
    local = tmp_path / "big"
    local.write_bytes(os.urandom(66 << 20))
    uri = storage.join(s3_folder, "big")
    from_now(proxy, script("pass", "503", "reset", "lost", "500"))
    storage.upload_file(local, uri)
    storage.download_file(uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == local.read_bytes()
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 0


def test_an_upload_that_gives_up_aborts_its_parts(
    proxy: FaultProxy, s3_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 1.0)
    local = tmp_path / "big"
    local.write_bytes(os.urandom(66 << 20))
    uri = storage.join(s3_folder, "big")
    proxy.plan = lambda _n, method, path: "503" if method == "PUT" and "partNumber=2" in path else "pass"
    with pytest.raises(StorageError, match=r"upload: gave up after \d+ attempts"):
        storage.upload_file(local, uri)
    proxy.plan = script()
    assert not storage.exists(uri)
    assert storage.abort_uploads(s3_folder, older_than=4e9) == 0


def test_a_store_that_stays_down_is_named_after_the_budget(
    proxy: FaultProxy, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 1.0)
    proxy.plan = lambda *_: "503"
    uri = storage.join(s3_folder, "x")
    with pytest.raises(StorageError) as caught:
        storage.put_bytes(uri, b"x")
    assert str(caught.value).startswith(f"{uri}: write: gave up after ")
    assert "SlowDown" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_is_not_repeated(proxy: FaultProxy, s3_folder: str) -> None:
    from_now(proxy, lambda *_: "403")
    with pytest.raises(StorageError, match="access denied"):
        storage.put_bytes(storage.join(s3_folder, "x"), b"x")
    assert proxy.done["403"] == 1


def test_nobody_listens(s3_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.5)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"gave up.*127\.0\.0\.1:9"):
        storage.read_bytes(storage.join(s3_folder, "x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL_S3"):
        storage.read_bytes(storage.join(s3_folder, "x"))


def test_waits_are_drawn_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With jitter, two clients that fail together do not retry together. The bound doubles up to ten."""
    slept: list[list[float]] = [[], []]
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for client in slept:
        monkeypatch.setattr(time, "sleep", client.append)
        attempts = retries.Attempts("a read")
        for _ in range(12):
            attempts.failed(ConnectionError("down"))
    assert slept[0] != slept[1]
    bounds = [min(10.0, 0.2 * 2**n) for n in range(12)]
    assert all(0 <= wait <= bound for client in slept for wait, bound in zip(client, bounds, strict=True))
    clock[0] = 121.0
    with pytest.raises(StorageError, match="gave up after 13 attempts in 120 s: ConnectionError: down"):
        attempts.failed(ConnectionError("down"))


class Load:
    """Writers, and readers that check what they read, until stopped."""

    def __init__(self, folder: str, workers: int = 4) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self.rounds = 0
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(workers)]

    def _work(self, number: int) -> None:
        turn = 0
        try:
            while not self._stop.is_set():
                uri = storage.join(self._folder, f"w{number}", f"{turn:05d}")
                data = f"{number} {turn} ".encode() * 5000
                assert storage.put_if_absent(uri, data)
                assert storage.read_bytes(uri) == data
                turn += 1
                self.rounds += 1
        except BaseException as error:  # passed to the test's thread
            self.errors.append(error)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def until(self, rounds: int) -> None:
        """Returns after ``rounds`` more rounds."""
        goal = self.rounds + rounds
        wait_until(lambda: self.rounds >= goal or self.errors, what=f"{goal} rounds")

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def check_all(folder: str, rounds: int) -> None:
    """Checks that every acknowledged object is complete."""
    listed = storage.list_files(folder)
    assert len(listed) >= rounds
    for info in listed[::7]:
        number, turn = info.uri.rsplit("/", 2)[1:]
        assert storage.read_bytes(info.uri) == f"{number[1:]} {int(turn)} ".encode() * 5000


def test_a_frozen_server_under_load(
    s3_server: S3Server, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_SECONDS", 1.0)
    with Load(s3_folder) as load:
        load.until(20)
        for seconds in (0.5, 2.5):
            s3_server.freeze()
            time.sleep(seconds)
            s3_server.thaw()
            load.until(20)
    assert load.errors == []
    assert load.rounds >= 60
    check_all(s3_folder, load.rounds)


def test_a_server_killed_and_restarted_under_load(s3_server: S3Server, s3_folder: str) -> None:
    with Load(s3_folder) as load:
        for _ in range(2):
            load.until(20)
            s3_server.restart()
            load.until(20)
    assert load.errors == []
    assert load.rounds >= 80
    check_all(s3_folder, load.rounds)
