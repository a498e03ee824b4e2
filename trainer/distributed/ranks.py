"""The processes that train together, and the small messages they exchange in addition to gradients."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from schemas import errors
from schemas.errors import BertmillError, ConfigError


@dataclass(frozen=True)
class Ranks:
    """One process among ``world_size``."""

    rank: int
    world_size: int
    device: torch.device
    host: dist.ProcessGroup | None
    """The group for small CPU tensors, or None for a single process."""
    reading: dist.ProcessGroup | None = None
    """The group that only the thread that shares lengths uses (trainer/data/shared_lengths.py)."""

    def sum_on_host(self, values: Sequence[int]) -> list[int]:
        """The sums of ``values`` over all ranks, without waiting for the device."""
        if self.host is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, group=self.host)
        return [int(value) for value in tensor]

    def to_device(self, values: Sequence[int]) -> Tensor:
        """``values`` as int64 on the device, without the wait of a copy from pageable memory."""
        pinned = torch.tensor(values, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        return pinned.to(self.device, non_blocking=True)

    def sum_on_device(self, tensor: Tensor) -> Tensor:
        """``tensor`` summed in place over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max_on_device(self, tensor: Tensor) -> Tensor:
        """The elementwise maximum of ``tensor`` over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def broadcast_from_rank0(self, value: Any) -> Any:
        """The ``value`` of rank 0, on every rank."""
        if self.host is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """The ``value`` of every rank, in order, on every rank."""
        values: list[Any] = [value] * self.world_size
        if self.host is not None:
            dist.all_gather_object(values, value, group=self.host)
        return values

    def on_one_host(self) -> bool:
        """Whether all ranks run on the same host."""
        return len(set(self.gather(socket.gethostname()))) == 1

    def fail_together(self, error: BaseException | None) -> None:
        """Raises on every rank when one of them has an error: its own error, or one that names the rank.

        All ranks must call it at the same point.
        """
        if self.host is None:
            if error is not None:
                raise error
            return
        mine = None if error is None else (type(error).__name__, str(error))
        all_errors: list[tuple[str, str] | None] = [None] * self.world_size
        dist.all_gather_object(all_errors, mine, group=self.host)
        if error is not None:
            raise error
        for rank, named_error in enumerate(all_errors):
            if named_error is not None:
                kind = getattr(errors, named_error[0], BertmillError)
                raise kind(f"rank {rank}: {named_error[1]}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raises on every rank when the block raises a BertmillError on one of them.

        All ranks must enter it at the same point, and the block may not contain another collective call.
        """
        error: BertmillError | None = None
        try:
            yield
        except BertmillError as caught:
            error = caught
        self.fail_together(error)

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.host is not None:
            dist.barrier(group=self.host)


def single_rank(device: torch.device | None = None) -> Ranks:
    """The only rank of a single process."""
    return Ranks(0, 1, device or torch.device("cpu"), None)


def ranks_of_group(timeout_seconds: float, device: torch.device) -> Ranks:
    """The ranks of the process group that the launcher has initialized, or a single rank without one."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return single_rank(device)
    default = dist.group.WORLD
    is_gloo = dist.get_backend() == "gloo"
    timeout = timedelta(seconds=timeout_seconds)
    host = default if is_gloo else dist.new_group(backend="gloo", timeout=timeout)
    reading = dist.new_group(backend="gloo", timeout=timeout)
    return Ranks(dist.get_rank(), dist.get_world_size(), device, host, reading)


def join_torchrun(timeout_seconds: float, use_gpu: bool) -> Ranks:
    """Joins the group that torchrun's environment variables describe.

    Raises ConfigError when they are missing.
    """
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"--launcher torchrun: the variable {missing[0]} is not set; start the command with torchrun"
        )
    device = pick_device(use_gpu, int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return ranks_of_group(timeout_seconds, device)


def leave() -> None:
    """Leaves the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def pick_device(use_gpu: bool, local_rank: int = 0) -> torch.device:
    """The device of this rank. Raises ConfigError when ``use_gpu`` is set and there is no GPU."""
    if not use_gpu:
        return torch.device("cpu")
    if torch.cuda.device_count() <= local_rank:
        raise ConfigError(f"workers.use_gpu: rank {local_rank} of this node has no CUDA device")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
