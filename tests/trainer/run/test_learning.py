"""Other variants than those of test_overfit.py, and dropout, memorize 64 rows."""

import math
from typing import Any

import pytest
import torch

from tests.trainer.models import VOCAB, small_config
from tests.trainer.packing import pack, random_rows
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining
from trainer.optim.optimizers import Kind, build_optimizer, set_learning_rate
from trainer.optim.schedule import LRSchedule

STEPS = 200
ROWS = random_rows(64, VOCAB, lengths=(6, 14), masked=(1, 3), seed=11)


def losses(kind: Kind, rate: float, **fields: Any) -> list[float]:
    torch.manual_seed(2)
    model = BertPretraining(small_config(**fields)).train()
    objective = PretrainingLoss(model)
    optimizer = build_optimizer(model, kind, learning_rate=rate, betas=(0.9, 0.98))
    schedule = LRSchedule("linear", STEPS, warmup=20)
    batch = pack(ROWS)
    totals = batch_totals([batch])
    history = []
    for step in range(STEPS):
        set_learning_rate(optimizer, rate * schedule.factor(step))
        optimizer.zero_grad()
        loss = objective(batch, totals).loss
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


@pytest.mark.parametrize("style", ["modern-pairs", "left-to-right"])
def test_each_variant_learns_by_heart(style: str) -> None:
    history = losses("adamw", 2e-3, style=style)
    assert history[0] == pytest.approx(expected_first_loss(style), abs=0.2)
    assert history[-1] < 0.5


def test_rows_are_learned_despite_dropout() -> None:
    assert losses("lamb", 2e-2, hidden_dropout=0.1)[-1] < 0.5


def expected_first_loss(style: str) -> float:
    pairs = small_config(style).pair_objective != "none"
    return math.log(VOCAB) + (math.log(2) if pairs else 0.0)
