"""Triton kernels for the sum of word, position and segment embeddings, its layer norm and dropout.

The backward kernel sums over tokens in a fixed order instead of adding with atomics, so equal input gives
equal bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.device import multiprocessors
from trainer.kernels.dropout import Dropout, keep_factor
from trainer.kernels.norms import Norm

_ROWS, _WARPS = 4, 4
_BACKWARD_WARPS, _BACKWARD_PROGRAMS = 4, 24


@triton.jit(do_not_specialize=["seed", "cut"])
def _embed(
    ids_ptr, positions_ptr, segments_ptr, word_ptr, position_ptr, segment_ptr, gain_ptr, bias_ptr, y_ptr,
    tokens, width, eps, seed, cut, keep_scale,
    POSITIONS: tl.constexpr, SEGMENTS: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = dropout(norm(word + position + segment)) of ROWS tokens."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    valid = (row < tokens) & inside
    word = tl.load(ids_ptr + row, mask=row < tokens, other=0)
    total = tl.load(word_ptr + word * width + column, mask=valid)
    if POSITIONS:
        position = tl.load(positions_ptr + row, mask=row < tokens, other=0)
        total += tl.load(position_ptr + position * width + column, mask=valid)
    if SEGMENTS:
        segment = tl.load(segments_ptr + row, mask=row < tokens, other=0)
        total += tl.load(segment_ptr + segment * width + column, mask=valid)
    total = tl.where(valid, total, 0.0)
    centred = tl.where(inside, total - tl.sum(total, 1)[:, None] / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    y = centred * scale * tl.load(gain_ptr + column, mask=inside, other=0.0)
    if BIAS:
        y += tl.load(bias_ptr + column, mask=inside, other=0.0)
    index = row.to(tl.int64) * width + column
    if DROPS:
        y *= keep_factor(index, seed, cut, keep_scale)
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["seed", "cut"])
def _embed_backward(
    dy_ptr, ids_ptr, segments_ptr, word_ptr, position_ptr, segment_ptr, gain_ptr, cu_seqlens_ptr,
    dtotal_ptr, sums_ptr, sequences, width, eps, seed, cut, keep_scale,
    POSITIONS: tl.constexpr, SEGMENTS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The tokens at one position of every ``splits``-th sequence: gradients of their sums of embeddings, and
    this program's part of those of gain, bias, both segments and the position.
    """
    position, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column = tl.arange(0, BLOCK)
    inside = column < width
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    if POSITIONS:
        of_position = tl.load(position_ptr + position * width + column, mask=inside, other=0.0)
    d_gain = tl.zeros((BLOCK,), tl.float32)
    d_bias = tl.zeros((BLOCK,), tl.float32)
    d_first = tl.zeros((BLOCK,), tl.float32)
    d_second = tl.zeros((BLOCK,), tl.float32)
    for sequence in range(split, sequences, splits):
        row = tl.load(cu_seqlens_ptr + sequence) + position
        if row < tl.load(cu_seqlens_ptr + sequence + 1):
            total = tl.load(word_ptr + tl.load(ids_ptr + row) * width + column, mask=inside, other=0.0)
            if POSITIONS:
                total += of_position
            segment = tl.load(segments_ptr + row)
            if SEGMENTS:
                total += tl.load(segment_ptr + segment * width + column, mask=inside, other=0.0)
            centred = tl.where(inside, total - tl.sum(total, 0) / width, 0.0)
            scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
            normed = centred * scale
            index = tl.cast(row, tl.int64) * width + column
            dy = tl.load(dy_ptr + index, mask=inside, other=0.0).to(tl.float32)
            if DROPS:
                dy *= keep_factor(index, seed, cut, keep_scale)
            weighted = dy * gain
            along, level = tl.sum(weighted * normed, 0) / width, tl.sum(weighted, 0) / width
            d_total = tl.where(inside, (weighted - level - normed * along) * scale, 0.0)
            tl.store(dtotal_ptr + index, d_total, mask=inside)
            d_gain += dy * normed
            d_bias += dy
            d_first += tl.where(segment == 0, d_total, 0.0)
            d_second += tl.where(segment == 0, 0.0, d_total)
    sums = sums_ptr + (split * tl.num_programs(0) + position) * 4 * width + column
    tl.store(sums, d_gain, mask=inside)
    tl.store(sums + width, d_bias, mask=inside)
    tl.store(sums + 2 * width, d_first, mask=inside)
    tl.store(sums + 3 * width, d_second, mask=inside)


class Tables(NamedTuple):
    """Ids int64 [T] and embedding tables fp32 [n, width]. Those of positions and segments may be missing."""

    ids: Tensor
    positions: Tensor
    segments: Tensor
    word: Tensor
    position: Tensor | None
    segment: Tensor | None

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The tensors for the kernels. The word table replaces a missing one."""
        return tuple(self.word if tensor is None else tensor for tensor in self)


def embed_norm(tables: Tables, norm: Norm, dropout: Dropout, dtype: torch.dtype) -> Tensor:
    """dropout(norm(word + position + segment)) as ``dtype`` [T, width]."""
    tokens, width = tables.ids.shape[0], tables.word.shape[1]
    y = torch.empty(tokens, width, dtype=dtype, device=tables.word.device)
    _embed[(triton.cdiv(tokens, _ROWS),)](
        *tables.arguments, norm.gain, norm.gain if norm.bias is None else norm.bias, y,
        tokens, width, norm.eps, *dropout.arguments,
        POSITIONS=tables.position is not None, SEGMENTS=tables.segment is not None,
        BIAS=norm.bias is not None, DROPS=dropout.p > 0,
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=_WARPS,
    )  # fmt: skip
    return y


class EmbeddingGradients(NamedTuple):
    """All fp32: of the sum of embeddings [T, width], of the weights, and of the small tables."""

    total: Tensor
    gain: Tensor
    bias: Tensor
    positions: Tensor
    """[max_seqlen, width], the first rows of the table."""
    segments: Tensor
    """[2, width]."""


def embed_norm_backward(
    dy: Tensor, tables: Tables, cu_seqlens: Tensor, max_seqlen: int, norm: Norm, dropout: Dropout
) -> EmbeddingGradients:
    """The gradients of embed_norm for ``dy``. Positions count from 0 in each sequence."""
    width = dy.shape[1]
    total = torch.empty(dy.shape, dtype=torch.float32, device=dy.device)
    splits = triton.cdiv(_BACKWARD_PROGRAMS * multiprocessors(dy.device), max_seqlen)
    sums = torch.empty(splits, max_seqlen, 4, width, dtype=torch.float32, device=dy.device)
    ids, _, segments, word, position, segment = tables.arguments
    _embed_backward[(max_seqlen, splits)](
        dy, ids, segments, word, position, segment, norm.gain, cu_seqlens, total, sums,
        cu_seqlens.shape[0] - 1, width, norm.eps, *dropout.arguments,
        POSITIONS=tables.position is not None, SEGMENTS=tables.segment is not None, DROPS=dropout.p > 0,
        BLOCK=triton.next_power_of_2(width), num_warps=_BACKWARD_WARPS,
    )  # fmt: skip
    by_position = sums.sum(0)
    d_gain, d_bias, *d_segments = by_position.sum(0).unbind()
    return EmbeddingGradients(total, d_gain, d_bias, by_position[:, 2:].sum(1), torch.stack(d_segments))
