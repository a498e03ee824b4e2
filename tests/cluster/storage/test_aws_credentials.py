"""Tests the credentials of machines and pods. Queries a busy service again, but not one that refuses."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cluster import storage
from cluster.storage import retries
from schemas.errors import StorageError
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.s3

_ROLE = "/latest/meta-data/iam/security-credentials/"


class CredentialService:
    """Instance metadata and a container's credentials on one loopback port."""

    def __init__(self, credentials: dict[str, str]) -> None:
        self.credentials = credentials
        self.answers: list[int] = []
        """Statuses of the next requests. Later ones get 200."""
        self.requests = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests += 1
                status = service.answers.pop(0) if service.answers else 200
                body = b"token" if self.command == "PUT" else service.body(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                """Discards the log of requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def body(self, path: str) -> bytes:
        if path == _ROLE:
            return b"builder"
        names = {"AccessKeyId": "AWS_ACCESS_KEY_ID", "SecretAccessKey": "AWS_SECRET_ACCESS_KEY"}
        content = {field: self.credentials[name] for field, name in names.items()}
        return json.dumps({**content, "Token": "", "Expiration": "2099-01-01T00:00:00Z"}).encode()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CredentialService]:
    """A service with the credentials of the S3 server, which the environment lacks."""
    service = CredentialService(dict(s3_server.environment))
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_EC2_METADATA_DISABLED",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    # Part of the key of the client cache, so that the test uses no client of another test.
    monkeypatch.setenv("AWS_REGION", tmp_path_factory.mktemp("region").name)
    monkeypatch.setattr(retries, "FIRST_DELAY_SECONDS", 0.05)
    yield service
    service.stop()


@pytest.mark.parametrize("status", [503, 429])
def test_busy_instance_metadata_is_asked_again(
    service: CredentialService, s3_folder: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    service.answers = [status] * 8
    uri = storage.join(s3_folder, "x")
    storage.put_bytes(uri, b"content")
    assert storage.read_bytes(uri) == b"content"
    assert "write: attempt 1 failed, retrying in" in caplog.text


@pytest.mark.parametrize("operation", ["list", "abort", "delete"])
def test_every_request_can_be_the_first(service: CredentialService, s3_folder: str, operation: str) -> None:
    service.answers = [503] * 4
    if operation == "list":
        assert storage.list_files(s3_folder) == []
    elif operation == "abort":
        assert storage.abort_uploads(s3_folder, older_than=0.0) == 0
    else:
        storage.delete_prefix(s3_folder)
    assert service.requests > 4


def test_a_machine_without_a_role_fails_immediately(service: CredentialService, s3_folder: str) -> None:
    service.answers = [200, 404, 200, 404]
    with pytest.raises(StorageError, match="no S3 credentials; set AWS_ACCESS_KEY_ID"):
        storage.read_bytes(storage.join(s3_folder, "x"))
    assert service.answers == []


def test_missing_metadata_fails_immediately(
    service: CredentialService, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="no S3 credentials; set AWS_ACCESS_KEY_ID"):
        storage.read_bytes(storage.join(s3_folder, "x"))


def test_a_busy_pod_identity_agent_is_asked_again(
    service: CredentialService, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore itself makes three attempts. The second round comes from our retries."""
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/v1/credentials")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.01)
    service.answers = [503] * 4
    storage.put_bytes(storage.join(s3_folder, "x"), b"content")
    assert service.answers == []


def test_a_pod_without_an_identity_fails_immediately(
    service: CredentialService, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/v1/credentials")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0.01)
    service.answers = [404] * 3
    with pytest.raises(StorageError, match="non 200 response 404") as caught:
        storage.put_bytes(storage.join(s3_folder, "x"), b"content")
    assert "gave up" not in str(caught.value)
    assert service.answers == []
