"""Activation checkpointing, z-loss, and the loss in chunks."""

from dataclasses import replace

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


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("tied", [True, False])
def test_a_loss_in_chunks_is_the_loss(z_loss: float, tied: bool) -> None:
    batch = pack(random_rows(12, VOCAB)).padded_to(tokens=400, sequences=40, masked=80)
    totals = batch_totals([batch])
    found = []
    for chunk in (0, 7, 80, 999):
        loss = PretrainingLoss(small_model(tie_decoder=tied), 3)
        loss.z_loss, loss.chunk = z_loss, chunk
        sums = loss(batch, totals)
        (3 * sums.loss).backward()
        gradients = [p.grad.flatten() for p in loss.parameters() if p.grad is not None]
        found.append((sums.loss.detach(), sums.statistics, torch.cat(gradients)))
    for one in found[1:]:
        for value, expected in zip(one, found[0], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


def test_a_loss_in_chunks_is_the_loss_in_bf16_and_beside_compiled_code() -> None:
    batch = pack(random_rows(12, VOCAB)).padded_to(tokens=400, sequences=40, masked=80)
    totals = batch_totals([batch])
    found = []
    for chunk, compiled in ((0, False), (16, False), (16, True)):
        loss = PretrainingLoss(small_model(), 3)
        loss.chunk = chunk
        call = torch.compile(loss, backend="aot_eager") if compiled else loss
        with torch.autocast("cpu", torch.bfloat16):
            sums = call(batch, totals)
        sums.loss.backward()
        gradients = [p.grad.flatten() for p in loss.parameters() if p.grad is not None]
        assert all(p.grad is None or p.grad.dtype == torch.float32 for p in loss.parameters())
        found.append((sums.loss.detach(), torch.cat(gradients)))
    scale = found[0][1].abs().max()
    for value, gradient in found[1:]:
        torch.testing.assert_close(value, found[0][0], rtol=2e-3, atol=0)
        # bf16 keeps 8 bits, and the two round at different places.
        assert ((gradient - found[0][1]).abs().max() / scale).item() < 0.02


def test_a_loss_in_chunks_measures_without_gradients_and_without_targets() -> None:
    batch = pack(random_rows(12, VOCAB))
    loss = PretrainingLoss(small_model(), 3)
    expected = loss(batch, batch_totals([batch]))
    loss.chunk = 5
    with torch.no_grad():
        found = loss(batch, batch_totals([batch]))
    torch.testing.assert_close(found.statistics, expected.statistics)
    empty = replace(batch, masked_ids=batch.masked_ids[:0], masked_index=batch.masked_index[:0])
    sums = loss(empty, batch_totals([empty]))
    sums.loss.backward()
    assert torch.isfinite(sums.loss)
