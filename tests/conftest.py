"""Fixtures shared by all tests: one local Ray and one real S3 server for the session."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from cluster import retries
from tests.fault_proxy import FaultProxy, script
from tests.gs_server import GsServer
from tests.ray_cluster import RayCluster, local_ray
from tests.s3_server import BUCKET, S3Server

# No test of ours is timed: a busy machine must not fail one.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--write-golden`` writes tests/trainer/golden_losses.json anew."""
    parser.addoption("--write-golden", action="store_true", help="keep these losses as the right ones")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For ``make test``, which runs two tests at a time: what must stay together, and the long ones first.

    Tests of one file share their fixtures, and all files that need the session's Ray share that: each is the
    work of one process.
    """
    if not hasattr(config, "workerinput"):
        return
    with_ray = {item.path for item in items if "ray_session" in getattr(item, "fixturenames", ())}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        group = "ray" if item.path in with_ray else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (item.path not in slow | with_ray, item.path not in with_ray))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RayCluster]:
    """A local Ray of four logical CPUs; the driver process is connected to it."""
    with local_ray() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One real S3 server for the whole run; tests that break it must leave it running."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_server(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The real S3 server, with the four AWS variables of this process pointing to it."""
    for name, value in s3_process.environment.items():
        monkeypatch.setenv(name, value)
    return s3_process


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The S3 server behind a proxy that passes everything until a test gives it another plan."""
    with FaultProxy(s3_server.port, script()) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        monkeypatch.setattr(retries, "FIRST_DELAY_SECONDS", 0.05)
        yield proxy


@pytest.fixture
def s3_folder(s3_server: S3Server, request: pytest.FixtureRequest) -> str:
    """An s3:// folder of this test's own."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.nodeid)
    return f"s3://{BUCKET}/{name[-120:]}"


@pytest.fixture(scope="session")
def gs_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Google Cloud Storage emulator for the whole run; its address."""
    server = GsServer(tmp_path_factory.mktemp("gs"))
    server.wait_ready()
    yield server.endpoint
    server.stop()


@pytest.fixture
def gs_folder(gs_process: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A gs:// folder of this test's own."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_process)
    name = "".join(character if character.isalnum() else "-" for character in request.node.nodeid)
    return f"gs://{BUCKET}/{name[-120:]}"
