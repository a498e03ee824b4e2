"""Gradients are the same for any split of a global batch into micro-batches and ranks."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.models import STYLES, VOCAB, small_model
from tests.trainer.packing import Row, pack, random_rows
from tests.trainer.runs import run_ranks
from trainer.model.objectives import (
    STATISTICS,
    PretrainingLoss,
    batch_totals,
    cross_entropy_per_target,
)

Split = list[list[Row]]
MLM_LOSS, MLM_COUNT, NSP_LOSS, NSP_COUNT = (
    STATISTICS.index(name) for name in ("mlm_loss", "mlm_count", "nsp_loss", "nsp_count")
)


def gradients(splits: Split, style: str = "bert") -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Loss, statistics and gradients of a global batch that is trained in these micro-batches."""
    model = small_model(style)
    objective = PretrainingLoss(model, languages=3)
    batches = [pack(rows) for rows in splits]
    totals = batch_totals(batches)
    losses, statistics = [], []
    for batch in batches:
        result = objective(batch, totals)
        result.loss.backward()
        losses.append(result.loss.detach())
        statistics.append(result.statistics)
    return sum(losses), sum(statistics), [p.grad for p in model.parameters() if p.grad is not None]


def assert_same(found: object, expected: object) -> None:
    """Gradients to 1e-6. The tolerance is relative for the statistics, which are sums of hundreds."""
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def chunks(rows: list[Row], size: int) -> Split:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


ROWS = random_rows(32, VOCAB, lengths=(9, 32), masked=(1, 9))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [8, 1])
def test_gradients_do_not_depend_on_micro_batches(size: int, style: str) -> None:  # trainer-015
    assert_same(gradients(chunks(ROWS, size), style), gradients([ROWS], style))


def test_uneven_micro_batches_give_the_same_gradients() -> None:
    assert_same(gradients([ROWS[:1], ROWS[1:20], ROWS[20:]]), gradients([ROWS]))


def _rank(rank: int, folder: str) -> None:
    """One of two ranks: rank 0 has rows with 1 masked token, rank 1 rows with 9."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        model = small_model()
        batch = pack(_unequal_rows(rank))
        totals = batch_totals([batch])
        dist.all_reduce(totals)
        result = PretrainingLoss(model, languages=3)(batch, totals)
        result.loss.backward()
        shares = [result.loss.detach(), result.statistics, *(p.grad for p in model.parameters())]
        for share in shares:
            dist.all_reduce(share)
        torch.save(shares, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def _unequal_rows(rank: int) -> list[Row]:
    masked = (1, 1) if rank == 0 else (9, 9)
    return random_rows(4, VOCAB, lengths=(16, 32), masked=masked, seed=rank)


def test_two_ranks_with_unequal_masked_counts_equal_one(tmp_path: Path) -> None:  # trainer-016
    run_ranks(_rank, str(tmp_path), ranks=2)
    loss, statistics, grads = gradients([[*_unequal_rows(0), *_unequal_rows(1)]])
    for rank in range(2):
        shares = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert_same(shares, [loss, statistics, *grads])


def test_rows_without_masks_and_rows_of_padding_add_nothing() -> None:  # trainer-017
    bare = [Row(ids=[2, 9, 3, 9, 3], segment_a=3)]
    loss, statistics, grads = gradients([bare])
    assert loss == 0
    assert statistics[:, MLM_COUNT].sum() == 0
    assert all(grad.isfinite().all() and grad.eq(0).all() for grad in grads)
    padding = pack(ROWS).padded_to(tokens=1200, sequences=60, masked=400)
    model = small_model()
    PretrainingLoss(model, 3)(padding, batch_totals([padding])).loss.backward()
    together = gradients([ROWS, bare])
    assert_same([p.grad for p in model.parameters()], together[2])


def test_label_zero_counts() -> None:  # trainer-030
    rows = [dataclasses.replace(row, label=0, masked={}) for row in ROWS]
    loss, _, grads = gradients([rows])
    assert loss > 0
    assert sum(grad.abs().sum() for grad in grads) > 0


def test_loss_is_the_mean_over_tokens_plus_the_mean_over_pairs() -> None:
    model = small_model()
    output = model(pack(ROWS))
    targets = torch.tensor([row.masked[place] for row in ROWS for place in sorted(row.masked)])
    labels = torch.tensor([row.label for row in ROWS])
    tokens = torch.nn.functional.cross_entropy(output.padded_token_logits[:, :VOCAB], targets)
    pairs = torch.nn.functional.cross_entropy(output.pair_logits, labels)
    torch.testing.assert_close(gradients([ROWS])[0], (tokens + pairs).detach(), rtol=0, atol=1e-5)


def test_statistics_are_sums_by_language() -> None:
    _, statistics, _ = gradients(chunks(ROWS, 5))
    assert statistics.shape == (3, len(STATISTICS))
    for lang in range(3):
        rows = [row for row in ROWS if row.lang == lang]
        of_lang = dict(zip(STATISTICS, gradients([rows])[1][lang].tolist(), strict=True))
        found = dict(zip(STATISTICS, statistics[lang].tolist(), strict=True))
        assert found == pytest.approx(of_lang, rel=1e-5)
        assert found["mlm_count"] == sum(len(row.masked) for row in rows)
        assert found["nsp_label_1"] == sum(row.label == 1 for row in rows)
        assert found["sequences"] == len(rows)


def test_statistics_add_up_to_the_loss() -> None:
    loss, statistics, _ = gradients([ROWS])
    total = statistics.sum(0)
    parts = total[MLM_LOSS] / total[MLM_COUNT] + total[NSP_LOSS] / total[NSP_COUNT]
    torch.testing.assert_close(parts, loss)


def test_a_model_without_pairs_ignores_pair_labels() -> None:
    _, statistics, _ = gradients([ROWS], "roberta")
    assert statistics[:, NSP_COUNT].sum() == 0


def test_inputs_are_not_changed_in_place() -> None:  # trainer-021
    batch, untouched = pack(ROWS), pack(ROWS)
    model = small_model().train()
    PretrainingLoss(model, 3)(batch, batch_totals([batch])).loss.backward()
    for field in dataclasses.fields(batch):
        assert torch.equal(
            torch.as_tensor(getattr(batch, field.name)), torch.as_tensor(getattr(untouched, field.name))
        )


def test_losses_of_nothing_are_nothing() -> None:
    assert cross_entropy_per_target(torch.zeros(0, 7), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert cross_entropy_per_target(torch.zeros(1, 7), torch.tensor([-1])).tolist() == [0.0]


@pytest.mark.parametrize("style", ["bert", "modern"])
def test_compiling_changes_nothing_in_the_traced_graph(style: str) -> None:
    """The step has no graph break. It is one graph with equal results (traced with the eager backend)."""
    model = small_model(style)
    objective = PretrainingLoss(model, languages=3)
    compiled: Callable[..., Any] = torch.compile(objective, backend="eager", fullgraph=True)
    batch = pack(ROWS)
    totals = batch_totals([batch])
    torch.testing.assert_close(compiled(batch, totals), objective(batch, totals))
