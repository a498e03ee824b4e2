"""How ranks sum their gradients: in buckets during the backward pass, or all together after it.

Beside it, the exchange hides the time of a slow network. Within a host it takes longer than it hides, because
NCCL occupies multiprocessors that the products of the backward pass need.

fp32: an all-reduce. bf16: half of the bytes. Each rank rounds its gradients to bf16 once and sends every
other rank a share of them. The owner of a share adds it up in fp32, in the order of ranks, and sends the
rounded result to all. Unlike an all-reduce in bf16, this sums with the precision of fp32, and all ranks get
the same bits.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

Exchange = Literal["fp32", "bf16"]
_ALIGNMENT = 32
"""Parts of a buffer start at multiples of this many values: fused optimizers are slower on unaligned ones."""


class GradientSum:
    """The sums of gradients over all ranks, for a call after the backward pass.

    Takes the memory of the gradients a second time, in their type or twice in bf16, for the whole run.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Exchange) -> None:
        self._parameters, ranks = parameters, dist.get_world_size()
        sizes = [-(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT for parameter in parameters]
        narrow = exchange == "bf16"
        self._buffer = torch.zeros(
            (ranks, -(-sum(sizes) // ranks)),
            dtype=torch.bfloat16 if narrow else torch.float32,
            device=parameters[0].device,
        )
        self._incoming = torch.empty_like(self._buffer) if narrow else None
        parts = self._buffer.view(-1)[: sum(sizes)].split(sizes)
        self._parts = [
            part[: parameter.numel()].view_as(parameter)
            for part, parameter in zip(parts, parameters, strict=True)
        ]

    def replace(self) -> None:
        """Replaces the gradient of every parameter by its sum over all ranks."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # Raises if a parameter has no gradient, as DistributedDataParallel does.
        torch._foreach_copy_(self._parts, gradients)
        if self._incoming is not None:
            _sum_narrow(self._buffer, self._incoming)
            torch._foreach_copy_(gradients, self._parts)
            return
        dist.all_reduce(self._buffer)
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            parameter.grad = part


def data_parallel(module: nn.Module, exchange: Exchange) -> DistributedDataParallel:
    """``module`` whose backward pass replaces gradients by their means over all ranks."""
    wrapped = DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)
    if exchange == "bf16":
        wrapped.register_comm_hook(NarrowExchange(), mean_in_bf16)
    return wrapped


class NarrowExchange:
    """Buffers of the exchange in bf16, by bucket, and the stream that it runs on beside the backward pass.

    The buffers take twice the size of the gradients in bf16 and stay for the whole run, because the allocator
    could otherwise reuse memory that another stream still reads.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None

    def buffers(self, index: int, values: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
        """Outgoing and incoming buffer of bucket ``index``, bf16 [ranks, share], zero beyond its end."""
        key = index, values.numel()
        if key not in self._buffers:
            shape = ranks, -(-values.numel() // ranks)
            outgoing = torch.zeros(shape, dtype=torch.bfloat16, device=values.device)
            self._buffers[key] = outgoing, torch.empty_like(outgoing)
        return self._buffers[key]

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream, which first waits for the work that the current stream has queued."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        return self._stream


def mean_in_bf16(state: NarrowExchange, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DistributedDataParallel: a future of the bucket's gradients, the means over all ranks."""
    values = bucket.buffer()
    outgoing, incoming = state.buffers(bucket.index(), values, dist.get_world_size())
    if values.device.type != "cuda":
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(_exchange(values, outgoing, incoming))
        return future
    with torch.cuda.stream(state.stream(values.device)):
        future = torch.futures.Future(devices=[values.device])
        future.set_result(_exchange(values, outgoing, incoming))
    return future


def _exchange(values: Tensor, outgoing: Tensor, incoming: Tensor) -> Tensor:
    """``values``, replaced by the mean over all ranks."""
    count, ranks = values.numel(), outgoing.shape[0]
    outgoing.view(-1)[:count].copy_(values)
    _sum_narrow(outgoing, incoming, ranks)
    return values.copy_(outgoing.view(-1)[:count])


def _sum_narrow(values: Tensor, incoming: Tensor, divisor: int = 1) -> None:
    """Replaces ``values``, bf16 [ranks, share], by their sums over all ranks, divided by ``divisor``."""
    dist.all_to_all_single(incoming, values)
    share = (incoming.sum(0, dtype=torch.float32) / divisor).to(torch.bfloat16)
    dist.all_gather_into_tensor(values.view(-1), share)


def sum_of_ranks(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The share of a rank in the sum of ``values`` over ``group``: bf16 [n] -> fp32 [n / ranks]."""
    incoming = torch.empty_like(values)
    dist.all_to_all_single(incoming, values, group=group)
    return incoming.view(group.size(), -1).sum(0, dtype=torch.float32)
