"""The loop in one process: it learns, stops, resumes exactly, and saves."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.data.test_corpus import corpus_of
from tests.trainer.runs import History, train_config
from tests.trainer.single_process import equal, run, weights
from tests.trainer.states import saved_steps
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.model.microbatch import MicroBatch
from trainer.run.loop import Trainer


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32, 64), passes=2)


def test_the_loss_falls_and_the_first_is_that_of_a_guess(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    config["phases"][0]["steps"] = 80
    outcome = run(config)
    assert outcome.status == "finished"
    assert outcome.step == outcome.total_steps == 80
    # ln 200 + ln 2 = 5.99
    assert abs(outcome.first_loss - 5.99) < 0.3
    assert outcome.last_loss < outcome.first_loss - 1.5


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(tmp_path: Path, manifest: Path) -> None:
    outcomes = [
        run(train_config(tmp_path / name, manifest, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    losses = [History(tmp_path / name / "runs" / "run").losses() for name in "abc"]
    assert losses[0] == losses[1] != losses[2]
    states = [weights(outcome) for outcome in outcomes]
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])


def test_a_stopped_run_resumes_exactly(tmp_path: Path, manifest: Path) -> None:
    """Two lengths, passes and dropout, with stops in both phases, outside of the checkpoint interval."""
    phases = [
        {
            "max_seq_length": 32,
            "global_batch": 16,
            "micro_batch_tokens": 128,
            "steps": 9,
            "learning_rate": 5e-3,
        },
        {
            "max_seq_length": 64,
            "global_batch": 30,
            "micro_batch_tokens": 256,
            "epochs": 1,
            "learning_rate": 2e-3,
        },
    ]
    whole = run(train_config(tmp_path / "whole", manifest, phases=phases))
    parts = train_config(tmp_path / "parts", manifest, phases=phases)
    assert run(parts, stop_after=3).status == "stopped"
    second = run(parts, stop_after=7)
    assert (second.status, second.resumed_from, second.step) == ("stopped", 3, 10)
    last = run(parts)
    assert (last.status, last.resumed_from) == ("finished", 10)
    assert last.first_loss == whole.first_loss
    one, other = (History(tmp_path / name / "runs" / "run") for name in ("whole", "parts"))
    assert one.samples() == other.samples()
    assert one.losses() == other.losses()
    assert list(other.steps_of_attempts().values()) == [[0, 1, 2], list(range(3, 10)), list(range(10, 13))]
    rates = [{s: r["lr"] for s, r in history.figures().items()} for history in (one, other)]
    assert rates[0] == rates[1]
    assert equal(weights(whole), weights(last))


def test_a_finished_run_has_nothing_to_do(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    first, again = run(config), run(config)
    assert (again.status, again.resumed_from, again.tokens) == ("finished", 12, 0)
    assert again.checkpoint == first.checkpoint


def test_a_run_into_a_later_epoch_covers_every_row_of_each(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-003
    phases = [
        {
            "max_seq_length": 32,
            "global_batch": 16,
            "micro_batch_tokens": 512,
            "epochs": 3,
            "learning_rate": 1e-3,
        }
    ]
    config = train_config(tmp_path, manifest, phases=phases)
    run(config, stop_after=9)
    run(config)
    order = [row for _, rows in sorted(History(tmp_path / "runs" / "run").samples().items()) for row in rows]
    assert len(order) == 300
    # Passes 0 and 1 have the rows 0-99 and 100-199. The third epoch trains pass 0 again.
    assert sorted(order) == sorted([*range(100), *range(100), *range(100, 200)])


@pytest.mark.parametrize("tokens", [64, 128, 1024])
def test_micro_batches_change_neither_loss_nor_rate(
    tmp_path: Path, manifest: Path, tokens: int
) -> None:  # trainer-013, trainer-015
    model = {**train_config(tmp_path, manifest)["model"], "hidden_dropout": 0.0}
    losses = []
    for name, budget in (("reference", 512), ("other", tokens)):
        config = train_config(tmp_path / name, manifest, model=model)
        config["phases"][0] |= {"micro_batch_tokens": budget, "steps": 6}
        run(config)
        losses.append(History(tmp_path / name / "runs" / "run").figures())
    for step in range(1, 7):
        assert losses[0][step]["loss"] == pytest.approx(losses[1][step]["loss"], abs=2e-5)
        assert losses[0][step]["grad_norm"] == pytest.approx(losses[1][step]["grad_norm"], rel=1e-3)
        assert losses[0][step]["lr"] == losses[1][step]["lr"]


def test_fixed_shapes_change_neither_loss_nor_gradient(tmp_path: Path, manifest: Path) -> None:
    model = {**train_config(tmp_path, manifest)["model"], "hidden_dropout": 0.0}
    found = []
    for fixed in (False, True):
        folder = tmp_path / str(fixed)
        data = {"manifest": str(manifest), "fixed_shapes": fixed}
        run(train_config(folder, manifest, model=model, data=data))
        found.append(History(folder / "runs" / "run").figures())
    for step in range(1, 13):
        for name in ("loss", "mlm_accuracy", "nsp_accuracy", "tokens", "masked_tokens"):
            assert found[0][step][name] == pytest.approx(found[1][step][name], abs=2e-5)
        assert found[0][step]["grad_norm"] == pytest.approx(found[1][step]["grad_norm"], rel=1e-3)


def test_a_request_to_stop_ends_a_measurement_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_corpus(tmp_path / "corpus", lengths=(32,), validation_rows=(64,))
    config = train_config(tmp_path, manifest, evaluation={"every_steps": 3, "rows": 64})
    measuring: list[int] = []

    def stop_requested() -> bool:
        return len(measuring) > 2

    with ExitStack() as cleanup:
        hooks = Hooks(stop_requested=stop_requested)
        trainer = Trainer(TrainConfig.model_validate(config), single_rank(), hooks, cleanup)
        held_out = trainer.held_out[32]
        batch = held_out.batch

        def measured(number: int) -> MicroBatch:
            measuring.append(number)
            return batch(number)

        monkeypatch.setattr(held_out, "batch", measured)
        outcome = trainer.run()
    assert (outcome.status, outcome.step, measuring) == ("stopped", 3, [0, 1, 2])
    assert saved_steps(outcome.run_uri) == [3]
    assert History(tmp_path / "runs" / "run").events("evaluated") == []
    assert run(config).status == "finished"
    assert [event["step"] for event in History(tmp_path / "runs" / "run").events("evaluated")] == [6, 9, 12]


def test_checkpoints_come_by_steps_and_by_seconds(tmp_path: Path, manifest: Path) -> None:
    def saved(name: str, **settings: Any) -> list[int]:
        run(train_config(tmp_path / name, manifest, checkpoints=settings))
        return [event["step"] for event in History(tmp_path / name / "runs" / "run").events("saving")]

    assert saved("steps", every_steps=5, every_seconds=None) == [5, 10, 12]
    assert saved("seconds", every_steps=None, every_seconds=1e-6) == list(range(1, 13))
    assert saved("end", every_steps=None, every_seconds=None) == [12]


@pytest.mark.parametrize("style", ["bert", "roberta", "albert", "modern"])
@pytest.mark.parametrize("kind", ["adamw", "lamb", "muon"])
def test_every_style_and_optimizer_resumes_exactly(
    tmp_path: Path, manifest: Path, style: str, kind: Any
) -> None:
    model = {**train_config(tmp_path, manifest)["model"], "style": style, "embedding_size": 16}
    if style == "albert":
        model["pair_objective"] = "nsp"
    parts = train_config(tmp_path / "parts", manifest, model=model, optimizer={"kind": kind})
    whole = train_config(tmp_path / "whole", manifest, model=model, optimizer={"kind": kind})
    for config in (parts, whole):
        config["phases"] = [{**config["phases"][0], "steps": 4}]
    run(parts, stop_after=2)
    assert equal(weights(run(parts)), weights(run(whole)))
    assert all(torch.isfinite(value).all() for value in weights(run(whole)).model.values())


def test_one_sided_labels_are_warned_of_once(tmp_path: Path) -> None:  # trainer-031
    manifest = corpus_of(tmp_path, lambda columns: columns.update(next_sentence_label=[0] * 20))
    run(train_config(tmp_path, manifest))
    (warning,) = History(tmp_path / "runs" / "run").events("warning")
    assert warning["text"].startswith("0.0% of the pairs have label 1")
