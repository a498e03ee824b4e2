"""Real processes that are killed, stopped, hung or changed in number keep data and learning rates."""

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.runs import Group, History, phase, torchrun, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 rows in shards of unequal size, one of them empty."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 90, 0, 66), lengths=(32,))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, manifest: Path) -> History:
    """One epoch of 16 steps on 2 ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    Group(write_config(folder, one_epoch(folder, manifest)), ranks=2).finish()
    history = History(folder / "runs" / "run")
    assert sorted(row for rows in history.samples().values() for row in rows) == list(range(256))
    one, other = history.events("weights")
    assert one["sums"] == other["sums"]
    return history


def one_epoch(folder: Path, manifest: Path, **changes: Any) -> dict[str, Any]:
    return train_config(folder, manifest, phases=[phase(32, 16, 128, epochs=1)], **changes)


def same_run(one: History, other: History) -> None:
    assert one.samples() == other.samples()
    assert one.losses() == other.losses()
    assert {s: r["lr"] for s, r in one.figures().items()} == {s: r["lr"] for s, r in other.figures().items()}


@pytest.fixture
def config(tmp_path: Path, manifest: Path) -> Path:
    return write_config(tmp_path, one_epoch(tmp_path, manifest))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run"


def test_gradients_in_bf16_give_nearly_the_same_losses(
    tmp_path: Path, manifest: Path, run: Path, undisturbed: History
) -> None:
    Group(write_config(tmp_path, one_epoch(tmp_path, manifest, gradient_exchange="bf16")), ranks=2).finish()
    history = History(run)
    assert history.samples() == undisturbed.samples()
    one, other = history.events("weights")
    assert one["sums"] == other["sums"]
    assert one["sums"] != undisturbed.events("weights")[0]["sums"]
    losses, expected = history.losses(), undisturbed.losses()
    assert losses.keys() == expected.keys()
    assert list(losses.values()) == pytest.approx(list(expected.values()), rel=1e-3)


def test_killed_and_started_again_the_epoch_is_that_of_an_undisturbed_run(
    config: Path, run: Path, undisturbed: History
) -> None:  # trainer-001, pipeline-029
    Group(config, ranks=2, fault="kill:all:7").finish(-signal.SIGKILL, -signal.SIGKILL)
    assert "resumes after step 4" in Group(config, ranks=2).finish()
    history = History(run)
    same_run(history, undisturbed)
    # At most one checkpoint interval was repeated.
    assert list(history.steps_of_attempts().values()) == [list(range(7)), list(range(4, 16))]


def test_lengths_are_read_once_with_any_number_of_ranks(undisturbed: History) -> None:
    """17 row groups of 16 rows. Every other rank receives the lengths from rank 0."""
    reads = {event["rank"]: event["lengths"] for event in undisturbed.events("reads")}
    assert reads == {0: 18, 1: 0}


def test_damaged_lengths_end_all_ranks_with_the_name_of_the_shard(tmp_path: Path, run: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", shard_rows=(100, 90), lengths=(32,))
    shard = tmp_path / "corpus" / "train-32-0" / "shard-00001.parquet"
    raw = bytearray(shard.read_bytes())
    group = pq.ParquetFile(shard).metadata.row_group(2)
    column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "length")
    start = column.dictionary_page_offset or column.data_page_offset
    raw[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    shard.write_bytes(raw)
    output = Group(write_config(tmp_path, one_epoch(tmp_path, manifest)), ranks=2).finish(2, 2)
    assert output.count("shard-00001.parquet: row group") == 2
    assert "pretrain: rank 0: " in output


@pytest.mark.parametrize("moment", ["kill-forward", "kill", "kill-optimizer"])
def test_a_rank_that_dies_in_a_step_ends_the_others(
    config: Path, run: Path, undisturbed: History, moment: str
) -> None:  # trainer-020
    """``kill`` is in the backward pass."""
    output = Group(config, ranks=2, fault=f"{moment}:1:10").finish(1, -signal.SIGKILL)
    assert "Connection" in output
    Group(config, ranks=2).finish()
    same_run(History(run), undisturbed)


@pytest.mark.parametrize("kind", ["term", "term-twice"])
def test_sigterm_to_one_rank_stops_all_after_one_checkpoint(
    config: Path, run: Path, undisturbed: History, kind: Any
) -> None:  # trainer-019
    Group(config, ranks=2, fault=f"{kind}:1:5").finish(143, 143)
    history = History(run)
    assert [event["step"] for event in history.events("saving")] == [4, 7]
    assert [event["step"] for event in history.events("stopped")] == [7, 7]
    Group(config, ranks=2).finish()
    same_run(History(run), undisturbed)


def test_sigterm_during_a_save_lets_it_end_and_stops(config: Path, run: Path, undisturbed: History) -> None:
    Group(config, ranks=2, fault="term-save:0:8").finish(143, 143)
    history = History(run)
    # The save of step 8 is in flight. The step that receives the signal is finished, saved, and the last one.
    assert [event["step"] for event in history.events("saving")] == [4, 8, 9]
    assert [event["step"] for event in history.events("stopped")] == [9, 9]
    assert [folder.step for folder in list_folders(str(run)) if folder.committed] == [9, 8, 4]
    Group(config, ranks=2).finish()
    same_run(History(run), undisturbed)


def test_the_newer_of_two_trainers_of_one_run_continues(tmp_path: Path, manifest: Path, run: Path) -> None:
    """The older one is frozen and continues later. Its next save ends it without effect on the newer one."""
    saves = {"every_steps": 20, "every_seconds": None}
    phases = [phase(32, 16, 128, steps=300)]
    config = train_config(tmp_path, manifest, phases=phases, checkpoints=saves)
    config["run"]["lease_seconds"] = 3
    older = Group(write_config(tmp_path, config))
    wait_until(lambda: any(folder.committed for folder in list_folders(str(run))))
    os.kill(older.pid(0), signal.SIGSTOP)
    newer = Group(tmp_path / "train.yaml")
    wait_until(lambda: any(folder.committed and folder.attempt == 2 for folder in list_folders(str(run))))
    os.kill(older.pid(0), signal.SIGCONT)
    output = older.finish(2)
    assert "attempt 1 has been replaced by attempt 2" in output
    newer.finish()
    assert [(folder.attempt, folder.step) for folder in list_folders(str(run))] == [
        (2, 300),
        (2, 280),
        (2, 260),
    ]
    # The newer one made consecutive steps.
    made = History(run).steps_of_attempts()[2]
    assert made == list(range(made[0], 300))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_single_process_with_143_however_often_it_comes(
    tmp_path: Path, manifest: Path, run: Path, number: int
) -> None:
    config = train_config(tmp_path, manifest, phases=[phase(32, 16, 128, steps=100_000)])
    group = Group(write_config(tmp_path, config))
    wait_until(lambda: len(History(run).events("samples")) >= 3)
    for _ in range(3):
        os.kill(group.pid(0), number)
    assert "rerun the same command to resume" in group.finish(143)
    history = History(run)
    assert history.events("saving")[-1]["step"] == history.events("stopped")[0]["step"]


def test_nan_on_one_rank_is_skipped_by_all(config: Path, run: Path) -> None:  # trainer-022
    Group(config, ranks=2, fault="nan:1:6").finish()
    history = History(run)
    assert [(event["rank_of_file"], event["step"]) for event in history.events("skipped")] == [(0, 6), (1, 6)]
    assert (
        sorted(row for event in history.events("skipped") for row in event["row_ids"]) == history.samples()[6]
    )
    one, other = history.events("weights")
    assert one["sums"] == other["sums"]
    assert history.losses()[16] < history.losses()[1]


def test_ranks_whose_weights_drift_apart_are_found(
    tmp_path: Path, manifest: Path, run: Path
) -> None:  # trainer-018
    config = one_epoch(tmp_path, manifest, stability={"check_ranks_every": 2})
    output = Group(write_config(tmp_path, config), 2, "drift:1:4").finish(2, 2)
    assert output.count("after step 6 the ranks have different weights") == 2
    assert [len(steps) for steps in History(run).steps_of_attempts().values()] == [6]


def test_a_rank_that_hangs_ends_the_others_in_the_time_set(tmp_path: Path, manifest: Path) -> None:
    workers = {"collective_timeout_seconds": 20}
    group = Group(write_config(tmp_path, one_epoch(tmp_path, manifest, workers=workers)), 2, "hang:1:3")
    group.processes[0].join(HANG_SECONDS)
    assert group.processes[0].exitcode == 1
    group.kill()
    assert "imed out" in group.finish(1, -signal.SIGKILL)


def test_the_number_of_ranks_may_change(
    tmp_path: Path, manifest: Path, run: Path
) -> None:  # trainer-006, trainer-007
    """4 ranks, then 2, then 3, which do not divide the batch. Without dropout, losses are comparable."""
    model = {**train_config(tmp_path, manifest)["model"], "hidden_dropout": 0.0}
    folder = tmp_path / "alone"
    folder.mkdir()
    Group(write_config(folder, one_epoch(folder, manifest, model=model))).finish()
    whole = History(folder / "runs" / "run")
    config = write_config(tmp_path, one_epoch(tmp_path, manifest, model=model))
    Group(config, 4, "term:3:4").finish(143, 143, 143, 143)
    Group(config, 2, "term:1:9").finish(143, 143)
    Group(config, 3).finish()
    history = History(run)
    assert [len(steps) for steps in history.steps_of_attempts().values()] == [6, 5, 5]
    assert history.samples() == whole.samples()
    for step, figures in whole.figures().items():
        assert history.figures()[step]["lr"] == figures["lr"]
        assert history.losses()[step] == pytest.approx(figures["loss"], abs=1e-4)


def test_a_crash_in_a_later_epoch_keeps_the_order_of_that_epoch(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-012
    def start(name: str, fault: str = "none:0:0") -> Group:
        (tmp_path / name).mkdir(exist_ok=True)
        config = train_config(tmp_path / name, manifest, phases=[phase(32, 64, 1024, epochs=3)])
        return Group(write_config(tmp_path / name, config), 2, fault)

    start("whole").finish()
    start("parts", "kill:all:9").finish(-signal.SIGKILL, -signal.SIGKILL)
    start("parts").finish()
    whole, parts = (History(tmp_path / name / "runs" / "run") for name in ("whole", "parts"))
    same_run(parts, whole)
    epochs = [[whole.samples()[step] for step in range(first, first + 4)] for first in (0, 4, 8)]
    for epoch in epochs:
        assert sorted(row for rows in epoch for row in rows) == list(range(256))
    assert epochs[0] != epochs[2]


def test_every_global_rank_has_its_own_dropout(
    tmp_path: Path, manifest: Path, run: Path
) -> None:  # trainer-010, trainer-011
    """Two nodes of two ranks each: nothing may be keyed by the rank within the node."""
    config = write_config(tmp_path, one_epoch(tmp_path, manifest))
    Group(config, 4, "stream:0:0", ranks_per_node=2).finish()
    draws = [tuple(event["draws"]) for event in History(run).events("stream")]
    assert len(draws) == 4 * 16
    assert len(set(draws)) == 4 * 16
    assert len({tuple(event["sums"]) for event in History(run).events("weights")}) == 1


def test_more_ranks_than_rows_end_cleanly(tmp_path: Path, run: Path) -> None:  # trainer-014, trainer-018
    manifest = write_corpus(tmp_path / "corpus", shard_rows=(7,), lengths=(32,))
    config = train_config(tmp_path, manifest, phases=[phase(32, 3, 128, epochs=2)])
    Group(write_config(tmp_path, config), ranks=4).finish()
    history = History(run)
    assert sorted(row for rows in history.samples().values() for row in rows) == sorted([*range(7)] * 2)
    weights = [event["sums"] for event in history.events("weights")]
    assert weights == [weights[0]] * 4


def test_an_error_of_one_rank_is_the_error_of_all(tmp_path: Path, run: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", shard_rows=(64, 64), lengths=(32,))
    shard = tmp_path / "corpus" / "train-32-0" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    output = Group(write_config(tmp_path, train_config(tmp_path, manifest)), ranks=2).finish(2, 2)
    assert "pretrain: rank 1:" in output
    assert output.count("shard-00001.parquet") == 2
    assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_torchrun_gives_the_same_run(config: Path, run: Path, undisturbed: History) -> None:
    status, output = torchrun(config, ranks=2)
    assert status == 0, output
    assert "status         finished" in output
    same_run(History(run), undisturbed)
