"""The log of a run: its files, its uploads, and its losses on a full disk."""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from cluster import storage
from tests.support.fault_proxy import FaultProxy, script
from tests.support.waiting import HANG_SECONDS
from tests.trainer.records import figures, step_record
from tests.trainer.runs import History
from tests.trainer.states import scratch_folders
from trainer.monitoring import run_log
from trainer.monitoring.history import read_history
from trainer.monitoring.records import Samples
from trainer.monitoring.run_log import RunLog


def test_each_rank_and_attempt_has_a_file(run: str) -> None:
    for attempt, rank in ((1, 0), (1, 1), (2, 0)):
        log = RunLog(run, attempt, rank, tensorboard=False)
        log.write(Samples(step=0, epoch=0, row_ids=[attempt, rank]))
        log.write(step_record(1))
        log.close()
    names = [info.uri.removeprefix(run) for info in storage.list_files(storage.join(run, "metrics"))]
    assert names == [
        "/metrics/attempt-000001/rank-00000.jsonl",
        "/metrics/attempt-000001/rank-00001.jsonl",
        "/metrics/attempt-000002/rank-00000.jsonl",
    ]
    lines = storage.read_bytes(run + names[1]).decode().splitlines()
    assert [json.loads(line).get("row_ids", "figures") for line in lines] == [[1, 1], "figures"]


def test_remote_logs_leave_no_local_files(s3_folder: str, temporary: Path) -> None:
    log = RunLog(s3_folder, 1, 0)
    log.write(step_record(1, languages={"de": figures()}))
    log.close()
    assert scratch_folders(temporary) == []
    kinds = {info.uri.removeprefix(s3_folder).split("/")[1] for info in storage.list_files(s3_folder)}
    assert kinds == {"metrics", "tensorboard"}


@pytest.mark.s3
def test_uploads_that_the_store_refuses_are_counted_and_made_up_for(
    proxy: FaultProxy, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "UPLOAD_SECONDS", 0.0)
    log = RunLog(s3_folder, 1, 0, tensorboard=False)
    proxy.plan = lambda *_: "403"
    for step in itertools.count(1):
        log.write(step_record(step))
        if log.failed_uploads == 2:
            break
    proxy.plan = script()
    log.close()
    # The number of lines between two refusals, and therefore of files, depends on the machine.
    written = storage.list_files(storage.join(s3_folder, "metrics"))
    assert sum(len(storage.read_bytes(info.uri).splitlines()) for info in written) == step


def test_tensorboard_has_the_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(str(tmp_path), 1, 0)
    for step in (1, 2):
        log.write(step_record(step, loss=step / 2, languages={"de": figures(mlm_loss=0.25)}))
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"languages/de/mlm_loss", "loss", "lr", "grad_norm"} <= set(events.Tags()["scalars"])
    assert [(point.step, point.value) for point in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]


def test_tensorboard_keeps_the_step_of_the_checkpoint_and_drops_what_came_after(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed = RunLog(str(tmp_path), 1, 0)
    for step in (1, 2, 3, 4):
        killed.write(step_record(step, loss=1.0))
    killed.close()
    resumed = RunLog(str(tmp_path), 2, 0, first_step=2)
    resumed.write(step_record(3, loss=3.0))
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("loss")] == [(1, 1.0), (2, 1.0), (3, 3.0)]


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path), 1, 0, tensorboard=False)
    log.write(step_record(1))
    log.close()
    with (tmp_path / "metrics" / "attempt-000001" / "rank-00000.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert History(tmp_path).losses() == {1: 0.5}


FULL_DISK = """
import resource, signal, sys
from tests.trainer.records import step_record
from trainer.monitoring.run_log import RunLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = RunLog(sys.argv[1], 1, 0, tensorboard=len(sys.argv) > 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
for step in range(100):
    log.write(step_record(step))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write(step_record(100))
log.close()
print(log.failed_writes)
"""


@pytest.mark.parametrize("more", [(), ("tensorboard",)])
def test_a_full_disk_costs_lines_of_the_log_and_nothing_else(tmp_path: Path, more: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    assert done.stderr.count("log lines are being lost: ") == 1
    lines = (tmp_path / "metrics" / "attempt-000001" / "rank-00000.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [*range(len(steps) - 1), 100]


class AtOnce(Executor):
    """Runs a submitted call before ``submit`` returns, like an uploader as fast as the writer."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **kwargs))
        return future


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(name, bytes) of every upload. Log files are short, and an upload is due after every record."""
    uploads: list[tuple[str, int]] = []
    upload = storage.upload_file

    def counted(local: Path, uri: str) -> None:
        uploads.append((local.name, local.stat().st_size))
        upload(local, uri)

    monkeypatch.setattr(storage, "upload_file", counted)
    monkeypatch.setattr(run_log, "UPLOAD_SECONDS", -1.0)
    monkeypatch.setattr(run_log, "SEGMENT_BYTES", 4000)
    return uploads


@pytest.mark.s3
def test_a_long_log_is_sent_in_pieces(
    s3_folder: str, temporary: Path, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, int]]
) -> None:
    """The log of a week has gigabytes, and objects cannot be appended to."""
    monkeypatch.setattr(run_log, "ThreadPoolExecutor", lambda *_, **__: AtOnce())
    log = RunLog(s3_folder, 1, 0)
    for step in range(1, 41):
        log.write(step_record(step, languages={"de": figures()}))
        kept = [path.stat().st_size for path in temporary.rglob("*") if path.is_file()]
        # One file of lines and one of TensorBoard, or their next pieces.
        assert sum(kept) < 2 * 6000
    log.close()
    files = storage.list_files(s3_folder)
    names = [info.uri.rpartition("/")[2] for info in files]
    assert "rank-00000.jsonl" in names
    assert "rank-00000-0003.jsonl" in names
    assert len([info for info in files if "/tensorboard/" in info.uri]) > 3
    # Every piece is sent repeatedly while it grows, and never afterwards.
    assert max(size for _, size in sent) < 6000
    assert len(set(sent)) == len(sent)
    assert [record.step for record in read_history(s3_folder).steps] == list(range(1, 41))


@pytest.mark.s3
def test_a_log_that_grows_faster_than_it_is_sent_is_whole(
    s3_folder: str, temporary: Path, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, int]]
) -> None:
    written = threading.Event()
    send = RunLog._send

    def late(log: RunLog) -> None:
        written.wait(HANG_SECONDS)
        send(log)

    monkeypatch.setattr(RunLog, "_send", late)
    log = RunLog(s3_folder, 1, 0, tensorboard=False)
    for step in range(1, 41):
        log.write(step_record(step))
    written.set()
    log.close()
    assert len({name for name, _ in sent}) == len(sent) > 3
    assert [record.step for record in read_history(s3_folder).steps] == list(range(1, 41))


def test_figures_by_language_stand_in_one_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        log = RunLog(str(tmp_path), 1, rank, tensorboard=False)
        log.write(step_record(1, languages={"de": figures(mlm_loss=0.25)}))
        log.close()
    written = History(tmp_path)
    assert written.figures(0)[1]["languages"]["de"]["mlm_loss"] == 0.25
    assert "languages" not in written.figures(1)[1]
    assert written.figures(1)[1]["loss"] == 0.5
