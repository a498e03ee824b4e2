"""Steps with abnormal gradients are skipped, counted, and end the run when there are too many."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import BertmillError
from tests.trainer.runs import History, phase, train_config
from tests.trainer.single_process import run
from tests.trainer.synthetic import write_corpus
from trainer.data.batches import StepBatches
from trainer.optim.spike_guard import SpikeGuard
from trainer.run.loop import Trainer


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32, 64), passes=2)


def spoil(step: int, factor: float) -> Any:
    """Multiplies the gradients of one step."""

    def monkey(trainer: Trainer) -> None:
        gradients = trainer.update.gradients

        def spoiled(batches: Any, targets: Any) -> Any:
            statistics = gradients(batches, targets)
            if batches.plan.step == step:
                for parameter in trainer.network.parameters:
                    assert parameter.grad is not None
                    parameter.grad.mul_(factor)
            return statistics

        vars(trainer.update).update(gradients=spoiled)

    return monkey


@pytest.mark.parametrize("factor", [1e8, float("nan")])
def test_a_poisoned_step_is_skipped_and_its_rows_are_named(
    tmp_path: Path, manifest: Path, factor: float
) -> None:  # trainer-024
    config = train_config(tmp_path, manifest)
    config["phases"][0]["steps"] = 26
    outcome = run(config, monkey=spoil(20, factor))
    assert outcome.skipped_steps == 1
    assert outcome.last_loss < outcome.first_loss
    history = History(tmp_path / "runs" / "run")
    (skipped,) = history.events("skipped")
    assert skipped["step"] == 20
    assert sorted(skipped["row_ids"]) == history.samples()[20]
    assert history.figures()[26]["skipped_steps"] == 1


def test_a_skipped_step_changes_no_weight_and_no_moment(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    config["phases"][0]["steps"] = 5
    states = []

    def keep(trainer: Trainer) -> None:
        spoil(3, float("inf"))(trainer)
        step = trainer.update.apply

        def stepped(*arguments: Any) -> Any:
            result = step(*arguments)
            states.append({k: v.clone() for k, v in trainer.network.model.state_dict().items()})
            return result

        vars(trainer.update).update(apply=stepped)

    run(config, monkey=keep)
    same = [all(torch.equal(a[k], b[k]) for k in a) for a, b in itertools.pairwise(states)]
    assert same == [False, False, True, False]


def test_a_run_of_skipped_steps_ends_the_run(tmp_path: Path, manifest: Path) -> None:  # trainer-023
    config = train_config(tmp_path, manifest, stability={"max_skipped": 3})

    def monkey(trainer: Trainer) -> None:
        vars(trainer.guard).update(is_bad=lambda norm: torch.ones_like(norm, dtype=torch.bool))

    with pytest.raises(BertmillError, match="3 steps in a row were skipped"):
        run(config, monkey=monkey)


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_skipped_steps_are_counted_between_lines_of_the_log(
    tmp_path: Path, manifest: Path, every: int
) -> None:
    """The run ends at the limit, even if no line of the log falls into the skips."""
    config = train_config(tmp_path, manifest, stability={"max_skipped": 5})
    config["phases"][0]["steps"] = 40
    config["logging"]["every_steps"] = every

    def monkey(trainer: Trainer) -> None:
        gradients = trainer.update.gradients

        def poisoned(batches: StepBatches, targets: Tensor) -> Tensor:
            statistics = gradients(batches, targets)
            if 8 <= batches.plan.step < 15:
                for parameter in trainer.network.parameters:
                    parameter.grad = torch.full_like(parameter, torch.nan)
            return statistics

        trainer.update.gradients = poisoned  # type: ignore[method-assign]

    with pytest.raises(BertmillError, match="5 steps in a row were skipped"):
        run(config, monkey=monkey)
    history = History(tmp_path / "runs" / "run")
    assert [event["step"] for event in history.events("skipped")] == list(range(8, 13))
    assert max(history.samples()) == 12


def test_after_too_many_skips_no_step_changes_the_weights() -> None:
    """A host that receives the count late must not apply later steps."""
    guard = SpikeGuard(8, None, torch.device("cpu"), max_skipped=2)
    for norm in torch.tensor([torch.nan, torch.nan, 1.0]):
        guard.record(norm, guard.is_bad(norm))
    assert bool(guard.too_many)
    assert int(guard.skipped) == 3
    # After a restart, the next steps count again.
    again = SpikeGuard(8, None, torch.device("cpu"), max_skipped=2)
    again.load(guard.state())
    assert not bool(again.too_many)


def test_each_phase_resets_the_norm_history_even_after_a_stop(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    config["phases"] = [phase(32, 16, 128, steps=4), phase(64, 8, 128, steps=3)]
    known = []

    def monkey(trainer: Trainer) -> None:
        record = trainer.guard.record

        def noting(norm: torch.Tensor, skip: torch.Tensor) -> None:
            known.append(trainer.guard.state().seen)
            record(norm, skip)

        vars(trainer.guard).update(record=noting)

    assert run(config, stop_after=4, monkey=monkey).step == 4
    run(config, monkey=monkey)
    assert known == [0, 1, 2, 3, 0, 1, 2]
