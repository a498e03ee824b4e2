"""Every variant and optimizer learns 64 rows by heart, from the standard initialisation."""

import math
from typing import Any

import pytest
import torch

from tests.trainer.models import VOCAB, small_config
from tests.trainer.packing import pack, random_rows
from trainer.model import BertPretraining
from trainer.objectives import PretrainingLoss, batch_totals
from trainer.optim import Kind, build_optimizer, set_learning_rate
from trainer.schedule import Schedule

STEPS = 200
ROWS = random_rows(64, VOCAB, lengths=(6, 14), masked=(1, 3), seed=11)


def losses(kind: Kind, rate: float, **fields: Any) -> list[float]:
    torch.manual_seed(2)
    model = BertPretraining(small_config(**fields)).train()
    objective = PretrainingLoss(model)
    optimizer = build_optimizer(model, kind, learning_rate=rate, betas=(0.9, 0.98))
    schedule = Schedule("linear", STEPS, warmup=20)
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


# trainer-025, trainer-026
@pytest.mark.parametrize(
    ("style", "rate"),
    [
        ("bert", 2e-3),
        ("roberta", 2e-3),
        ("albert", 1e-2),
        ("modern", 2e-3),
        ("modern-pairs", 2e-3),
        ("left-to-right", 2e-3),
    ],
)
def test_each_variant_learns_by_heart(style: str, rate: float) -> None:
    history = losses("adamw", rate, style=style)
    assert history[0] == pytest.approx(expected_first_loss(style), abs=0.2)
    assert history[-1] < 0.5


@pytest.mark.parametrize(("kind", "rate"), [("adamw", 2e-3), ("lamb", 2e-2), ("muon", 1e-2)])
def test_each_optimizer_learns_by_heart(kind: Kind, rate: float) -> None:
    assert losses(kind, rate, hidden_dropout=0.1)[-1] < 0.5


def expected_first_loss(style: str) -> float:
    pairs = small_config(style).pair_objective != "none"
    return math.log(VOCAB) + (math.log(2) if pairs else 0.0)
