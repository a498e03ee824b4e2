"""The moving average of the weights: its rule, its checkpoints, its evaluation and its export."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bertmill.cli import main
from schemas.errors import CheckpointError, ConfigError
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.evaluation.saved_model import evaluate_model
from trainer.export.load_model import load_model
from trainer.hooks import Hooks
from trainer.optim.ema import WeightAverage
from trainer.run.loop import train


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), validation_rows=(9, 8))


def run(config: dict[str, Any], stop_after: int | None = None) -> str:
    """Trains, and stops after ``stop_after`` steps. Returns the URI of the run."""
    calls = iter(range(1, 1000))
    hooks = Hooks(stop_requested=lambda: next(calls) == stop_after)
    return train(TrainConfig.model_validate(config), single_rank(), hooks).run_uri


def state_of(run_uri: str) -> Any:
    checkpoint = latest_verified(run_uri)
    assert checkpoint is not None
    return checkpoint.load()


def test_the_average_follows_its_rule() -> None:
    model = torch.nn.Linear(3, 2)
    average = WeightAverage(model, 0.5)
    expected: dict[str, torch.Tensor] = {
        name: weight.detach().double() for name, weight in model.named_parameters()
    }
    for steps in range(1, 20):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        average.update(steps)
        decay = min(0.5, (1 + steps) / (10 + steps))
        for name, weight in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * weight.detach().double()
    for name, mean in average.state_dict().items():
        torch.testing.assert_close(mean.double(), expected[name], atol=1e-5, rtol=1e-5)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with average.in_model():
        assert not torch.equal(model.weight, before["weight"])
        torch.testing.assert_close(model.weight.double(), expected["weight"], atol=1e-5, rtol=1e-5)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_a_resumed_run_keeps_the_average_to_the_bit(tmp_path: Path, manifest: Path, form: str) -> None:
    def config(name: str, **fields: Any) -> dict[str, Any]:
        checkpoints = {"every_steps": 4, "every_seconds": None, "format": form}
        phases = [phase(32, 16, 512, steps=8)]
        return train_config(tmp_path / name, manifest, checkpoints=checkpoints, phases=phases, **fields)

    plain = run(config("plain"))
    whole = run(config("whole", ema=0.9))
    run(config("parts", ema=0.9), stop_after=3)
    parts = run(config("parts", ema=0.9, evaluation={"every_steps": 4, "ema": True}))
    one, other, without = state_of(whole), state_of(parts), state_of(plain)
    assert one.ema.keys() == {name for name, _ in load_model(whole).model.named_parameters()}
    assert all(torch.equal(one.ema[name], other.ema[name]) for name in one.ema)
    assert any(not torch.equal(one.ema[name], one.model[name]) for name in one.ema)
    # Neither the average nor its evaluation changes the training.
    assert without.ema == {}
    assert all(torch.equal(without.model[name], other.model[name]) for name in without.model)


def test_the_average_is_evaluated_and_exported_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus", validation_rows=(9, 8))
    evaluation = {"every_steps": 4, "ema": True}
    phases = [phase(32, 16, 512, steps=4)]
    uri = run(train_config(tmp_path, corpus, ema=0.9, evaluation=evaluation, phases=phases))
    (event,) = History(tmp_path / "runs" / "run").events("evaluated")
    figures = {
        ema: evaluate_model(uri, str(corpus), micro_batch_tokens=512, ema=ema)["all"] for ema in (False, True)
    }
    assert figures[False].loss != figures[True].loss
    assert event["held_out"]["all"]["loss"] == figures[False].loss
    assert event["held_out_ema"]["all"]["loss"] == figures[True].loss
    assert main(["evaluate", uri, "--corpus", str(corpus), "--ema", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["all"]["loss"]
    assert printed == pytest.approx(figures[True].loss, abs=1e-5)


def test_a_run_without_an_average_has_none_to_give(tmp_path: Path, manifest: Path) -> None:
    phases = [phase(32, 16, 512, steps=2)]
    uri = run(train_config(tmp_path, manifest, phases=phases))
    with pytest.raises(CheckpointError, match="has no EMA weights; the config of the run must set ema"):
        load_model(uri, ema=True)
    added = train_config(tmp_path, manifest, phases=phases, ema=0.5)
    with pytest.raises(ConfigError, match=r"ema: was None, is 0\.5"):
        run(added)
    added["phases"][0]["steps"] = 3
    added["run"]["accept_changes"] = ["ema", "phases"]
    state = state_of(run(added))
    assert state.ema.keys() <= state.model.keys()
    with pytest.raises(ValueError, match=r"evaluation\.ema: the run keeps no average"):
        run(train_config(tmp_path, manifest, evaluation={"every_steps": 1, "ema": True}))


def test_the_exported_average_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    corpus = write_corpus_with_tokenizer(tmp_path / "corpus", 120)
    uri = run(train_config(tmp_path, corpus, ema=0.9, phases=[phase(32, 16, 512, steps=2)]))
    assert main(["export", uri, "--ema", "--to", f"{tmp_path}/model"]) == 0
    tensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    table = tensors["bert.embeddings.position_embeddings.weight"]
    assert torch.equal(table, state_of(uri).ema["encoder.embeddings.position.weight"])
    assert "exponential moving average" in (tmp_path / "model" / "README.md").read_text()
