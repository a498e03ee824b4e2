"""The processes that train together, and the few words they exchange beside gradients."""

import os
from collections.abc import Sequence
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
    """One process among ``world_size``. ``host`` carries small CPU tensors, ``device`` the gradients.

    ``reading`` is for the thread that tells lengths (trainer/shared_lengths.py) and for nothing else.
    """

    rank: int
    world_size: int
    device: torch.device
    host: dist.ProcessGroup | None
    reading: dist.ProcessGroup | None = None

    def sum_on_host(self, values: Sequence[int]) -> list[int]:
        """The sums of ``values`` over all ranks; never waits for the device."""
        if self.host is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, group=self.host)
        return [int(value) for value in tensor]

    def to_device(self, values: Sequence[int]) -> Tensor:
        """``values`` as int64 on the device; never waits for it, as a copy from pageable memory would."""
        pinned = torch.tensor(values, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        return pinned.to(self.device, non_blocking=True)

    def sum_on_device(self, tensor: Tensor) -> Tensor:
        """``tensor`` summed in place over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max_on_device(self, tensor: Tensor) -> Tensor:
        """``tensor`` with the largest values of all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def from_first(self, value: Any) -> Any:
        """The ``value`` of rank 0, on every rank."""
        if self.host is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def fail_together(self, error: BaseException | None) -> None:
        """Raises on every rank when one of them has an error: its own, or one that names the rank.

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
        for rank, found in enumerate(all_errors):
            if found is not None:
                kind = getattr(errors, found[0], BertmillError)
                raise kind(f"rank {rank}: {found[1]}")

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        if self.host is not None:
            dist.barrier(group=self.host)


def alone(device: torch.device | None = None) -> Ranks:
    """A single process without process group."""
    return Ranks(0, 1, device or torch.device("cpu"), None)


def joined(timeout_seconds: float, device: torch.device) -> Ranks:
    """The ranks of a process group that the launcher has initialised; alone if there is none."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return alone(device)
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
        raise ConfigError(f"--launcher torchrun: {missing[0]} is not set; start this with torchrun")
    device = pick_device(use_gpu, int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return joined(timeout_seconds, device)


def leave() -> None:
    """Ends this process' part in the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def pick_device(use_gpu: bool, local_rank: int = 0) -> torch.device:
    """The device of this rank. Raises ConfigError when a GPU is asked for and there is none."""
    if not use_gpu:
        return torch.device("cpu")
    if torch.cuda.device_count() <= local_rank:
        raise ConfigError(f"workers.use_gpu: rank {local_rank} of this node has no CUDA device")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
