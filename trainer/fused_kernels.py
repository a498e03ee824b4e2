"""Triton kernels of the fused layers: one pass over memory for what torch does in several.

Everything is bf16 in memory and fp32 in registers. Nothing is added with atomics, so equal input gives
equal bits. Dropout masks are not stored: backward computes them again from the seed and the place.
Imports Triton, so only hosts with a CUDA build of torch can import this module.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows of a tile, warps of a program, and programs per multiprocessor of the kernels that add up columns:
# the quickest of some on an H100 at 65,536 tokens of 768 (docs/performance.md).
NORM_ROWS, NORM_WARPS = 4, 4
BACK_ROWS, BACK_WARPS, BACK_PROGRAMS = 1, 2, 12
EMBED_WARPS, EMBED_PROGRAMS = 4, 24
GELU_ROWS, GELU_COLUMNS, GELU_WARPS, GELU_PROGRAMS = 8, 512, 8, 4


@triton.jit
def _uniform(place, seed):
    """uint32 of ``place`` and ``seed``: lowbias32 (C. Wellons, Hash Prospector) applied twice."""
    x = place.to(tl.uint32) + seed.to(tl.uint32)
    for _ in tl.static_range(2):
        x ^= x >> 16
        x *= 0x7FEB352D
        x ^= x >> 15
        x *= 0x846CA68B
        x ^= x >> 16
        x ^= seed.to(tl.uint32) * 0x9E3779B9
    return x


@triton.jit
def _kept(place, seed, cut, scale):
    """``scale`` where a value stays, 0 where it is dropped; ``cut`` is the probability times 2^32."""
    return tl.where(_uniform(place, seed) >= cut.to(tl.uint32), scale, 0.0)


@triton.jit(do_not_specialize=["seed", "cut"])
def _add_norm(
    x_ptr, z_ptr, gain_ptr, bias_ptr, y_ptr, mean_ptr, scale_ptr, tokens, width, eps, seed, cut, keep_scale,
    DROPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = norm(x + dropout(z)) of ROWS rows; mean and 1 / deviation of each for backward."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    valid = (row < tokens) & inside
    place = row.to(tl.int64) * width + column
    branch = tl.load(z_ptr + place, mask=valid, other=0.0).to(tl.float32)
    if DROPS:
        branch *= _kept(place, seed, cut, keep_scale)
    total = branch + tl.load(x_ptr + place, mask=valid, other=0.0).to(tl.float32)
    mean = tl.sum(total, 1)[:, None] / width
    centred = tl.where(inside, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
    tl.store(y_ptr + place, (centred * scale * gain + bias).to(y_ptr.dtype.element_ty), mask=valid)
    tl.store(mean_ptr + row, mean, mask=row < tokens)
    tl.store(scale_ptr + row, scale, mask=row < tokens)


@triton.jit(do_not_specialize=["seed", "cut"])
def _add_norm_back(
    dy_ptr, x_ptr, z_ptr, gain_ptr, mean_ptr, scale_ptr, dx_ptr, dz_ptr, sums_ptr,
    tokens, width, seed, cut, keep_scale,
    DROPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of x and z, and this program's part of those of gain, bias and a bias added to z before."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    d_gain = tl.zeros((ROWS, BLOCK), tl.float32)
    d_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    d_before = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(program * ROWS, tokens, programs * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        valid = (row < tokens) & inside
        place = row.to(tl.int64) * width + column
        dy = tl.load(dy_ptr + place, mask=valid, other=0.0).to(tl.float32)
        total = tl.load(z_ptr + place, mask=valid, other=0.0).to(tl.float32)
        if DROPS:
            kept = _kept(place, seed, cut, keep_scale)
            total *= kept
        total += tl.load(x_ptr + place, mask=valid, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < tokens, other=0.0)
        scale = tl.load(scale_ptr + row, mask=row < tokens, other=0.0)
        normed = tl.where(valid, (total - mean) * scale, 0.0)
        weighted = dy * gain
        along = tl.sum(weighted * normed, 1)[:, None] / width
        level = tl.sum(weighted, 1)[:, None] / width
        dx = tl.where(valid, (weighted - level - normed * along) * scale, 0.0)
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=valid)
        d_gain += dy * normed
        d_bias += dy
        if DROPS:
            dx *= kept
            tl.store(dz_ptr + place, dx.to(dz_ptr.dtype.element_ty), mask=valid)
        d_before += dx
    out = sums_ptr + program * 3 * width + tl.arange(0, BLOCK)
    inside_row = tl.arange(0, BLOCK) < width
    tl.store(out, tl.sum(d_gain, 0), mask=inside_row)
    tl.store(out + width, tl.sum(d_bias, 0), mask=inside_row)
    tl.store(out + 2 * width, tl.sum(d_before, 0), mask=inside_row)


class Drop(NamedTuple):
    """Dropout of probability ``p`` whose mask is a function of ``seed``, below 2^31, and the place."""

    p: float
    seed: int

    @property
    def arguments(self) -> tuple[int, int, float]:
        """Seed, threshold and scale for the kernels."""
        return self.seed, min(int(self.p * 2**32), 2**32 - 1), 1.0 / (1.0 - self.p)


class Normed(NamedTuple):
    """The output of add_norm, and what its backward needs of each row: fp32 [T]."""

    y: Tensor
    mean: Tensor
    scale: Tensor


def add_norm(x: Tensor, z: Tensor, gain: Tensor, bias: Tensor, eps: float, drop: Drop) -> Normed:
    """norm(x + dropout(z)) of contiguous bf16 [T, width]; statistics and weights fp32."""
    tokens, width = x.shape
    y = torch.empty_like(x)
    mean, scale = (torch.empty(tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    _add_norm[(triton.cdiv(tokens, NORM_ROWS),)](
        x, z, gain, bias, y, mean, scale, tokens, width, eps, *drop.arguments,
        DROPS=drop.p > 0, ROWS=NORM_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=NORM_WARPS,
    )  # fmt: skip
    return Normed(y, mean, scale)


class NormGradients(NamedTuple):
    """Of x and z bf16 [T, width], one tensor without dropout; of the weights fp32 [width]."""

    x: Tensor
    z: Tensor
    gain: Tensor
    bias: Tensor
    before: Tensor
    """Of a bias that was added to all rows of z."""


def add_norm_backward(
    dy: Tensor, x: Tensor, z: Tensor, gain: Tensor, normed: Normed, drop: Drop
) -> NormGradients:
    """The gradients of add_norm for ``dy`` [T, width]; ``normed`` is its output, of which y is not used."""
    tokens, width = x.shape
    dx = torch.empty_like(x)
    dz = torch.empty_like(x) if drop.p > 0 else dx
    programs = min(BACK_PROGRAMS * _multiprocessors(x.device), triton.cdiv(tokens, BACK_ROWS))
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=x.device)
    _add_norm_back[(programs,)](
        dy, x, z, gain, normed.mean, normed.scale, dx, dz, sums, tokens, width, *drop.arguments,
        DROPS=drop.p > 0, ROWS=BACK_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=BACK_WARPS,
    )  # fmt: skip
    return NormGradients(dx, dz, *sums.sum(0).unbind())


@triton.jit(do_not_specialize=["seed", "cut"])
def _embed(
    ids_ptr, positions_ptr, segments_ptr, word_ptr, position_ptr, segment_ptr, gain_ptr, bias_ptr, y_ptr,
    tokens, width, eps, seed, cut, keep_scale,
    SEGMENTS: tl.constexpr, DROPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = dropout(norm(word + position + segment)) of ROWS tokens."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    valid = (row < tokens) & inside
    total = tl.load(
        word_ptr + tl.load(ids_ptr + row, mask=row < tokens, other=0) * width + column, mask=valid
    )
    where = tl.load(positions_ptr + row, mask=row < tokens, other=0)
    total += tl.load(position_ptr + where * width + column, mask=valid)
    if SEGMENTS:
        part = tl.load(segments_ptr + row, mask=row < tokens, other=0)
        total += tl.load(segment_ptr + part * width + column, mask=valid)
    total = tl.where(valid, total, 0.0)
    centred = tl.where(inside, total - tl.sum(total, 1)[:, None] / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
    y = centred * scale * gain + bias
    place = row.to(tl.int64) * width + column
    if DROPS:
        y *= _kept(place, seed, cut, keep_scale)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["seed", "cut"])
def _embed_back(
    dy_ptr, ids_ptr, segments_ptr, word_ptr, position_ptr, segment_ptr, gain_ptr, bounds_ptr,
    total_ptr, sums_ptr, sequences, width, eps, seed, cut, keep_scale,
    SEGMENTS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The tokens at one position of a part of the sequences: gradients of their sums of embeddings, and
    this program's part of those of gain, bias, both segments and the position.
    """
    position, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column = tl.arange(0, BLOCK)
    inside = column < width
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    at_position = tl.load(position_ptr + position * width + column, mask=inside, other=0.0)
    d_gain = tl.zeros((BLOCK,), tl.float32)
    d_bias = tl.zeros((BLOCK,), tl.float32)
    d_first = tl.zeros((BLOCK,), tl.float32)
    d_second = tl.zeros((BLOCK,), tl.float32)
    for sequence in range(split, sequences, splits):
        row = tl.load(bounds_ptr + sequence) + position
        if row < tl.load(bounds_ptr + sequence + 1):
            total = tl.load(word_ptr + tl.load(ids_ptr + row) * width + column, mask=inside, other=0.0)
            total += at_position
            part = tl.load(segments_ptr + row)
            if SEGMENTS:
                total += tl.load(segment_ptr + part * width + column, mask=inside, other=0.0)
            centred = tl.where(inside, total - tl.sum(total, 0) / width, 0.0)
            scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
            normed = centred * scale
            place = tl.cast(row, tl.int64) * width + column
            dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
            if DROPS:
                dy *= _kept(place, seed, cut, keep_scale)
            weighted = dy * gain
            along, level = tl.sum(weighted * normed, 0) / width, tl.sum(weighted, 0) / width
            d_total = tl.where(inside, (weighted - level - normed * along) * scale, 0.0)
            tl.store(total_ptr + place, d_total, mask=inside)
            d_gain += dy * normed
            d_bias += dy
            d_first += tl.where(part == 0, d_total, 0.0)
            d_second += tl.where(part == 0, 0.0, d_total)
    sums = sums_ptr + (split * tl.num_programs(0) + position) * 4 * width + column
    tl.store(sums, d_gain, mask=inside)
    tl.store(sums + width, d_bias, mask=inside)
    tl.store(sums + 2 * width, d_first, mask=inside)
    tl.store(sums + 3 * width, d_second, mask=inside)


class Tables(NamedTuple):
    """Ids int64 [T] and tables fp32 [n, width]; segments may be missing."""

    ids: Tensor
    positions: Tensor
    segments: Tensor
    word: Tensor
    position: Tensor
    segment: Tensor | None


def embed_norm(tables: Tables, gain: Tensor, bias: Tensor, eps: float, drop: Drop) -> Tensor:
    """dropout(norm(word + position + segment)) as bf16 [T, width]."""
    tokens, width = tables.ids.shape[0], tables.word.shape[1]
    y = torch.empty(tokens, width, dtype=torch.bfloat16, device=tables.word.device)
    segment = tables.word if tables.segment is None else tables.segment
    _embed[(triton.cdiv(tokens, NORM_ROWS),)](
        *tables[:5], segment, gain, bias, y, tokens, width, eps, *drop.arguments,
        SEGMENTS=tables.segment is not None, DROPS=drop.p > 0,
        ROWS=NORM_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=NORM_WARPS,
    )  # fmt: skip
    return y


class EmbedGradients(NamedTuple):
    """All fp32: of the sum of embeddings [T, width], of the weights, and of the small tables."""

    total: Tensor
    gain: Tensor
    bias: Tensor
    positions: Tensor
    """[max_seqlen, width], the first rows of the table."""
    segments: Tensor
    """[2, width]."""


def embed_norm_backward(
    dy: Tensor, tables: Tables, bounds: Tensor, max_seqlen: int, gain: Tensor, eps: float, drop: Drop
) -> EmbedGradients:
    """The gradients of embed_norm for ``dy``; positions count from 0 in each sequence."""
    width = dy.shape[1]
    total = torch.empty(dy.shape, dtype=torch.float32, device=dy.device)
    splits = triton.cdiv(EMBED_PROGRAMS * _multiprocessors(dy.device), max_seqlen)
    sums = torch.empty(splits, max_seqlen, 4, width, dtype=torch.float32, device=dy.device)
    segment = tables.word if tables.segment is None else tables.segment
    _embed_back[(max_seqlen, splits)](
        dy, tables.ids, tables.segments, tables.word, tables.position, segment, gain, bounds, total, sums,
        bounds.shape[0] - 1, width, eps, *drop.arguments,
        SEGMENTS=tables.segment is not None, DROPS=drop.p > 0,
        BLOCK=triton.next_power_of_2(width), num_warps=EMBED_WARPS,
    )  # fmt: skip
    by_position = sums.sum(0)
    d_gain, d_bias, *d_segments = by_position.sum(0).unbind()
    return EmbedGradients(total, d_gain, d_bias, by_position[:, 2:].sum(1), torch.stack(d_segments))


@triton.jit
def _gelu_back(
    dy_ptr, before_ptr, sums_ptr, tokens, width,
    TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Dy times GELU'(before), in place, and this program's part of its sums over the rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    split, splits = tl.program_id(1), tl.num_programs(1)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(split * ROWS, tokens, splits * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        valid = (row < tokens) & (column < width)
        place = row.to(tl.int64) * width + column
        x = tl.load(before_ptr + place, mask=valid, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + place, mask=valid, other=0.0).to(tl.float32)
        if TANH:
            inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            tanh = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
            slope = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
            factor = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope
        else:
            factor = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
            factor += x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        dy *= factor
        tl.store(dy_ptr + place, dy.to(dy_ptr.dtype.element_ty), mask=valid)
        sums += dy
    tl.store(
        sums_ptr + split * width + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS),
        tl.sum(sums, 0),
        mask=tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS) < width,
    )


def gelu_backward(dy: Tensor, before: Tensor, *, tanh: bool) -> tuple[Tensor, Tensor]:
    """``dy`` bf16 [T, width], overwritten with the gradient of ``before``; and its sum over rows, fp32."""
    tokens, width = before.shape
    blocks = triton.cdiv(width, GELU_COLUMNS)
    splits = max(1, min(GELU_PROGRAMS * _multiprocessors(dy.device) // blocks, tokens // GELU_ROWS))
    sums = torch.empty(splits, width, dtype=torch.float32, device=dy.device)
    _gelu_back[(blocks, splits)](
        dy, before, sums, tokens, width, TANH=tanh, ROWS=GELU_ROWS, COLUMNS=GELU_COLUMNS, num_warps=GELU_WARPS
    )
    return dy, sums.sum(0)


_counts: dict[Any, int] = {}


def _multiprocessors(device: torch.device) -> int:
    if device not in _counts:
        on_gpu = device.type == "cuda"
        _counts[device] = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 2
    return _counts[device]
