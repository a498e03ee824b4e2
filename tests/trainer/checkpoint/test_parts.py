"""Checkpoints whose parts are saved by every rank."""

import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster import storage
from schemas.errors import CheckpointError
from tests.support.waiting import HANG_SECONDS
from tests.trainer.runs import TINY, Group, History, phase, train_config, write_config
from tests.trainer.states import (
    TinyTraining,
    assert_equal,
    flip_byte,
    folder_of,
    reasons,
    run_state,
    saved_steps,
)
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders, read_manifest
from trainer.checkpoint.listing import verify_run
from trainer.checkpoint.manifest import MANIFEST, OPTIMIZER
from trainer.checkpoint.parts import PartWriter, divide, part_name, read_parts
from trainer.checkpoint.reading import latest_verified, open_checkpoint
from trainer.checkpoint.store import CheckpointStore


class Ranks:
    """The savers of all ranks of an attempt, in one process, with equal states."""

    def __init__(self, run: str, count: int, cleanup: ExitStack, **options: Any) -> None:
        self.first = CheckpointStore(run, sharded_by=count, **options)
        self.first.acquire_lease()
        suffix = self.first.folder_suffix
        self.others = [PartWriter(run, suffix, rank, count) for rank in range(1, count)]
        cleanup.callback(self._close)

    def _close(self) -> None:
        for writer in self.others:
            writer.close()
        with suppress(CheckpointError):  # of a failed save, which the test has seen
            self.first.close()

    def save(self, training: TinyTraining, *, without: int | None = None) -> None:
        for rank, writer in enumerate(self.others, 1):
            if rank != without:
                writer.save_async(training.step_number, training.state())
        self.first.save_async(training.step_number, training.state())


def test_parts_make_one_state_to_the_bit(run: str) -> None:
    training = TinyTraining()
    with ExitStack() as cleanup:
        ranks = Ranks(run, 4, cleanup)
        for _ in range(2):
            training.step(2)
            ranks.save(training)
        ranks.first.close()
    found = latest_verified(run)
    assert found is not None
    assert set(found.manifest.files) == {OPTIMIZER, *(part_name(rank, 4) for rank in range(4))}
    assert_equal(found.load(), training.state())
    assert verify_run(run) == []
    assert saved_steps(run) == [4, 2]
    sizes = [found.manifest.files[part_name(rank, 4)].size for rank in range(4)]
    assert max(sizes) < sum(sizes) / 2


def test_a_damaged_or_missing_part_is_named_and_passed_over(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = TinyTraining()
    with ExitStack() as cleanup:
        ranks = Ranks(run, 3, cleanup)
        for _ in range(3):
            training.step()
            ranks.save(training)
        ranks.first.close()
    flip_byte(storage.join(folder_of(run, 3), part_name(2, 3)), 300)
    storage.delete(storage.join(folder_of(run, 2), part_name(1, 3)))
    found = latest_verified(run)
    assert found is not None
    assert found.step == 1
    found.close()
    assert "part-00002-of-00003.safetensors: its sha256 differs" in reasons(caplog)
    assert "part-00001-of-00003.safetensors: missing" in reasons(caplog)


def test_nothing_is_committed_before_every_part_is_there(run: str) -> None:
    training = TinyTraining()
    training.step()
    with ExitStack() as cleanup:
        ranks = Ranks(run, 3, cleanup, part_timeout=0.5)
        ranks.save(training, without=2)
        with pytest.raises(CheckpointError, match=r"part-00002-of-00003.*did not write it in time"):
            ranks.first.wait()
        assert saved_steps(run) == []
        training.step()
        ranks.first._part_timeout = HANG_SECONDS
        ranks.save(training)
        ranks.first.wait()
    assert saved_steps(run) == [2]
    # The next commit removes unfinished files.
    assert [folder.step for folder in list_folders(run)] == [2]


def test_a_rank_without_room_says_so_to_rank_0(local_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 deletes the oldest checkpoint, so that the next save has room."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    training = TinyTraining()
    with ExitStack() as cleanup:
        ranks = Ranks(local_run, 2, cleanup, part_timeout=HANG_SECONDS)
        for _ in range(3):
            training.step()
            ranks.save(training)
        ranks.first.wait()
        training.step()
        monkeypatch.setattr("trainer.checkpoint.parts.write_share", refuse)
        ranks.others[0].save_async(4, training.state())
        ranks.others[0].close()
        monkeypatch.undo()
        ranks.first.save_async(4, training.state())
        with pytest.raises(
            CheckpointError, match=r"could not save its part: StorageFullError.*No space left"
        ):
            ranks.first.wait()
    assert saved_steps(local_run) == [3, 2]


def test_parts_of_a_later_step_outlive_the_commit_of_an_earlier_one(local_run: str) -> None:
    training = TinyTraining()
    training.step()
    with ExitStack() as cleanup:
        ranks = Ranks(local_run, 2, cleanup, keep=1)
        early = TinyTraining()
        early.step(2)
        ranks.others[0].save_async(1, training.state())
        ranks.others[0].save_async(2, early.state())
        ranks.others[0].close()
        ranks.first.save_async(1, training.state())
        ranks.first.wait()
        assert saved_steps(local_run) == [1]
        ranks.first.save_async(2, early.state())
        ranks.first.wait()
    assert saved_steps(local_run) == [2]


def test_a_manifest_that_lists_half_of_the_parts_is_refused(local_run: str) -> None:
    training = TinyTraining()
    with ExitStack() as cleanup:
        ranks = Ranks(local_run, 2, cleanup)
        ranks.save(training)
        ranks.first.close()
    folder = folder_of(local_run, 0)
    manifest = read_manifest(folder)
    files = {name: entry for name, entry in manifest.files.items() if name != part_name(1, 2)}
    raw = manifest.model_copy(update={"files": files}).to_bytes()
    storage.put_bytes(storage.join(folder, MANIFEST), raw)
    with pytest.raises(CheckpointError, match=r"MANIFEST.json: lists 1 parts; part-00001-of-00002"):
        latest_verified(local_run)


def test_tensors_without_a_place_are_refused(local_run: str, tmp_path: Path) -> None:
    torch.save({"state": {}, "param_groups": []}, tmp_path / OPTIMIZER)
    path = tmp_path / part_name(0, 1)
    safetensors.torch.save_file({"optimizer/7/exp_avg": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="optimizer/7/exp_avg does not belong to the optimizer"):
        read_parts(tmp_path, [path.name], run_state(0), local_run)


@given(st.lists(st.integers(0, 10_000), max_size=40), st.integers(1, 9))
def test_parts_are_balanced_and_complete(sizes: list[int], ranks: int) -> None:
    named = {f"w{number}": size for number, size in enumerate(sizes)}
    parts = divide(named, ranks)
    assert sorted(name for part in parts for name in part) == sorted(named)
    loads = [sum(named[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(100, 92), lengths=(32,))


def sharded(folder: Path, manifest: Path, form: str = "sharded") -> Path:
    checkpoints = {"every_steps": 3, "every_seconds": None, "keep": 9, "format": form}
    changes = {"phases": [phase(32, 16, 128, steps=12)], "model": {**TINY, "hidden_dropout": 0.0}}
    folder.mkdir(exist_ok=True)
    return write_config(folder, train_config(folder, manifest, checkpoints=checkpoints, **changes))


@pytest.mark.slow
def test_ranks_change_from_four_to_two_to_three_after_a_kill_in_a_save(
    tmp_path: Path, manifest: Path
) -> None:
    """trainer-052: 4 ranks save in parts what one rank saves whole, and any number of ranks resumes."""
    Group(sharded(tmp_path / "whole", manifest, "whole"), ranks=4).finish()
    undisturbed = tmp_path / "whole" / "runs" / "run"
    config, run = sharded(tmp_path / "parts", manifest), tmp_path / "parts" / "runs" / "run"
    Group(config, ranks=4, fault="kill-save:1:6").finish(1, -signal.SIGKILL, 1, 1)
    assert saved_steps(str(run)) == [3]
    one, other = latest_verified(str(run)), folder_of(str(undisturbed), 3)
    assert one is not None
    states = [one.load(), open_checkpoint(other).load()]
    assert_equal(states[0].model, states[1].model)
    assert_equal(states[0].optimizer, states[1].optimizer)
    Group(config, ranks=2, fault="term:1:6").finish(143, 143)
    assert saved_steps(str(run))[0] == 8
    output = Group(config, ranks=3).finish()
    assert "resumes after step 8" in output
    history, reference = History(run), History(undisturbed)
    assert history.samples() == reference.samples()
    assert history.losses() == pytest.approx(reference.losses(), abs=1e-4)
    final = latest_verified(str(run))
    assert final is not None
    assert {name for name in final.manifest.files if name.startswith("part")} == {
        part_name(rank, 3) for rank in range(3)
    }
    final.close()
