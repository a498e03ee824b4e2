"""Steps on weights that four real ranks share, against the same steps on whole weights in one process.

Four ranks, because then the rows of a rank lie in two of the matrices that are stacked in a weight (query,
key and value), and the last two ranks have no row of the pair head.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.runs import run_ranks
from trainer.distributed.sharding import load_unsharded, shard, total_norm
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.optim.ema import WeightAverage
from trainer.optim.optimizers import Kind, build_optimizer, load_moments, skip_step

RANKS = 4
STEPS = 4
KINDS: tuple[Kind, ...] = ("adamw", "lamb", "stable_adamw")


def loss_of_rank(loss: PretrainingLoss, rank: int, step: int) -> Tensor:
    """The part of ``rank`` in the loss of a global batch."""
    batches = [pack(random_rows(3, VOCAB, (7, 20), seed=RANKS * step + each)) for each in range(RANKS)]
    found: Tensor = loss(batches[rank], batch_totals(batches)).loss
    return found


def gathered(value: Any) -> Any:
    """``value`` with whole tensors in place of sharded ones. All ranks must call it together."""
    if isinstance(value, dict):
        return {key: gathered(inner) for key, inner in value.items()}
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value


def trained(loss: PretrainingLoss, kind: Kind, ranks: list[int]) -> dict[str, Any]:
    """The state after steps with the losses of ``ranks``, of which the third is skipped."""
    model = loss.model
    optimizer = build_optimizer(model, kind, learning_rate=0.01)
    average, norms = WeightAverage(model, 0.5), []
    for step in range(STEPS):
        for rank in ranks:
            torch.autograd.backward(loss_of_rank(loss, rank, step))
        norm = total_norm([p.grad for p in model.parameters() if p.grad is not None])
        norms.append(norm)
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        skip_step(optimizer, torch.tensor(step == 2))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(step + 1)
    found = {
        "norms": torch.stack(norms),
        "model": gathered(model.state_dict()),
        "ema": gathered(average.state_dict()),
        "optimizer": gathered(optimizer.state_dict()["state"]),
    }
    # Whole tensors, as a checkpoint has them, give back the same state.
    load_unsharded(model, found["model"])
    average.load_state_dict(found["ema"])
    restored = build_optimizer(model, kind, learning_rate=0.01)
    load_moments(restored, {**optimizer.state_dict(), "state": found["optimizer"]})
    found["again"] = {
        "model": gathered(model.state_dict()),
        "ema": gathered(average.state_dict()),
        "optimizer": gathered(restored.state_dict()["state"]),
    }
    return found


def one_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        loss = PretrainingLoss(small_model(), 3)
        shard(loss, loss.model.encoder.layers, torch.device("cpu"), "fp32")
        found[kind] = trained(loss, kind, [rank])
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Kind of optimizer -> the state of rank 0, after all ranks were found to have the same one."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    run_ranks(one_rank, str(folder), ranks=RANKS)
    first, *others = [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
    for other in others:
        same(first, other)
    return dict(first)


def same(one: Any, other: Any) -> None:
    """Fails unless the two are equal, bit by bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_on_sharded_weights_are_those_on_whole_ones(sharded: dict[str, Any], kind: Kind) -> None:
    expected = trained(PretrainingLoss(small_model(), 3), kind, list(range(RANKS)))
    for group in ("norms", "model", "ema", "optimizer"):
        found, wanted = sharded[kind][group], expected[group]
        if group in ("model", "ema"):
            # The gradient of the keys' bias consists of rounding errors, which these optimizers enlarge.
            found, wanted = ({n: t for n, t in one.items() if "qkv.bias" not in n} for one in (found, wanted))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_tensors_restore_sharded_ones_bit_by_bit(sharded: dict[str, Any], kind: Kind) -> None:
    for name, tensors in sharded[kind]["again"].items():
        same(tensors, sharded[kind][name])
