"""Triton kernels for GELU's derivative and for GEGLU, forward and backward, in one pass over memory each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.device import multiprocessors

# The fastest of several on an H100 at 65,536 tokens.
_ROWS, _COLUMNS, _WARPS, _PROGRAMS = 8, 512, 8, 4
_GATE_ROWS, _GATE_COLUMNS, _GATE_WARPS = 16, 128, 4


@triton.jit
def _normal_cdf(x):
    """The standard normal distribution function: GELU(x) is x times it."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x, cdf):
    """The derivative of the exact GELU. ``cdf`` is ``_normal_cdf(x)``."""
    return cdf + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _gelu_backward(
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
        index = row.to(tl.int64) * width + column
        x = tl.load(before_ptr + index, mask=valid, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + index, mask=valid, other=0.0).to(tl.float32)
        if TANH:
            inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            tanh = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
            slope = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
            factor = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope
        else:
            factor = _gelu_slope(x, _normal_cdf(x))
        dy *= factor
        tl.store(dy_ptr + index, dy.to(dy_ptr.dtype.element_ty), mask=valid)
        sums += dy
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums_ptr + split * width + column, tl.sum(sums, 0), mask=column < width)


def gelu_backward(dy: Tensor, before: Tensor, *, tanh: bool) -> tuple[Tensor, Tensor]:
    """``dy`` bf16 [T, width], overwritten with the gradient of ``before``, and its sum over rows, fp32."""
    tokens, width = before.shape
    blocks = triton.cdiv(width, _COLUMNS)
    splits = max(1, min(_PROGRAMS * multiprocessors(dy.device) // blocks, tokens // _ROWS))
    sums = torch.empty(splits, width, dtype=torch.float32, device=dy.device)
    _gelu_backward[(blocks, splits)](
        dy, before, sums, tokens, width, TANH=tanh, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=_WARPS
    )
    return dy, sums.sum(0)


@triton.jit
def _geglu(inner_ptr, out_ptr, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Out = GELU(value) gate, where a row of ``inner`` is [value, gate]. ``width`` is that of one of them."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    valid = (row < tokens) & (column < width)
    index = row.to(tl.int64) * 2 * width + column
    value = tl.load(inner_ptr + index, mask=valid, other=0.0).to(tl.float32)
    gate = tl.load(inner_ptr + index + width, mask=valid, other=0.0).to(tl.float32)
    out = value * _normal_cdf(value) * gate
    index = row.to(tl.int64) * width + column
    tl.store(out_ptr + index, out.to(out_ptr.dtype.element_ty), mask=valid)


@triton.jit
def _geglu_backward(
    dout_ptr, inner_ptr, dinner_ptr, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The gradient of ``inner``, see ``_geglu``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    valid = (row < tokens) & (column < width)
    index = row.to(tl.int64) * 2 * width + column
    value = tl.load(inner_ptr + index, mask=valid, other=0.0).to(tl.float32)
    gate = tl.load(inner_ptr + index + width, mask=valid, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + row.to(tl.int64) * width + column, mask=valid, other=0.0).to(tl.float32)
    cdf = _normal_cdf(value)
    d_value, d_gate = dout * gate * _gelu_slope(value, cdf), dout * value * cdf
    tl.store(dinner_ptr + index, d_value.to(dinner_ptr.dtype.element_ty), mask=valid)
    tl.store(dinner_ptr + index + width, d_gate.to(dinner_ptr.dtype.element_ty), mask=valid)


def geglu(inner: Tensor) -> Tensor:
    """GELU (exact) of the left half of contiguous bf16 [T, 2 width] times the right half (Shazeer 2020)."""
    tokens, width = inner.shape[0], inner.shape[1] // 2
    out = torch.empty(tokens, width, dtype=inner.dtype, device=inner.device)
    _geglu[(triton.cdiv(tokens, _GATE_ROWS), triton.cdiv(width, _GATE_COLUMNS))](
        inner, out, tokens, width, ROWS=_GATE_ROWS, COLUMNS=_GATE_COLUMNS, num_warps=_GATE_WARPS
    )
    return out


def geglu_backward(dout: Tensor, inner: Tensor) -> Tensor:
    """The gradient bf16 [T, 2 width] of ``inner`` for that of geglu's output."""
    tokens, width = dout.shape
    dinner = torch.empty_like(inner)
    _geglu_backward[(triton.cdiv(tokens, _GATE_ROWS), triton.cdiv(width, _GATE_COLUMNS))](
        dout, inner, dinner, tokens, width, ROWS=_GATE_ROWS, COLUMNS=_GATE_COLUMNS, num_warps=_GATE_WARPS
    )
    return dinner
