"""What a run writes down."""

import itertools
import json
import subprocess
import sys

import pytest
import torch

from cluster import storage
from tests.fault_proxy import script
from tests.trainer.runs import History
from tests.trainer.states import scratch_folders
from trainer import metrics
from trainer.history import read_history
from trainer.metrics import RunLog, figures
from trainer.objectives import STATISTICS


def sums(**values):
    return [float(values.get(name, 0)) for name in STATISTICS]


def test_figures_are_divided_by_their_own_counts():
    german = {"token_loss": 8, "token_count": 4, "token_correct": 1, "sequences": 3, "pair_loss": 1}
    german |= {"pair_count": 2, "pair_correct": 2, "pair_second": 1, "pair_second_correct": 1}
    english = {"token_loss": 2, "token_count": 1, "token_correct": 1, "sequences": 2}
    english |= {"pair_loss": 2, "pair_count": 2}
    table = torch.tensor([sums(**german), sums(), sums(**english)])
    found = figures(table, ["de", "el", "en"])
    assert found["token_loss"] == 2.0
    assert found["token_accuracy"] == 0.4
    assert found["pair_loss"] == 0.75
    assert found["loss"] == 2.75
    assert found["pair_accuracy"] == 0.5
    assert found["pair_accuracy_second"] == 1.0
    assert found["pair_accuracy_first"] == pytest.approx(1 / 3)
    assert found["pair_share_second"] == 0.25
    assert set(found["languages"]) == {"de", "en"}
    assert found["languages"]["en"]["token_accuracy"] == 1.0


def test_nothing_to_predict_gives_no_figures_instead_of_nan():
    assert figures(torch.zeros(1, len(STATISTICS)), ["de"]) == {"loss": 0.0, "targets": 0, "languages": {}}


def test_each_rank_and_attempt_has_a_file(run):
    for attempt, rank in ((1, 0), (1, 1), (2, 0)):
        log = RunLog(run, attempt, rank, tensorboard=False)
        log.event("samples", step=0, rows=[attempt, rank])
        log.figures(1, {"loss": 0.5})
        log.close()
    names = [info.uri.removeprefix(run) for info in storage.list_files(storage.join(run, "metrics"))]
    assert names == [
        "/metrics/attempt-000001/rank-00000.jsonl",
        "/metrics/attempt-000001/rank-00001.jsonl",
        "/metrics/attempt-000002/rank-00000.jsonl",
    ]
    lines = storage.read_bytes(run + names[1]).decode().splitlines()
    assert [json.loads(line).get("rows", "figures") for line in lines] == [[1, 1], "figures"]


def test_remote_logs_leave_no_local_files(s3_folder, temporary):
    log = RunLog(s3_folder, 1, 0)
    log.figures(1, {"loss": 0.5, "languages": {"de": {"loss": 0.25}}})
    log.close()
    assert scratch_folders(temporary) == []
    kinds = {info.uri.removeprefix(s3_folder).split("/")[1] for info in storage.list_files(s3_folder)}
    assert kinds == {"metrics", "tensorboard"}


@pytest.mark.s3
def test_uploads_that_the_store_refuses_are_counted_and_made_up_for(proxy, s3_folder, monkeypatch):
    monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.0)
    log = RunLog(s3_folder, 1, 0, tensorboard=False)
    proxy.plan = lambda *_: "403"
    for step in itertools.count(1):
        log.figures(step, {"loss": 0.5})
        if log.failed_uploads == 2:
            break
    proxy.plan = script()
    log.close()
    (info,) = storage.list_files(storage.join(s3_folder, "metrics"))
    assert len(storage.read_bytes(info.uri).splitlines()) == step


def test_tensorboard_has_the_figures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(str(tmp_path), 1, 0)
    for step in (1, 2):
        log.figures(step, {"loss": step / 2, "note": "text", "languages": {"de": {"token_loss": 0.25}}})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["languages/de/token_loss", "loss"]
    assert [(point.step, point.value) for point in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]


def test_a_torn_line_at_the_end_is_no_record(tmp_path):
    log = RunLog(str(tmp_path), 1, 0, tensorboard=False)
    log.figures(1, {"loss": 0.5})
    log.close()
    with (tmp_path / "metrics" / "attempt-000001" / "rank-00000.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert History(tmp_path).losses() == {1: 0.5}


FULL_DISK = """
import resource, signal, sys
from trainer.metrics import RunLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = RunLog(sys.argv[1], 1, 0, tensorboard=len(sys.argv) > 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
for step in range(100):
    log.figures(step, {"loss": 1.5})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.figures(100, {"loss": 2.5})
log.close()
print(log.failed_writes)
"""


@pytest.mark.parametrize("more", [(), ("tensorboard",)])
def test_a_full_disk_costs_lines_of_the_log_and_nothing_else(tmp_path, more):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    assert done.stderr.count("lines of the log are being lost: No space left on device") == 1
    lines = (tmp_path / "metrics" / "attempt-000001" / "rank-00000.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [*range(len(steps) - 1), 100]


@pytest.mark.s3
def test_a_long_log_is_sent_in_pieces_and_once(s3_folder, temporary, monkeypatch):
    """A week's log is gigabytes, and an object cannot be added to."""
    sent = []
    upload = storage.upload_file

    def counted(local, uri):
        sent.append(local.stat().st_size)
        upload(local, uri)

    monkeypatch.setattr(storage, "upload_file", counted)
    monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "SEGMENT_BYTES", 4000)
    log = RunLog(s3_folder, 1, 0)
    kept = 0
    for step in range(1, 301):
        log.figures(step, {"loss": step / 4, "languages": {"de": {"token_loss": 0.25}}})
        kept = max(kept, sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file()))
    log.close()
    files = storage.list_files(s3_folder)
    whole = sum(info.size for info in files)
    names = [info.uri.rpartition("/")[2] for info in files if "/metrics/" in info.uri]
    assert "rank-00000.jsonl" in names
    assert "rank-00000-0003.jsonl" in names
    assert max(info.size for info in files) < 6000
    assert len([info for info in files if "/tensorboard/" in info.uri]) > 3
    # Every piece is sent again while it grows, and never afterwards.
    assert sum(sent) < 30 * whole
    assert max(sent) < 6000
    assert kept < whole
    assert [record["step"] for record in read_history(s3_folder).figures] == list(range(1, 301))


def test_figures_by_language_stand_in_one_file(tmp_path):
    for rank in (0, 1):
        log = RunLog(str(tmp_path), 1, rank, tensorboard=False)
        log.figures(1, {"loss": 0.5, "languages": {"de": {"token_loss": 0.25}}})
        log.close()
    written = History(tmp_path)
    assert written.figures(0)[1]["languages"] == {"de": {"token_loss": 0.25}}
    assert "languages" not in written.figures(1)[1]
    assert written.figures(1)[1]["loss"] == 0.5
