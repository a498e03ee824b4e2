"""Seeds the generators of torch that a rank draws from."""

import torch

from schemas.randomness import draws


def seed_generators(device: torch.device, seed: int, *keys: int) -> None:
    """Seeds the generators of the CPU and of ``device`` from ``seed`` and ``keys``.

    torch.manual_seed also seeds all other devices. On a host without them, it keeps each call with a stack
    trace until they start, which took a fifth of a small model's step.
    """
    value = int(draws(seed, *keys)) >> 1  # torch takes 63 bits
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
