"""Dropout masks computed in a kernel from a seed and a position: nothing is stored for the backward pass."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_SEEDS = 1 << 31


@triton.jit
def _uniform(index, seed):
    """uint32 of ``index`` and ``seed``: lowbias32 (C. Wellons, Hash Prospector), with the seed in the middle.

    Without that, another seed would only shift the sequence of numbers.
    """
    key = seed.to(tl.uint32)
    x = index.to(tl.uint32) + key
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= (x >> 15) ^ (key * 0x9E3779B9)
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_factor(index, seed, cut, scale):
    """``scale`` where a value is kept, 0 where it is dropped. ``cut`` is the probability times 2^32."""
    return tl.where(_uniform(index, seed) >= cut.to(tl.uint32), scale, 0.0)


class Dropout(NamedTuple):
    """Dropout of probability ``p`` whose mask is a function of ``seed``, below 2^31, and the position."""

    p: float
    seed: int

    @property
    def arguments(self) -> tuple[int, int, float]:
        """Seed, threshold and scale for the kernels."""
        return self.seed, min(int(self.p * 2**32), 2**32 - 1), 1.0 / (1.0 - self.p)


def draw_dropout(p: float) -> Dropout:
    """Dropout with a seed from torch's CPU generator, which never makes the host wait for the GPU."""
    return Dropout(p, int(torch.randint(_SEEDS, ())) if p > 0 else 0)
