"""Triton kernels for layer norms with the residual sum and dropout before them, in one pass over memory.

Tensors are bf16 in memory, arithmetic and statistics are fp32. Sums over tokens are partial sums of a
fixed number of programs, added by torch: no atomics, so equal input gives equal bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.device import multiprocessors
from trainer.kernels.dropout import Dropout, keep_factor

# Rows of a tile, warps of a program, programs per multiprocessor of the kernels that sum over tokens:
# the fastest of several on an H200 (forward) and on an H100 at 65,536 tokens of 768.
_ROWS, _WARPS = 1, 2
_BACKWARD_ROWS, _BACKWARD_WARPS, _BACKWARD_PROGRAMS = 1, 2, 12


@triton.jit(do_not_specialize=["seed", "cut"])
def _add_norm(
    x_ptr, branch_ptr, gain_ptr, bias_ptr, total_ptr, y_ptr, mean_ptr, scale_ptr,
    tokens, width, eps, seed, cut, keep_scale,
    ADD: tl.constexpr, KEEP_TOTAL: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = norm(x + dropout(branch)) of ROWS rows, the sum itself, and each row's mean and 1 / deviation."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    valid = (row < tokens) & inside
    index = row.to(tl.int64) * width + column
    total = tl.load(x_ptr + index, mask=valid, other=0.0).to(tl.float32)
    if ADD:
        branch = tl.load(branch_ptr + index, mask=valid, other=0.0).to(tl.float32)
        if DROPS:
            branch *= keep_factor(index, seed, cut, keep_scale)
        total = branch + total
    if KEEP_TOTAL:
        kept = total.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + index, kept, mask=valid)
        # The backward pass reads the rounded sum, so the forward pass also normalizes the rounded sum.
        total = kept.to(tl.float32)
    mean = tl.sum(total, 1)[:, None] / width
    centred = tl.where(inside, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] / width + eps)
    y = centred * scale * tl.load(gain_ptr + column, mask=inside, other=0.0)
    if BIAS:
        y += tl.load(bias_ptr + column, mask=inside, other=0.0)
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=valid)
    tl.store(mean_ptr + row, mean, mask=row < tokens)
    tl.store(scale_ptr + row, scale, mask=row < tokens)


@triton.jit(do_not_specialize=["seed", "cut"])
def _add_norm_backward(
    dy_ptr, dtotal_ptr, x_ptr, branch_ptr, gain_ptr, mean_ptr, scale_ptr, dx_ptr, dbranch_ptr, sums_ptr,
    tokens, width, seed, cut, keep_scale,
    ADD: tl.constexpr, FROM_TOTAL: tl.constexpr, BIAS: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of x and branch, and this program's part of those of gain, bias and a bias of the branch.

    ADD: the sum is x + dropout(branch), otherwise x alone. FROM_TOTAL: the sum has another gradient besides.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < width
    gain = tl.load(gain_ptr + column, mask=inside, other=0.0)
    d_gain = tl.zeros((ROWS, BLOCK), tl.float32)
    d_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    d_branch_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(program * ROWS, tokens, programs * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        valid = (row < tokens) & inside
        index = row.to(tl.int64) * width + column
        dy = tl.load(dy_ptr + index, mask=valid, other=0.0).to(tl.float32)
        total = tl.load(x_ptr + index, mask=valid, other=0.0).to(tl.float32)
        if DROPS:
            kept = keep_factor(index, seed, cut, keep_scale)
        if ADD:
            branch = tl.load(branch_ptr + index, mask=valid, other=0.0).to(tl.float32)
            if DROPS:
                branch *= kept
            total = branch + total
        mean = tl.load(mean_ptr + row, mask=row < tokens, other=0.0)
        scale = tl.load(scale_ptr + row, mask=row < tokens, other=0.0)
        normed = tl.where(valid, (total - mean) * scale, 0.0)
        weighted = dy * gain
        along = tl.sum(weighted * normed, 1)[:, None] / width
        level = tl.sum(weighted, 1)[:, None] / width
        dx = tl.where(valid, (weighted - level - normed * along) * scale, 0.0)
        if FROM_TOTAL:
            dx += tl.load(dtotal_ptr + index, mask=valid, other=0.0).to(tl.float32)
        tl.store(dx_ptr + index, dx.to(dx_ptr.dtype.element_ty), mask=valid)
        d_gain += dy * normed
        if DROPS:
            dx *= kept
            tl.store(dbranch_ptr + index, dx.to(dbranch_ptr.dtype.element_ty), mask=valid)
        if BIAS:
            d_bias += dy
            d_branch_bias += dx
    out = sums_ptr + program * 3 * width + tl.arange(0, BLOCK)
    inside_row = tl.arange(0, BLOCK) < width
    tl.store(out, tl.sum(d_gain, 0), mask=inside_row)
    if BIAS:
        tl.store(out + width, tl.sum(d_bias, 0), mask=inside_row)
        tl.store(out + 2 * width, tl.sum(d_branch_bias, 0), mask=inside_row)


class Norm(NamedTuple):
    """The weights of a layer norm, fp32 [width], and its epsilon."""

    gain: Tensor
    bias: Tensor | None
    eps: float


class Normed(NamedTuple):
    """The output bf16 [T, width] of a norm, and what its backward pass needs of each row: fp32 [T]."""

    y: Tensor
    mean: Tensor
    scale: Tensor


class NormGradients(NamedTuple):
    """Of x and the branch, bf16 [T, width] (one tensor without dropout), and of the weights, fp32 [width].

    The last two are None for a norm without a bias.
    """

    x: Tensor
    branch: Tensor
    gain: Tensor
    bias: Tensor | None
    branch_bias: Tensor | None
    """Of a bias that was added to all rows of the branch."""


def add_norm(x: Tensor, branch: Tensor, norm: Norm, dropout: Dropout) -> Normed:
    """norm(x + dropout(branch)) of contiguous bf16 [T, width]."""
    return _forward(x, branch, None, norm, dropout)


def residual_norm(x: Tensor, branch: Tensor, norm: Norm, dropout: Dropout) -> tuple[Tensor, Normed]:
    """The sum x + dropout(branch) in bf16, and its norm: how a pre-norm layer starts a sublayer."""
    total = torch.empty_like(x)
    return total, _forward(x, branch, total, norm, dropout)


def plain_norm(x: Tensor, norm: Norm) -> Normed:
    """norm(x) of contiguous bf16 [T, width]."""
    return _forward(x, None, None, norm, Dropout(0.0, 0))


def _forward(x: Tensor, branch: Tensor | None, total: Tensor | None, norm: Norm, dropout: Dropout) -> Normed:
    tokens, width = x.shape
    y = torch.empty_like(x)
    mean, scale = (torch.empty(tokens, dtype=torch.float32, device=x.device) for _ in range(2))
    _add_norm[(triton.cdiv(tokens, _ROWS),)](
        x, x if branch is None else branch, norm.gain, norm.gain if norm.bias is None else norm.bias,
        x if total is None else total, y, mean, scale, tokens, width, norm.eps, *dropout.arguments,
        ADD=branch is not None, KEEP_TOTAL=total is not None, BIAS=norm.bias is not None,
        DROPS=dropout.p > 0, ROWS=_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=_WARPS,
    )  # fmt: skip
    return Normed(y, mean, scale)


def add_norm_backward(
    dy: Tensor, x: Tensor, branch: Tensor, norm: Norm, normed: Normed, dropout: Dropout
) -> NormGradients:
    """The gradients of add_norm for ``dy`` [T, width]. ``normed`` is its output, of which y is not used."""
    return _backward(dy, None, x, branch, norm, normed, dropout)


def residual_norm_backward(
    dy: Tensor, dtotal: Tensor, total: Tensor, norm: Norm, normed: Normed, dropout: Dropout
) -> NormGradients:
    """The gradients of residual_norm for those of the norm (``dy``) and of the sum (``dtotal``)."""
    return _backward(dy, dtotal, total, None, norm, normed, dropout)


def plain_norm_backward(
    dy: Tensor, dx: Tensor | None, x: Tensor, norm: Norm, normed: Normed
) -> NormGradients:
    """The gradients of plain_norm for ``dy``. ``dx`` is a gradient that x has from elsewhere."""
    return _backward(dy, dx, x, None, norm, normed, Dropout(0.0, 0))


def _backward(
    dy: Tensor, dtotal: Tensor | None, x: Tensor, branch: Tensor | None, norm: Norm, normed: Normed,
    dropout: Dropout,
) -> NormGradients:  # fmt: skip
    tokens, width = x.shape
    dx = torch.empty_like(x)
    dbranch = torch.empty_like(x) if dropout.p > 0 else dx
    programs = min(_BACKWARD_PROGRAMS * multiprocessors(x.device), triton.cdiv(tokens, _BACKWARD_ROWS))
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=x.device)
    _add_norm_backward[(programs,)](
        dy, dy if dtotal is None else dtotal, x, x if branch is None else branch, norm.gain,
        normed.mean, normed.scale, dx, dbranch, sums, tokens, width, *dropout.arguments,
        ADD=branch is not None, FROM_TOTAL=dtotal is not None, BIAS=norm.bias is not None,
        DROPS=dropout.p > 0, ROWS=_BACKWARD_ROWS, BLOCK=triton.next_power_of_2(width),
        num_warps=_BACKWARD_WARPS,
    )  # fmt: skip
    if norm.bias is None:
        return NormGradients(dx, dbranch, sums[:, 0].sum(0), None, None)
    return NormGradients(dx, dbranch, *sums.sum(0).unbind())
