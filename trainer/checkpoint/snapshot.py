"""Copies of a training state in host memory, and the check that it is finite."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from schemas.errors import CheckpointError

State = TypeVar("State")


class Snapshot:
    """Copies of a state's tensors in host memory, in buffers that every save reuses.

    Training continues while the copy is written. Copies of CUDA tensors are in pinned memory, so that
    copying runs at the speed of the bus.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, state: State) -> State:
        """The state with every tensor replaced by a copy that is valid until the next call."""
        copied: State = self._copy(state, "")
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copy(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value.detach(), path)
        if is_dataclass(value) and not isinstance(value, type):
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
            return replace(value, **self._copy(parts, path))
        if isinstance(value, Mapping):
            return {key: self._copy(inner, f"{path}/{key}") for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy(inner, f"{path}/{n}") for n, inner in enumerate(value))
        return value

    def _copy_tensor(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[path] = buffer
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def check_finite(state: Any, name: str = "state") -> None:
    """Raises CheckpointError that names the first tensor of ``state`` with a NaN or an infinity.

    Such a checkpoint would verify, be useless, and eventually replace the good ones.
    """
    if isinstance(state, torch.Tensor):
        if state.is_meta or state.layout != torch.strided:
            raise CheckpointError(f"{name} is not a plain tensor")
        if state.is_floating_point() and not bool(torch.isfinite(state).all()):
            raise CheckpointError(f"{name} has values that are not finite")
    elif is_dataclass(state) and not isinstance(state, type):
        check_finite({field.name: getattr(state, field.name) for field in fields(state)}, name)
    elif isinstance(state, Mapping):
        for key, inner in state.items():
            check_finite(inner, f"{name}/{key}")
    elif isinstance(state, list | tuple):
        for number, inner in enumerate(state):
            check_finite(inner, f"{name}/{number}")
