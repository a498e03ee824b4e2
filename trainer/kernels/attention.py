"""Attention within packed sequences, directly on the product of queries, keys and values.

The kernels read queries, keys and values where the product left them, and write gradients where the next
product reads them. Sequences of up to SHORT tokens have separate kernels.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trainer.kernels.device import shared_memory
from trainer.kernels.long_attention import (
    long_backward_keys,
    long_backward_queries,
    long_forward,
)
from trainer.kernels.short_attention import short_backward, short_forward
from trainer.kernels.tiles import rotate_in_place

SHORT = 128
_SHORT_WARPS = 8
# Queries at a time, warps, stages of the loop: the fastest of several on an H200.
_SHORT_BACKWARD = (32, 4, 3)
# Rows of queries, rows of keys, warps, stages of the loop: the fastest of several on an H100.
_FORWARD = (64, 64, 4, 3)
_BACKWARD_KEYS = (64, 64, 4, 1)
_BACKWARD_QUERIES = (64, 32, 4, 3)
_ROTATE_ROWS, _ROTATE_PAIRS = 8, 256
_LOG2_E = 1.4426950408889634
_NO_LIMIT = 1 << 30


class Sequences(NamedTuple):
    """How packed tokens form sequences."""

    cu_seqlens: Tensor
    """int32 [n + 1]: sequence i is tokens cu_seqlens[i] : cu_seqlens[i + 1]."""
    max_seqlen: int
    """No sequence is longer."""
    positions: Tensor
    """int64 [T], from 0 in each sequence."""


class AttentionSpec(NamedTuple):
    """What an attention layer computes."""

    heads: int
    window: tuple[int, int] = (-1, -1)
    """Tokens before and after itself that a token sees, or -1 for no limit."""
    rotary: Tensor | None = None
    """fp32 [max_seqlen, head size] of rotary_cache, or None for no rotation."""

    @property
    def limits(self) -> tuple[int, int]:
        """The window for the kernels."""
        before, after = (_NO_LIMIT if limit < 0 else limit for limit in self.window)
        return before, after

    @property
    def limited(self) -> bool:
        """Whether a token may see less than its whole sequence."""
        return self.window != (-1, -1)


def rotary_cache(size: int, base: float, max_seqlen: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: fp32 [max_seqlen, size] for heads of ``size``.

    The same angles as trainer.model.attention.rotary_table.
    """
    steps = torch.arange(0, size, 2, device=device, dtype=torch.float32)
    angles = torch.arange(max_seqlen, device=device, dtype=torch.float32)[:, None] * base ** (-steps / size)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _stages(stages: int, size: int, kept_rows: int, loop_rows: int, device: torch.device) -> int:
    """How many of ``stages`` fit into shared memory, at two bf16 tiles of ``loop_rows`` for each stage.

    Heads of 128 with three stages take 112 KB, more than GPUs other than A100 and H100 have.
    """
    room = shared_memory(device) - kept_rows * size * 2
    return max(1, min(stages, room // (2 * loop_rows * size * 2)))


def _tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles [rows, columns] of ``matrix``, for the copy engine."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def attention_forward(qkv: Tensor, sequences: Sequences, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Attention of packed bf16 [T, 3 width] -> [T, width], and the log of the softmax sums for backward.

    The logs are fp32 [heads, T], in base 2. In sequences beyond SHORT, rotary positions turn the queries
    and keys in ``qkv`` in place.
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
    size, count = width // spec.heads, sequences.cu_seqlens.shape[0] - 1
    scale = size**-0.5 * _LOG2_E
    logsum = torch.empty(spec.heads, tokens, dtype=torch.float32, device=qkv.device)
    table = logsum if spec.rotary is None else spec.rotary
    if sequences.max_seqlen <= SHORT:
        rows = max(16, triton.next_power_of_2(sequences.max_seqlen))
        short_forward[(count, spec.heads)](
            qkv, table, out, logsum, sequences.cu_seqlens, tokens, width, scale, *spec.limits,
            ROTARY=spec.rotary is not None, WINDOW=spec.limited, SIZE=size, ROWS=rows,
            num_warps=_SHORT_WARPS if rows > 64 else 4,
        )  # fmt: skip
        return out, logsum
    if spec.rotary is not None:
        grid = (triton.cdiv(tokens, _ROTATE_ROWS), triton.cdiv(width, _ROTATE_PAIRS))
        rotate_in_place[grid](
            qkv, sequences.positions, table, tokens, width, SIZE=size, ROWS=_ROTATE_ROWS, PAIRS=_ROTATE_PAIRS
        )
    rows, keys, warps, stages = _FORWARD
    long_forward[(triton.cdiv(sequences.max_seqlen, rows), count, spec.heads)](
        qkv, out, logsum, sequences.cu_seqlens, tokens, width, scale, *spec.limits,
        WINDOW=spec.limited, SIZE=size, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, rows, keys, qkv.device),
    )  # fmt: skip
    return out, logsum


class Attended(NamedTuple):
    """Inputs and outputs of attention_forward that its backward pass needs."""

    qkv: Tensor
    out: Tensor
    logsum: Tensor


def attention_backward(
    dout: Tensor, attended: Attended, sequences: Sequences, spec: AttentionSpec, *, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of qkv, bf16 [T, 3 width], and, if ``bias``, of a bias of all its rows, fp32 [3 width]."""
    dqkv = torch.empty_like(attended.qkv)
    # The kernels sum gradients of rotated queries and keys: those of a bias come before the rotation.
    by_kernel = bias and spec.rotary is None
    backward = _short_backward if sequences.max_seqlen <= SHORT else _long_backward
    sums = backward(dout, attended, dqkv, sequences, spec, sums=by_kernel)
    if bias and spec.rotary is not None:
        sums = dqkv.sum(0, dtype=torch.float32)
    return dqkv, sums


def _short_backward(
    dout: Tensor, attended: Attended, dqkv: Tensor, sequences: Sequences, spec: AttentionSpec, *, sums: bool
) -> Tensor | None:
    """Fills ``dqkv`` and returns, if ``sums``, its sums over tokens."""
    width, count = dout.shape[1], sequences.cu_seqlens.shape[0] - 1
    size = width // spec.heads
    scale = size**-0.5
    rows = max(16, triton.next_power_of_2(sequences.max_seqlen))
    # Zeros: empty sequences write nothing.
    partial = torch.zeros(count if sums else 1, 3 * width, dtype=torch.float32, device=dout.device)
    queries, warps, stages = min(rows, _SHORT_BACKWARD[0]), *_SHORT_BACKWARD[1:]
    # Rotated queries are not loaded by the copy engine, and stages of them would take shared memory.
    stages = _stages(stages if spec.rotary is None else 1, size, 2 * rows, queries, dout.device)
    short_backward[(count, spec.heads)](
        _tiles(attended.qkv, queries, size), _tiles(dout, queries, size),
        attended.qkv, partial if spec.rotary is None else spec.rotary, attended.logsum, dqkv, partial,
        sequences.cu_seqlens, dout.shape[0], width, scale * _LOG2_E, scale, *spec.limits,
        ROTARY=spec.rotary is not None, WINDOW=spec.limited, SUMS=sums,
        SIZE=size, ROWS=rows, QUERIES=queries, STAGES=stages, num_warps=warps if size <= 64 else 8,
    )  # fmt: skip
    return partial.sum(0) if sums else None


def _long_backward(
    dout: Tensor, attended: Attended, dqkv: Tensor, sequences: Sequences, spec: AttentionSpec, *, sums: bool
) -> Tensor | None:
    """Like _short_backward, for sequences longer than SHORT."""
    (tokens, width), count, longest = dout.shape, sequences.cu_seqlens.shape[0] - 1, sequences.max_seqlen
    size, device = width // spec.heads, dout.device
    scale = size**-0.5
    delta = torch.empty_like(attended.logsum)
    lines = triton.cdiv(longest, min(_BACKWARD_KEYS[1], _BACKWARD_QUERIES[0])) * count if sums else 1
    partial = torch.zeros(lines, 3 * width, dtype=torch.float32, device=device)
    table = partial if spec.rotary is None else spec.rotary
    tensors = (dout, attended.logsum, delta, dqkv, partial, sequences.cu_seqlens)
    numbers = (tokens, width, scale * _LOG2_E, scale, *spec.limits)
    flags = {"ROTARY": spec.rotary is not None, "WINDOW": spec.limited, "SUMS": sums, "SIZE": size}
    # First, because it computes delta.
    rows, keys, warps, stages = _BACKWARD_QUERIES
    long_backward_queries[(triton.cdiv(longest, rows), count, spec.heads)](
        _tiles(attended.qkv, keys, size), attended.qkv, table, attended.out, *tensors, *numbers,
        **flags, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, 2 * rows, keys, device),
    )  # fmt: skip
    rows, keys, warps, stages = _BACKWARD_KEYS
    long_backward_keys[(triton.cdiv(longest, keys), count, spec.heads)](
        attended.qkv, table, *tensors, *numbers, **flags, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, 2 * keys, rows, device),
    )  # fmt: skip
    return partial.sum(0) if sums else None
