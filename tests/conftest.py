"""Fixtures shared by all tests: one local Ray and one real S3 server for the session."""

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import wraps
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import pytest

from tests.selection import WITH_PROCESSES, marks_of

if TYPE_CHECKING:
    from tests.infra.job_metrics import SubmittedJobs
    from tests.support.fault_proxy import FaultProxy
    from tests.support.ray_cluster import RayCluster
    from tests.support.s3_server import S3Server

# The models of the tests are small, and several processes of pytest run beside each other: more threads would
# only wait for each other. torch reads the variable when it is imported. tests/numeric_matrix.py sets it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise each process that compiles starts others for it, which import torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Python's garbage collector would visit the objects of all tests and modules again and again, which takes
# 7 % of the time of `make check`. It is off while they are created, and later ignores them.
gc.disable()
_GC_THRESHOLD = 20_000

# Modules that few tests need are imported where they are needed: tests/trainer/kernels/test_gpu.py needs only
# torch with Triton, numpy, pydantic and pytest.


def pytest_configure(config: pytest.Config) -> None:
    """Lifts the time limit of hypothesis, because a busy machine must not fail a test."""
    if config.pluginmanager.has_plugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("untimed", deadline=None)
        settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--write-losses`` rewrites tests/trainer/monitoring/golden_losses.json."""
    parser.addoption("--write-losses", action="store_true", help="store these losses as the correct ones")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks every test by the things that it uses, and groups tests for the processes of ``make test``.

    Tests of one file share their fixtures. All files that need the session's Ray share it, and so do those
    that check the submitted jobs. One process runs each such group, and the long groups come first.
    """
    for item in items:
        for mark in sorted(marks_of(item)):
            item.add_marker(mark)
    if not hasattr(config, "workerinput"):
        return
    groups = {"ray_session": "ray", "submitted_jobs": "jobs"}
    group_of = {
        item.path: group
        for item in items
        for fixture, group in groups.items()
        if fixture in getattr(item, "fixturenames", ())
    }
    with_ray = {path for path, group in group_of.items() if group == "ray"}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of.get(item.path, str(item.path))))
    items.sort(key=lambda item: (item.path not in slow | with_ray, item.path not in with_ray))


def pytest_collection_finish() -> None:
    """Turns the garbage collector on again, for the objects that the tests create."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()


def pytest_unconfigure() -> None:
    """Lets the objects of extension modules be deleted, which would report them as leaks at the exit."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails when pytest-xdist ignores the groups, because each process would then make every fixture."""
    if getattr(item.config.option, "loadgroup", False) and "@" not in item.nodeid:
        pytest.fail(
            "pytest-xdist does not see the groups of the tests; install the versions of constraints.txt"
        )


@pytest.fixture(autouse=True)
def no_hidden_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that starts a process without the marks that keep it out of ``make check``."""
    # On a GPU, Triton starts a compiler.
    marked = any(request.node.get_closest_marker(mark) for mark in (*WITH_PROCESSES, "gpu"))
    ProcessGuard.forbidden = not marked
    yield
    ProcessGuard.forbidden = False


def guarded(start: Callable[..., Any]) -> Callable[..., Any]:
    """``start``, which raises while processes are forbidden.

    An audit hook would see the same calls, but Python also calls it for every ``id()``: with one, tests of
    torch.compile took up to a quarter longer.
    """

    @wraps(start)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if ProcessGuard.forbidden:
            raise AssertionError(f"{start.__qualname__}: tests/selection.py does not see that this starts it")
        return start(*arguments, **named)

    return wrapper


class ProcessGuard:
    """Whether the running test may start no process."""

    forbidden = False


for owner, name in (
    (subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn"), (os, "posix_spawnp"),
    (BaseProcess, "start"),
):  # fmt: skip
    setattr(owner, name, guarded(getattr(owner, name)))


@pytest.fixture(scope="session")
def ray_session() -> "Iterator[RayCluster]":
    """A local Ray of four logical CPUs. The driver process is connected to it."""
    from tests.support.ray_cluster import local_ray

    with local_ray() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def submitted_jobs(tmp_path_factory: pytest.TempPathFactory) -> "SubmittedJobs":
    """Both jobs, submitted to one Ray and finished."""
    from tests.infra.job_metrics import run

    return run(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    """One real S3 server for the whole run. Tests that break it must leave it running."""
    from tests.support.s3_server import S3Server

    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_server(s3_process: "S3Server", monkeypatch: pytest.MonkeyPatch) -> "S3Server":
    """The real S3 server, with the four AWS variables of this process pointing to it."""
    for name, value in s3_process.environment.items():
        monkeypatch.setenv(name, value)
    return s3_process


@pytest.fixture
def proxy(s3_server: "S3Server", monkeypatch: pytest.MonkeyPatch) -> "Iterator[FaultProxy]":
    """The S3 server behind a proxy that forwards everything until a test gives it another plan."""
    from cluster.storage import retries
    from tests.support.fault_proxy import FaultProxy, script

    with FaultProxy(s3_server.port, script()) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        monkeypatch.setattr(retries, "FIRST_DELAY_SECONDS", 0.05)
        yield proxy


@pytest.fixture
def s3_folder(s3_server: "S3Server", request: pytest.FixtureRequest) -> str:
    """An s3:// folder for this test alone."""
    from tests.support.s3_server import BUCKET

    name = "".join(character if character.isalnum() else "-" for character in request.node.nodeid)
    return f"s3://{BUCKET}/{name[-120:]}"


@pytest.fixture(scope="session")
def gs_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one Google Cloud Storage emulator for the whole run."""
    from tests.support.gs_server import GsServer

    server = GsServer(tmp_path_factory.mktemp("gs"))
    server.wait_ready()
    yield server.endpoint
    server.stop()


@pytest.fixture
def gs_folder(gs_process: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A gs:// folder for this test alone."""
    from tests.support.s3_server import BUCKET

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_process)
    name = "".join(character if character.isalnum() else "-" for character in request.node.nodeid)
    return f"gs://{BUCKET}/{name[-120:]}"


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small exported model with its tokenizer, to fine-tune."""
    import torch

    from tests.trainer.models import VOCAB, small_config
    from tests.trainer.tokenizers_for_tests import write_tokenizer
    from trainer.export.directory import ModelCard, export_model
    from trainer.model.pretraining import BertPretraining

    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    tokenizer = write_tokenizer(folder / "tokenizer", VOCAB)
    export_model(BertPretraining(small_config()), str(folder / "m"), str(tokenizer), ModelCard("m"))
    return str(folder / "m")
