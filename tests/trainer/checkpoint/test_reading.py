"""Reading a run during its training, which deletes checkpoints, and complete but unusable checkpoints."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cluster import storage
from schemas.errors import CheckpointError
from tests.trainer.states import TinyTraining, folder_of, reasons, save_steps, saved_steps
from trainer.checkpoint import files, snapshot
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.listing import DELETED, list_checkpoints, verify_run
from trainer.checkpoint.manifest import MANIFEST
from trainer.checkpoint.reading import latest_verified
from trainer.checkpoint.snapshot import check_finite
from trainer.checkpoint.store import CheckpointStore


def before_the_first_reading(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Runs ``action`` before the first file of a checkpoint is read."""
    check = files.check_file
    done: list[bool] = []

    def first(*arguments: Any, **named: Any) -> None:
        if not done:
            done.append(True)
            action()
        check(*arguments, **named)

    monkeypatch.setattr(files, "check_file", first)


def test_a_training_that_deletes_what_is_being_read(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keep 1 every listed checkpoint may be deleted before it is read. The newer one counts."""
    save_steps(run, [2], keep=1)
    before_the_first_reading(monkeypatch, lambda: save_steps(run, [4], keep=1))
    found = latest_verified(run)
    assert found is not None
    with found:
        assert found.step == 4


def test_a_list_of_a_run_in_training(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(run, [2], keep=1)
    before_the_first_reading(monkeypatch, lambda: save_steps(run, [4], keep=1))
    (listed,) = list_checkpoints(run)
    assert listed.problem == DELETED
    before_the_first_reading(monkeypatch, lambda: save_steps(run, [6], keep=1))
    assert verify_run(run) == []
    save_steps(run, [8, 10])
    before_the_first_reading(monkeypatch, lambda: save_steps(run, [12, 14], keep=2))
    assert verify_run(run) == []


def test_files_that_are_gone_under_a_manifest_are_a_fault(run: str) -> None:
    save_steps(run, [2, 4])
    for info in list_folders(run)[0].files.values():
        if not info.uri.endswith(MANIFEST):
            storage.delete(info.uri)
    (problem,) = verify_run(run)
    assert problem.endswith("missing")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_state_that_is_not_finite_does_not_take_the_place_of_good_ones(
    local_run: str, part: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    training = save_steps(local_run, [2, 4], keep=1)
    store = CheckpointStore(local_run, keep=1, max_failed=3)
    store.acquire_lease()
    for step in (6, 8, 10):
        training.step(2)
        state = training.state()
        spoil(getattr(state, part), value)
        store.save_async(step, state)
    with pytest.raises(CheckpointError, match=r"3 saves in a row failed.*state/.* not finite"):
        store.save_async(12, training.state())
    with pytest.raises(CheckpointError, match="not saved"):
        store.close()
    assert saved_steps(local_run) == [4]
    assert f"CheckpointError: state/{part}/" in reasons(caplog)


def spoil(value: Any, number: float) -> bool:
    """Puts ``number`` into one of the float tensors below ``value``."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.ndim:
            value.view(-1)[-1] = number
            return True
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(spoil(one, number) for one in inner)


def test_a_checkpoint_that_is_not_finite_is_named(
    local_run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version may have written one."""
    caplog.set_level(logging.ERROR)
    training = TinyTraining()
    store = CheckpointStore(local_run)
    store.acquire_lease()
    state = training.state()
    spoil(dict(state.model), float("nan"))
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "check_finite", lambda *_: None)
        store.save_async(1, state)
        store.close()
    problem, summary = verify_run(local_run)
    assert problem.startswith(f"{folder_of(local_run, 1)}/model/")
    assert problem.endswith("has values that are not finite")
    assert "no checkpoint of this run can be used" in summary


def test_whole_numbers_and_text_are_finite() -> None:
    check_finite({"a": [torch.arange(3), 5, "x", None], "b": (torch.zeros(2),), "c": float("nan")})
    with pytest.raises(CheckpointError, match=r"^state/a/1 has values"):
        check_finite({"a": [torch.zeros(1), torch.tensor([float("-inf")])]})
