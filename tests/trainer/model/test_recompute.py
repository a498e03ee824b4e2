"""Activation checkpointing and z-loss."""

import pytest
import torch

from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from trainer.model.microbatch import NO_TARGET
from trainer.model.objectives import PretrainingLoss, batch_totals


@pytest.mark.parametrize("style", ["bert", "albert", "modern"])
def test_recomputed_layers_give_the_same_gradients(style: str) -> None:
    batch = pack(random_rows(12, VOCAB))
    found = []
    for layers in (0, 1, 9):
        model = small_model(style, hidden_dropout=0.3).train()
        model.encoder.recompute_layers = layers
        torch.manual_seed(3)  # the same dropout
        PretrainingLoss(model, 3)(batch, batch_totals([batch])).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_z_loss_adds_the_squared_log_of_the_sum_of_each_target() -> None:  # Chowdhery et al. 2022
    batch = pack(random_rows(12, VOCAB)).padded_to(tokens=400, sequences=40, masked=80)
    model = small_model()
    loss, totals = PretrainingLoss(model, 3), batch_totals([batch])
    plain = loss(batch, totals)
    loss.z_loss = 0.1
    found = loss(batch, totals)
    sums = model(batch).padded_token_logits.logsumexp(-1)[batch.masked_ids != NO_TARGET]
    torch.testing.assert_close(found.loss - plain.loss, 0.1 * (sums**2).mean())
    assert found.statistics.equal(plain.statistics)
