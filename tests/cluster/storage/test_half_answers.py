"""Tests successful responses with wrong content, from a broken store or from a gateway before it."""

import http.server
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import botocore.endpoint
import pytest

from cluster import storage
from cluster.storage import retries, s3
from schemas.errors import StorageError
from tests.support.virtual_time import VirtualTime

Answer = tuple[int, dict[str, str], bytes]

PAGE = (
    "<ListBucketResult><Name>b</Name>{}<Contents><Key>x/a</Key><Size>3</Size><ETag>1</ETag>"
    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
)
WHOLE = "<IsTruncated>false</IsTruncated>"
DATA = bytes(range(100))


class Scripted:
    """A web server with scripted responses, one for each request. The last one repeats."""

    def __init__(self) -> None:
        self.answers: list[Answer | Callable[[str | None], Answer]] = []
        self.requests: list[tuple[str, str | None]] = []
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Discards the log."""

            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                number = min(len(script.requests), len(script.answers) - 1)
                asked = self.headers.get("Range")
                script.requests.append((self.command, asked))
                chosen = script.answers[number]
                status, headers, body = chosen(asked) if callable(chosen) else chosen
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    scripted = Scripted()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": scripted.endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    for module in (retries, botocore.endpoint):
        monkeypatch.setattr(module, "time", VirtualTime())
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 10.0)
    yield scripted
    scripted.close()


def xml(text: str) -> Answer:
    return 200, {"Content-Type": "application/xml"}, text.encode()


def version(asked: str | None) -> Answer:
    """Responds to HEAD, and to GET like a server without support for ranges."""
    del asked
    return 200, {"ETag": '"v"', "Last-Modified": "Sat, 28 Nov 2026 10:00:00 GMT"}, DATA


def part(first: int, body: bytes) -> Answer:
    headers = {"ETag": '"v"', "Content-Range": f"bytes {first}-{first + len(body) - 1}/100"}
    return 206, headers, body


NO_LISTS = {
    "a page of a proxy": xml("<html><body>please log in</body></html>"),
    "nothing": xml(""),
    "half a page": xml(PAGE.format(WHOLE)[:60]),
    "text": (200, {}, b"ok"),
    "a list that goes on nowhere": xml(PAGE.format("<IsTruncated>true</IsTruncated>")),
}


@pytest.mark.parametrize("answer", NO_LISTS.values(), ids=NO_LISTS.keys())
def test_an_invalid_list_is_not_an_empty_one(store: Scripted, answer: Answer) -> None:
    """An empty list would mean that a run has no checkpoints."""
    store.answers = [answer]
    with pytest.raises(StorageError, match="s3://b/x: list: gave up after"):
        storage.list_files("s3://b/x")
    with pytest.raises(StorageError, match="s3://b/x: list"):
        storage.delete_prefix("s3://b/x")
    # Once the store has recovered, the same call succeeds.
    store.requests.clear()
    store.answers = [answer, xml(PAGE.format(WHOLE))]
    assert [info.uri for info in storage.list_files("s3://b/x")] == ["s3://b/x/a"]


def test_a_list_that_goes_round_ends(store: Scripted) -> None:
    again = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    store.answers = [xml(PAGE.format(again))]
    with pytest.raises(StorageError, match="the listing is truncated but has no continuation token"):
        storage.list_files("s3://b/x")


def test_a_store_that_ignores_the_prefix_loses_nothing(store: Scripted) -> None:
    other = PAGE.format(WHOLE).replace("x/a", "precious/a")
    store.answers = [xml(other)]
    assert storage.list_files("s3://b/x") == []
    storage.delete_prefix("s3://b/x")
    assert {method for method, _ in store.requests} == {"GET"}


WRONG_RANGES = {
    "the whole file": version(None),
    "another place": part(50, DATA[50:60]),
    "too little": part(10, DATA[10:15]),
    "too much": part(10, DATA[10:60]),
}


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("answer", WRONG_RANGES.values(), ids=WRONG_RANGES.keys())
def test_another_range_than_asked_for_is_not_taken(store: Scripted, scheme: str, answer: Answer) -> None:
    uri = "s3://b/x" if scheme == "s3" else f"{store.endpoint}/x"
    store.answers = [answer]
    if scheme == "http" and answer == WRONG_RANGES["too much"]:
        # The rest of the body stays unread.
        assert storage.read_range(uri, 10, 10) == DATA[10:20]
        return
    with pytest.raises(StorageError, match=r"but the response|does not support range requests"):
        storage.read_range(uri, 10, 10)
    if scheme == "s3":
        store.requests.clear()
        store.answers = [answer, part(10, DATA[10:20])]
        assert storage.read_range(uri, 10, 10) == DATA[10:20]


def test_a_short_file_may_come_whole(store: Scripted) -> None:
    store.answers = [version]
    assert storage.read_range("s3://b/x", 0, 40) == DATA[:40]
    assert storage.read_range("s3://b/x", 0, 4000) == DATA
    store.answers = [part(90, DATA[90:])]
    assert storage.read_range("s3://b/x", 90, 4000) == DATA[90:]


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_broken_stream_resumes_at_its_position_or_fails(store: Scripted, scheme: str) -> None:
    """A server that ignores the range would start from the beginning and repeat bytes inside a dump."""
    uri = "s3://b/x" if scheme == "s3" else f"{store.endpoint}/x"

    def broken(asked: str | None) -> Answer:
        return 200, {"ETag": '"v"', "Content-Length": "100"}, DATA if asked else DATA[:40]

    store.answers = [version, broken] if scheme == "s3" else [broken]
    with storage.open_stream(uri) as stream, pytest.raises(StorageError, match="40"):
        stream.read()
    store.requests.clear()
    store.answers = [*store.answers, part(40, DATA[40:])]
    with storage.open_stream(uri) as stream:
        assert stream.read() == DATA


@pytest.fixture
def small_stack() -> Iterator[None]:
    """A stack that overflows after a few dozen redirects."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 400)
    yield
    sys.setrecursionlimit(before)


def test_a_redirect_loop(store: Scripted, small_stack: None) -> None:
    store.answers = [(307, {"Location": f"{store.endpoint}/y"}, b"")]

    def read(deeper: int) -> None:
        if deeper:
            read(deeper - 1)
        else:
            storage.read_bytes("s3://b/x")

    # The depth of the stack decides where it overflows, and therefore which error the HTTP client raises.
    for depth in range(24):
        with pytest.raises(StorageError, match="s3://b/x: read: redirect loop"):
            read(depth)
    with pytest.raises(StorageError, match="redirect"):
        storage.put_if_absent("s3://b/x", b"1")
    with pytest.raises(StorageError, match="redirect"):
        storage.read_bytes(f"{store.endpoint}/x")


def test_a_store_without_etags(store: Scripted) -> None:
    store.answers = [(200, {}, DATA)]
    for open_file in (storage.open_read, storage.open_stream):
        with pytest.raises(StorageError, match="the store sends no ETag"):
            open_file("s3://b/x")


def test_a_download_that_breaks_again_and_again(store: Scripted, tmp_path: Path) -> None:
    """A download in parts first makes its own five attempts. After that the long retry budget applies."""
    broken = (200, {"ETag": '"v"', "Content-Length": "100"}, DATA[:40])
    store.answers = [version, *[broken] * 5, version, (200, {"ETag": '"v"'}, DATA)]
    storage.download_file("s3://b/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    store.requests.clear()
    store.answers = [version, broken]
    with pytest.raises(StorageError, match="s3://b/x: download: gave up after"):
        storage.download_file("s3://b/x", tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_a_finished_upload_is_not_aborted(store: Scripted) -> None:
    listed = (
        "<ListMultipartUploadsResult><Bucket>b</Bucket><IsTruncated>true</IsTruncated><Upload><Key>x/a</Key>"
        "<UploadId>u</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
        "</ListMultipartUploadsResult>"
    )
    gone = "<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>"
    store.answers = [xml(listed), (404, {"Content-Type": "application/xml"}, gone.encode())]
    assert s3.abort_uploads("s3://b/x", 4e9) == 0
