"""Micro-batches are halved when memory runs out. Global batches, data and resumes stay as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import BertmillError, ConfigError
from tests.trainer.faulty_pretrain import memory_of
from tests.trainer.runs import Group, History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks, single_rank
from trainer.hooks import Hooks
from trainer.run import loop
from trainer.run.memory import MemoryFit


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), lengths=(32, 64))


def config_of(folder: Path, corpus: Path, tokens: int, *, fit: bool) -> TrainConfig:
    phases = [phase(32, 16, tokens, steps=5), phase(64, 8, tokens, steps=3)]
    return TrainConfig.model_validate(train_config(folder, corpus, phases=phases, fit_micro_batch=fit))


def train(config: TrainConfig, memory: int | None = None, hooks: Hooks | None = None) -> None:
    """Trains on a device that holds micro-batches of ``memory`` tokens."""

    class Small(loop.Trainer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            if memory is not None:
                self.network.loss.register_forward_pre_hook(memory_of(memory))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Trainer", Small)
        loop.train(config, single_rank(), hooks)


def warnings(history: History) -> list[str]:
    return [event["text"] for event in history.events("warning")]


@pytest.mark.parametrize("fit", [True, False])
def test_a_run_with_halved_micro_batches_is_a_run_with_small_ones(
    tmp_path: Path, corpus: Path, fit: bool
) -> None:
    """Memory may run out before a phase or in a step."""
    train(config_of(tmp_path / "small", corpus, 128, fit=fit))
    train(config_of(tmp_path / "halved", corpus, 512, fit=fit), memory=128)
    small, halved = (History(tmp_path / name / "runs/run") for name in ("small", "halved"))
    assert len(halved.losses()) == 8
    assert halved.losses() == small.losses()
    assert halved.samples() == small.samples()
    texts = warnings(halved)
    assert [text.partition("; ")[2] for text in texts if "128 tokens and" in text] == [
        f"phase {number} continues with 128 tokens and the same global batch" for number in (0, 1)
    ]
    assert not warnings(small)


def test_a_resume_keeps_the_size_that_was_found(tmp_path: Path, corpus: Path) -> None:
    config = config_of(tmp_path / "parts", corpus, 512, fit=True)
    asked = iter(range(100))
    train(config, memory=128, hooks=Hooks(stop_requested=lambda: next(asked) >= 3))
    train(config)
    train(config_of(tmp_path / "whole", corpus, 512, fit=True), memory=128)
    parts, whole = (History(tmp_path / name / "runs/run") for name in ("parts", "whole"))
    # The phase at 64 started on the larger device.
    first = {step: loss for step, loss in whole.losses().items() if step <= 5}
    assert {step: loss for step, loss in parts.losses().items() if step <= 5} == first
    assert len([text for text in warnings(parts) if "phase 1" in text]) == 0


def test_a_sequence_that_does_not_fit_ends_the_run_with_one_line(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"phases\.0\.micro_batch_tokens: 1 of 1 ranks ran out of memory"):
        train(config_of(tmp_path, corpus, 128, fit=True), memory=16)


def test_all_ranks_halve_when_one_of_them_has_less_memory(tmp_path: Path, corpus: Path) -> None:
    for name, tokens, fault in (("small", 128, "none:0:0"), ("halved", 512, "memory:1:128")):
        (tmp_path / name).mkdir()
        config = config_of(tmp_path / name, corpus, tokens, fit=True).model_dump(mode="json")
        Group(write_config(tmp_path / name, config), 2, fault).finish()
    small, halved = (History(tmp_path / name / "runs/run") for name in ("small", "halved"))
    assert halved.losses() == small.losses()
    texts = [event["text"] for event in halved.events("warning") if event["rank_of_file"] == 0]
    assert "1 of 2 ranks ran out of memory with micro-batches of 256 tokens" in texts[-1]


def test_a_later_error_of_one_of_several_ranks_names_the_field() -> None:
    fit = object.__new__(MemoryFit)
    vars(fit).update(_ranks=Ranks(1, 2, torch.device("cpu"), None))
    plan = type("Plan", (), {"phase": 0, "micro_batch_tokens": 512})
    batches: Any = type("Batches", (), {"plan": plan})
    with pytest.raises(BertmillError, match=r"rank 1: out of memory .* to 256 and resume"):
        fit.after_error(batches, torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"))
