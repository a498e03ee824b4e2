"""What the kernels need to know about the GPU they run on."""

from functools import lru_cache
from typing import Any

import torch


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU, or 2 for a CPU, where Triton's interpreter runs the kernels."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use at most."""
    if device.type != "cuda":
        return 1 << 20
    properties: Any = torch.cuda.get_device_properties(device)  # torch's types lack the field
    return int(properties.shared_memory_per_block_optin)
