"""How ranks add up their gradients, bucket by bucket, while the backward pass still computes others.

fp32: the all-reduce of DistributedDataParallel. bf16: half of the bytes. Each rank rounds its gradients to
bf16 once and sends every other rank a share of them. The owner of a share adds it up in fp32, in the order of
ranks, and sends the rounded mean to all. Unlike an all-reduce in bf16, this sums with the precision of fp32,
and all ranks get the same bits.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

Exchange = Literal["fp32", "bf16"]


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
        """The stream, after it has been made to wait for the work of the current one so far."""
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
    dist.all_to_all_single(incoming, outgoing)
    mean = (incoming.sum(0, dtype=torch.float32) / ranks).to(torch.bfloat16)
    dist.all_gather_into_tensor(outgoing.view(-1), mean)
    return values.copy_(outgoing.view(-1)[:count])


def sum_of_ranks(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The share of a rank in the sum of ``values`` over ``group``: bf16 [n] -> fp32 [n / ranks]."""
    incoming = torch.empty_like(values)
    dist.all_to_all_single(incoming, values, group=group)
    return incoming.view(group.size(), -1).sum(0, dtype=torch.float32)
