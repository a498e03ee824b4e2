"""The loop in one process: it learns, stops, resumes exactly, raises errors, skips steps."""

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.errors import BertmillError, CheckpointError, ConfigError, CorpusError
from tests.trainer.data.test_corpus import corpus_of
from tests.trainer.runs import History, phase, train_config
from tests.trainer.states import saved_steps
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.data.batches import StepBatches
from trainer.distributed.ranks import single_rank
from trainer.model.microbatch import MicroBatch
from trainer.run.hooks import Hooks
from trainer.run.loop import Trainer, train
from trainer.run.spike_guard import SpikeGuard


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32, 64), passes=2)


def run(config: Any, stop_after: int | None = None, monkey: Callable[[Trainer], None] | None = None) -> Any:
    """Trains; ``stop_after`` wishes to stop when that many steps are done."""
    asked = iter(range(10**9))
    hooks = Hooks(stop_requested=lambda: stop_after is not None and next(asked) >= stop_after - 1)
    with ExitStack() as cleanup:
        trainer = Trainer(TrainConfig.model_validate(config), single_rank(), hooks, cleanup)
        if monkey is not None:
            monkey(trainer)
        return trainer.run()


def weights(outcome: Any) -> Any:
    checkpoint = latest_verified(outcome.run_uri)
    assert checkpoint is not None
    return checkpoint.load()


def equal(one: Any, other: Any) -> bool:
    return one.model.keys() == other.model.keys() and all(
        torch.equal(one.model[name], other.model[name]) for name in one.model
    )


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
    """Two lengths, passes, dropout; stopped in both phases, off the checkpoint interval."""
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
    # Passes 0 and 1 have the rows 0-99 and 100-199; the third epoch trains pass 0 again.
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


def test_fused_kernels_that_cannot_be_had_are_refused(tmp_path: Path, manifest: Path) -> None:
    with pytest.raises(
        ConfigError, match="kernels: fused layers are not possible: the variable-length kernel"
    ):
        run(train_config(tmp_path, manifest, kernels="fused"))


def test_a_changed_config_is_refused_unless_it_is_accepted(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-008
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    longer = {**config, "phases": [{**config["phases"][0], "steps": 24}]}
    with pytest.raises(ConfigError, match=r"phases.0.steps: was 12, is 24.*accept_changes='\[phases\]'"):
        run(longer)
    with pytest.raises(ConfigError, match=r"seed: was 12345, is 7\)\. Choose another name"):
        run({**config, "seed": 7})
    outcome = run({**longer, "run": {**config["run"], "accept_changes": ["phases"]}})
    assert (outcome.resumed_from, outcome.step) == (4, 24)
    (first, second) = History(tmp_path / "runs" / "run").events("started")
    assert first["changes"] == []
    assert second["changes"] == ["phases.0.steps: was 12, is 24"]


@pytest.mark.parametrize("change", [{"weight_decay": 0.5}, {"betas": [0.5, 0.6]}, {"eps": 0.01}])
def test_an_accepted_change_of_the_optimizer_takes_place(tmp_path: Path, manifest: Path, change: Any) -> None:
    """torch takes these from the saved state, which holds the old ones."""
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    shutil.copytree(tmp_path / "runs", tmp_path / "before")
    unchanged = weights(run(config))
    shutil.rmtree(tmp_path / "runs")
    shutil.copytree(tmp_path / "before", tmp_path / "runs")
    accepted = {**config["run"], "accept_changes": ["optimizer"]}
    changed = weights(run({**config, "run": accepted, "optimizer": change}))
    assert not equal(changed, unchanged)


def test_moments_of_another_optimizer_are_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    config["run"] = {**config["run"], "accept_changes": ["optimizer"]}
    with pytest.raises(CheckpointError, match=r"does not fit the model: .* state has \['exp_avg'"):
        run({**config, "optimizer": {"kind": "muon"}})
    # LAMB has AdamW's moments.
    assert run({**config, "optimizer": {"kind": "lamb"}}).step == 12


def test_how_a_run_is_carried_out_may_change_freely(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    config["phases"] = [{**config["phases"][0], "micro_batch_tokens": 64}]
    config["data"] = {**config["data"], "read_ahead": 7, "cache_bytes": 1 << 20}
    config["checkpoints"] = {"every_steps": 3}
    config["workers"] = {"num_workers": 2}
    assert run(config).resumed_from == 4


def test_another_corpus_is_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    other = write_corpus(tmp_path / "other", lengths=(32, 64), passes=2, seed=2)
    with pytest.raises(ConfigError, match=r"data.corpus: was \w+, is \w+"):
        run({**config, "data": {"manifest": str(other)}})


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path, manifest: Path) -> None:
    config = train_config(tmp_path, manifest)
    run(config)
    config["run"] = {**config["run"], "accept_changes": ["phases"]}
    config["phases"] = [{**config["phases"][0], "steps": 6}]
    with pytest.raises(ConfigError, match="has done 12 steps, but the config plans only 6"):
        run(config)


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

        def stepped(batches: Any, targets: Any) -> Any:
            result = step(batches, targets)
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


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_skipped_steps_are_counted_between_lines_of_the_log(
    tmp_path: Path, manifest: Path, every: int
) -> None:
    """The run ends at the limit, also where no line of the log falls into the skips."""
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
    """A host that learns of them late must not let later steps through."""
    guard = SpikeGuard(8, None, torch.device("cpu"), max_skipped=2)
    for norm in torch.tensor([torch.nan, torch.nan, 1.0]):
        guard.record(norm, guard.is_bad(norm))
    assert bool(guard.too_many)
    assert int(guard.skipped) == 3
    # Whoever starts the run again wants the next steps to count.
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


@pytest.mark.parametrize("spelling", ["fp16", "float16", "half"])
def test_half_precision_is_refused_with_the_reason(
    tmp_path: Path, manifest: Path, spelling: str
) -> None:  # trainer-023
    with pytest.raises(
        ValueError, match=r"precision\n.*fp16 is not supported: .*bf16, which has the range of fp32"
    ):
        TrainConfig.model_validate(train_config(tmp_path, manifest, precision=spelling))


def test_damaged_data_ends_the_run_with_its_name(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", shard_rows=(64, 64))
    shard = tmp_path / "corpus" / "train-32-0" / "shard-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CorpusError, match=r"shard-00001.parquet: \d+ bytes, but the manifest says"):
        train(TrainConfig.model_validate(train_config(tmp_path, manifest)), single_rank())
    config = train_config(tmp_path / "late", manifest)
    config["data"]["check_shards"] = False
    with pytest.raises(CorpusError, match=r"shard-00001.parquet"):
        run(config)


def test_damaged_checkpoints_are_not_started_over_silently(
    tmp_path: Path, manifest: Path
) -> None:  # trainer-038
    config = train_config(tmp_path, manifest)
    run(config, stop_after=4)
    (weights,) = (tmp_path / "runs" / "run" / "checkpoints").glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"--run.restart=true restarts at step 0"):
        run(config)
    outcome = run({**config, "run": {**config["run"], "restart": True}})
    assert (outcome.resumed_from, outcome.step) == (0, 12)


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


def test_objective_and_positions_have_to_fit(tmp_path: Path, manifest: Path) -> None:  # trainer-033
    config = train_config(tmp_path, manifest)
    with pytest.raises(ConfigError, match=r"model.pair_objective: sop, but .* was built for nsp"):
        run({**config, "model": {**config["model"], "pair_objective": "sop"}})
    with pytest.raises(ConfigError, match=r"its vocabulary has 300 entries, that of .* has 200"):
        run({**config, "model": {**config["model"], "vocab_size": 300}})
    with pytest.raises(ConfigError, match=r"data.vocabulary_sha256: 0{64}, but the vocabulary of"):
        run({**config, "data": {**config["data"], "vocabulary_sha256": "0" * 64}})
    with pytest.raises(ConfigError, match="max_positions 16 is too small for max_seq_length 32"):
        run({**config, "model": {**config["model"], "max_positions": 16}})
    with pytest.raises(ConfigError, match=r"phases.0.max_seq_length: .* no sequences of length 48"):
        run({**config, "phases": [{**config["phases"][0], "max_seq_length": 48}]})
