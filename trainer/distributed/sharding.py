"""Weights, gradients and optimizer state divided over the ranks: torch's fully_shard (FSDP2).

Every rank keeps some rows of each parameter, in fp32, and the same rows of its gradient and moments. The
layers are units: the ranks gather the weights of a layer just before it runs, forward and backward, and free
them after it. Embeddings, final norm and heads are one unit that stays whole within a step, because the word
embeddings are also the decoder. Gradients are summed in every micro-batch, so that no rank keeps whole ones.

This module recognizes a sharded tensor by its method, because to import its class (DTensor) takes a second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from schemas.errors import ConfigError
from trainer.distributed.gradients import Exchange, sum_of_ranks


def shard(module: nn.Module, layers: Iterable[nn.Module], device: torch.device, exchange: Exchange) -> None:
    """Divides the parameters of ``module`` over all ranks, in place, and moves them to ``device``.

    ``layers`` are the units, with their methods forward and fused. Gradients become sums over the ranks.
    Raises ConfigError for a parameter that has no rows.
    """
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0:
            raise ConfigError(
                f"data_parallel: fsdp cannot shard {name}, a single number; give it a dimension"
            )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if exchange == "bf16" else torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        register_fsdp_forward_method(layer, "fused")
    fully_shard(module, mesh=mesh, mp_policy=policy)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(enable=True)
            if exchange == "bf16":
                unit.set_custom_reduce_scatter(_NarrowReduceScatter())  # type: ignore[arg-type]


class _NarrowReduceScatter:
    """The sum of gradients that are sent in bf16, in fp32 as in gradients.py: torch's ReduceScatter.

    It does not derive from that class, whose module takes a second to load.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer of the communication."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, *_: Any, **__: Any
    ) -> None:
        """Writes this rank's share of the sum."""
        output_tensor.copy_(sum_of_ranks(input_tensor, group))


@contextmanager
def unsharded(module: Any) -> Iterator[None]:
    """Keeps the unit of ``module``'s own parameters whole, for calls that do not go through its forward."""
    if not hasattr(module, "unshard"):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank has only some rows of ``tensor``."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The rows of ``tensor`` that this rank has, without a copy: all of them unless it is sharded."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """The rows of ``tensor``, sharded or whole, that this rank has of ``like``."""
    if is_sharded(tensor) or not is_sharded(like):
        return local(tensor)
    first, count = _rows_of_rank(like)
    return tensor[first : first + count]


def local_parts(tensor: Tensor, parts: int) -> list[Tensor]:
    """The rows that this rank has of each of ``parts`` equal parts of ``tensor``, from first to last."""
    if not is_sharded(tensor):
        return list(tensor.chunk(parts))
    first, count = _rows_of_rank(tensor)
    size, mine = tensor.shape[0] // parts, local(tensor)
    bounds = [min(max(part * size - first, 0), count) for part in range(parts + 1)]
    return [mine[start:end] for start, end in pairwise(bounds)]


def _rows_of_rank(tensor: Any) -> tuple[int, int]:
    """The first row and the number of rows that this rank has: fully_shard divides as torch.chunk does."""
    size = -(-tensor.shape[0] // tensor.device_mesh.size())
    return size * tensor.device_mesh.get_local_rank(), local(tensor).shape[0]


def sharded_as(tensor: Tensor, like: Tensor | None) -> Tensor:
    """``tensor`` as a sharded tensor on the device of ``like``, if that is one of the same shape."""
    if like is None or not is_sharded(like) or is_sharded(tensor) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)  # noqa: S101 - for mypy
    return DTensor.from_local(
        local_rows(tensor, like).to(like.device, copy=True), like.device_mesh, like.placements,
        run_check=False, shape=like.shape, stride=like.stride(),
    )  # fmt: skip


def load_unsharded(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Loads whole tensors into ``module``, whose own may be sharded. Raises as load_state_dict does."""
    own = module.state_dict()
    module.load_state_dict({name: sharded_as(tensor, own.get(name)) for name, tensor in tensors.items()})


def sum_over_shards(values: Tensor, like: Tensor) -> Tensor:
    """``values``, one of each tensor, summed over the ranks that share ``like``."""
    if is_sharded(like):
        dist.all_reduce(values, group=like.device_mesh.get_group())  # type: ignore[attr-defined]
    return values


def norms(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """The Euclidean norm of each of ``tensors``, which are this rank's rows if ``like`` is sharded."""
    values = torch.stack(list(torch._foreach_norm(list(tensors))))
    return sum_over_shards(values**2, like).sqrt() if is_sharded(like) else values


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all ``tensors`` together, 0-d, the same on all ranks."""
    norm = nn.utils.get_total_norm([local(tensor) for tensor in tensors])
    return sum_over_shards(norm**2, tensors[0]).sqrt() if is_sharded(tensors[0]) else norm
