"""Saves while the disk is full, the store is slow, broken, frozen or killed, or the process is killed."""

import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cluster import storage
from cluster.storage import retries, s3
from schemas.errors import CheckpointError
from tests.support.fault_proxy import FaultProxy, script
from tests.support.s3_server import S3Server
from tests.trainer.runs import run_ranks
from tests.trainer.states import TinyTraining, assert_equal, saved_steps, scratch_folders
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.listing import verify_run
from trainer.checkpoint.manifest import MODEL
from trainer.checkpoint.reading import latest_verified
from trainer.checkpoint.store import CheckpointStore


def assert_latest_is(run: str, training: TinyTraining) -> None:
    found = latest_verified(run)
    assert found is not None
    assert found.step == training.step_number
    assert_equal(found.load(), training.state())


@pytest.mark.s3
def test_saves_over_a_bad_network(proxy: FaultProxy, s3_folder: str, temporary: Path) -> None:
    generator = random.Random(1)
    store = CheckpointStore(s3_folder, keep=2)
    store.acquire_lease()
    actions = ["pass"] * 6 + ["reset", "lost", "cut", "500"]
    proxy.plan = lambda *_: generator.choice(actions)
    training = TinyTraining()
    for _ in range(6):
        training.step()
        store.save_async(training.step_number, training.state())
    store.close()
    assert store.consecutive_failures == 0
    assert_latest_is(s3_folder, training)
    proxy.plan = script()
    assert saved_steps(s3_folder) == [6, 5]
    assert verify_run(s3_folder) == []
    assert scratch_folders(temporary) == []
    assert proxy.done["lost"] > 3


@pytest.mark.s3
def test_slow_storage_holds_at_most_one_save(proxy: FaultProxy, s3_folder: str, temporary: Path) -> None:
    """trainer-043: a save at every step on slow storage."""
    store = CheckpointStore(s3_folder)
    store.acquire_lease()
    proxy.plan = lambda _n, method, path: "delay 0.15" if method == "PUT" and MODEL in path else "pass"
    training = TinyTraining()
    most = 0
    for _ in range(5):
        training.step()
        store.save_async(training.step_number, training.state())
        most = max(most, len(scratch_folders(temporary)))
    assert store.last_result is not None
    assert store.last_result.step == 4  # the save has waited for the one before
    assert store.last_result.stall > 0
    store.close()
    assert most <= 1
    assert saved_steps(s3_folder) == [5, 4, 3]
    assert scratch_folders(temporary) == []


@pytest.mark.s3
def test_deletion_comes_after_the_commit(proxy: FaultProxy, s3_folder: str) -> None:
    """trainer-039: keep 1. The order of requests is upload, read back, manifest, deletion."""
    store = CheckpointStore(s3_folder, keep=1)
    store.acquire_lease()
    training = TinyTraining()
    store.save_async(1, training.state())
    store.wait()
    first = len(proxy.requests)
    store.save_async(2, training.state())
    store.close()
    requests = [(method, path) for method, path in proxy.requests[first:] if ".beat" not in path]
    manifest = next(n for n, (method, path) in enumerate(requests) if method == "PUT" and "MANIFEST" in path)
    before, after = requests[:manifest], requests[manifest + 1 :]
    assert all(method in ("PUT", "GET", "HEAD") for method, _ in before)
    assert any(method == "GET" and MODEL in path for method, path in before)
    assert not any(method == "PUT" for method, _ in after)
    assert any(method == "DELETE" and "step-00000001" in path for method, path in after)
    assert saved_steps(s3_folder) == [2]


@pytest.mark.s3
def test_what_was_stored_wrongly_is_not_committed(
    s3_folder: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read-back finds a file that was stored with other bytes."""
    store = CheckpointStore(s3_folder, max_failed=2)
    store.acquire_lease()
    training = TinyTraining()
    store.save_async(1, training.state())
    store.wait()
    upload = storage.upload_file

    def upload_cut(local: Path, uri: str) -> None:
        if uri.endswith(MODEL):
            data = local.read_bytes()
            storage.put_bytes(uri, data[:-1] + bytes([data[-1] ^ 1]))
        else:
            upload(local, uri)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "upload_file", upload_cut)
        store.save_async(2, training.state())
        with pytest.raises(CheckpointError, match=r"model\.safetensors: its sha256 differs"):
            store.wait()
    assert saved_steps(s3_folder) == [1]
    store.save_async(3, training.state())
    store.close()
    assert saved_steps(s3_folder) == [3, 1]
    assert len(list_folders(s3_folder)) == 2


@pytest.mark.s3
@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_the_store_fails_during_a_save(
    s3_server: S3Server, s3_folder: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(s3, "READ_SECONDS", 1.0)
    store = CheckpointStore(s3_folder)
    store.acquire_lease()
    training = TinyTraining(width=1500)
    training.step()
    store.save_async(1, training.state())
    store.wait()
    training.step()
    store.save_async(2, training.state())
    time.sleep(0.05)
    if fault == "freeze":
        s3_server.freeze()
        time.sleep(2.5)
        s3_server.thaw()
    else:
        s3_server.restart()
    store.close()
    assert store.consecutive_failures == 0
    assert_latest_is(s3_folder, training)


@pytest.mark.s3
def test_a_store_that_is_down_says_nothing_about_checkpoints(
    proxy: FaultProxy, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage while resuming must stop the run, which must not fall back to an older checkpoint."""
    store = CheckpointStore(s3_folder)
    store.acquire_lease()
    training = TinyTraining()
    for step in (1, 2):
        store.save_async(step, training.state())
    store.close()
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.5)
    proxy.plan = lambda _n, _method, path: "500" if MODEL in path else "pass"
    with pytest.raises(Exception, match="gave up") as caught:
        latest_verified(s3_folder)
    assert type(caught.value).__name__ == "StorageError"


def one_life(run: str, out: int) -> None:
    """Trains and saves until the process is killed. Reports the first step, and each commit."""
    training = TinyTraining(width=400)
    store = CheckpointStore(run, keep=2)
    store.acquire_lease()
    found = store.latest_verified()
    if found is not None:
        training.restore(found.load())
    os.write(out, b"resumed %d\n" % training.step_number)
    while True:
        training.step()
        store.save_async(training.step_number, training.state())
        if store.last_committed is not None:
            os.write(out, b"committed %d\n" % store.last_committed.step)


def many_lives(_rank: int, run: str, kills: int, environment: dict[str, str], output: Path) -> None:
    """The body of a forked process: writes the reports of ``kills`` lives to ``output``."""
    use(environment)
    TinyTraining().step()
    generator = random.Random(5)
    with output.open("w") as reports:
        for _ in range(kills):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                one_life(run, writer)
            os.close(writer)
            with os.fdopen(reader) as lines:
                for _ in range(generator.randrange(1, 5)):
                    reports.write(lines.readline())
                time.sleep(generator.uniform(0, 0.1))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                reports.write(lines.read())


def use(environment: dict[str, str]) -> None:
    """Gives the environment of the test to a process that was forked from an older one."""
    os.environ.update(environment)
    tempfile.tempdir = environment["TMPDIR"]
    torch.set_num_threads(1)


@pytest.mark.slow
def test_killed_at_any_moment_nothing_committed_is_lost(run: str, temporary: Path, tmp_path: Path) -> None:
    """trainer-037, 042: SIGKILL at random moments of saving. Each attempt resumes from the last commit."""
    kills = 25
    output = tmp_path / "reports"
    # Forked, because importing torch and dynamo takes ten times as long as a life.
    run_ranks(many_lives, run, kills, {**os.environ, "TMPDIR": str(temporary)}, output, ranks=1)
    lives = output.read_text().splitlines()
    committed, resumes = 0, []
    for line in lives:
        kind, step = line.split()
        if kind == "resumed":
            resumes.append(int(step))
            assert int(step) >= committed
        committed = max(committed, int(step))
    assert len(resumes) == kills
    assert len(set(resumes)) >= kills // 3  # the kills fell between commits, not before the first
    found = latest_verified(run)
    assert found is not None
    assert found.step >= committed > 0
    training = TinyTraining(width=400)
    training.step(found.step)
    assert_equal(found.load(), training.state())
    store = CheckpointStore(run, keep=2)
    store.acquire_lease()
    training.step()
    store.save_async(training.step_number, training.state())
    store.close()
    assert len(list_folders(run)) == 2
    assert scratch_folders(temporary) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB, which needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_the_earlier_checkpoint(small_disk: Path, temporary: Path) -> None:
    """trainer-046: room for two checkpoints of 9 MB, not for three. Later there is room again."""
    run = str(small_disk / "run")
    training = TinyTraining(width=850)
    store = CheckpointStore(run, keep=2, max_failed=3)
    store.acquire_lease()
    for _ in range(2):
        training.step()
        store.save_async(training.step_number, training.state())
    store.wait()
    training.step()
    store.save_async(training.step_number, training.state())
    with pytest.raises(CheckpointError, match=r"step-00000003.*not saved"):
        store.wait()
    assert saved_steps(run) == [2, 1]
    assert verify_run(run) == []
    assert len(list_folders(run)) == 2  # the unfinished files were deleted
    training.step()
    store.save_async(4, training.state())
    training.step()
    store.save_async(5, training.state())
    with pytest.raises(CheckpointError, match="3 saves in a row failed"):
        store.save_async(6, training.state())
    storage.delete_prefix(list_folders(run)[1].uri)
    store.save_async(7, training.state())
    store.close()
    assert saved_steps(run) == [7, 2]


@pytest.mark.parametrize(("keep_every", "left"), [(None, [6, 5, 4, 3]), (2, [6, 5, 4, 2])])
def test_a_full_disk_frees_the_oldest(
    small_disk: Path, temporary: Path, keep_every: int | None, left: list[int]
) -> None:
    """Room for four checkpoints of 4.3 MB. Those of keep_every are not deleted."""
    run = str(small_disk / "run")
    training = TinyTraining(width=600)
    store = CheckpointStore(run, keep=9, keep_every=keep_every)
    store.acquire_lease()
    for _ in range(6):
        training.step()
        store.save_async(training.step_number, training.state())
        store.wait()
    store.close()
    assert saved_steps(run) == left
    assert verify_run(run) == []


def test_a_full_disk_keeps_two_verified_checkpoints(small_disk: Path, temporary: Path) -> None:
    """Two of four are damaged, so none can be deleted."""
    run = str(small_disk / "run")
    training = TinyTraining(width=600)
    store = CheckpointStore(run, keep=9)
    store.acquire_lease()
    training.step()
    for step in range(1, 5):
        store.save_async(step, training.state())
        store.wait()
    for folder in list_folders(run)[:2]:
        with (Path(folder.uri) / MODEL).open("r+b") as file:
            file.write(b"damaged")
    store.save_async(5, training.state())
    with pytest.raises(CheckpointError, match="no room for a checkpoint"):
        store.wait()
    assert [folder.step for folder in list_folders(run) if folder.committed] == [4, 3, 2, 1]


@pytest.mark.s3
@pytest.mark.parametrize("status", ["507", "403 QuotaExceeded"])
def test_a_full_bucket_frees_the_oldest(
    proxy: FaultProxy, s3_folder: str, temporary: Path, status: str
) -> None:
    """The store refuses uploads of the model until the first of three checkpoints is deleted."""
    store = CheckpointStore(s3_folder, keep=9)
    store.acquire_lease()
    training = TinyTraining()
    for step in (1, 2, 3):
        store.save_async(step, training.state())
        store.wait()

    def plan(_number: int, method: str, path: str) -> str:
        freed = any(m == "DELETE" and "step-00000001" in p for m, p in proxy.requests)
        return status if method == "PUT" and MODEL in path and not freed else "pass"

    proxy.plan = plan
    store.save_async(4, training.state())
    store.close()
    assert saved_steps(s3_folder) == [4, 3, 2]
    assert verify_run(s3_folder) == []


def save_to_full_storage(_rank: int, run: str, environment: dict[str, str], output: Path) -> None:
    """The body of a forked process, in which a file larger than 100 kB cannot be written to a disk."""
    use(environment)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = CheckpointStore(run)
    store.acquire_lease()
    small, large = TinyTraining(), TinyTraining(width=700)
    store.save_async(1, small.state())
    store.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    store.save_async(2, large.state())
    try:
        store.wait()
    except CheckpointError as error:
        output.write_text(str(error))
    store.save_async(3, small.state())
    store.close()


def test_a_full_file_counts_as_a_failed_save(run: str, temporary: Path, tmp_path: Path) -> None:
    """trainer-046 without the right to mount: writes beyond 100 kB fail as on a full disk."""
    output = tmp_path / "error"
    run_ranks(save_to_full_storage, run, {**os.environ, "TMPDIR": str(temporary)}, output, ranks=1)
    error = output.read_text()
    assert "step-00000002" in error
    assert "not saved" in error
    assert saved_steps(run) == [3, 1]
    assert len(list_folders(run)) == 2
    assert scratch_folders(temporary) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
