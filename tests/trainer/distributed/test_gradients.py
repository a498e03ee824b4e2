"""Two real ranks add up gradients, in fp32 and in bf16, beside the backward pass and after it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainer.runs import run_ranks
from trainer.distributed.gradients import Exchange, GradientSum, data_parallel

RANKS = 2
EXCHANGES: tuple[Exchange, ...] = ("fp32", "bf16")
WAYS = [(exchange, overlap) for exchange in EXCHANGES for overlap in (True, False)]


def mean_gradients(module: nn.Module, exchange: Exchange, overlap: bool, rank: int) -> list[Tensor]:
    """The means over ranks after each of two equal backward passes on this rank's own input."""
    rows = torch.randn(7, 33, generator=torch.Generator().manual_seed(rank))
    wrapped = data_parallel(module, exchange) if overlap else module
    after = None if overlap else GradientSum(list(module.parameters()), exchange)
    found = []
    for _ in range(2):
        wrapped(rows).square().sum().backward()
        if after is not None:
            after.replace()
        scale = 1 if overlap else RANKS
        found.append(torch.cat([p.grad.flatten() / scale for p in module.parameters() if p.grad is not None]))
        module.zero_grad(set_to_none=True)
    return found


def one_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    # An odd number of weights, so that shares are not equal.
    module = nn.Sequential(nn.Linear(33, 129), nn.GELU(), nn.Linear(129, 5))
    alone: list[Tensor] = []
    for number in range(RANKS):
        rows = torch.randn(7, 33, generator=torch.Generator().manual_seed(number))
        alone.append(torch.cat([g.flatten() for g in torch.autograd.grad(
            module(rows).square().sum(), list(module.parameters()))]))  # fmt: skip
    found: dict[str, Any] = {"alone": torch.stack(alone)}
    for exchange, overlap in WAYS:
        found[f"{exchange} {overlap}"] = mean_gradients(module, exchange, overlap, rank)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each rank."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    run_ranks(one_rank, str(folder), ranks=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize(("exchange", "overlap"), WAYS)
def test_all_ranks_get_the_same_bits_every_time(
    found: list[dict[str, Any]], exchange: Exchange, overlap: bool
) -> None:
    first, *others = [gradients for one in found for gradients in one[f"{exchange} {overlap}"]]
    assert all(first.equal(other) for other in others)


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_in_bf16_are_rounded_once_before_and_once_after_the_sum(
    found: list[dict[str, Any]], overlap: bool
) -> None:
    alone = found[0]["alone"]
    torch.testing.assert_close(found[0][f"fp32 {overlap}"][0], alone.mean(0), rtol=1e-5, atol=1e-5)
    rounded = alone.bfloat16().float().mean(0).bfloat16().float()
    assert found[0][f"bf16 {overlap}"][0].equal(rounded)
    assert not rounded.equal(alone.mean(0))
