"""Triton kernels for the cross-entropy of a large vocabulary: one pass over the logits, one for the gradient.

Sums over rows are partial sums of a fixed number of programs, added by torch: equal input gives equal bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.device import multiprocessors

_BLOCK, _WARPS = 4096, 4
# Rows and columns of a tile, warps, programs per multiprocessor: the fastest of several on an H200.
_ROWS, _COLUMNS, _GRADIENT_WARPS, _PROGRAMS = 4, 1024, 8, 4
_NO_TARGET: tl.constexpr = tl.constexpr(-1)


@triton.jit
def _statistics(logits_ptr, targets_ptr, log_sums_ptr, losses_ptr, predicted_ptr, width, BLOCK: tl.constexpr):
    """The log of the softmax's sum, the loss and the most probable column of one row."""
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * width
    largest, total, predicted = float("-inf"), 0.0, 0
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + column, mask=column < width, other=float("-inf")).to(tl.float32)
        highest, place = tl.max(logits, 0, return_indices=True)
        predicted = tl.where(highest > largest, first + place, predicted)
        now = tl.maximum(largest, highest)
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(logits - now), 0)
        largest = now
    log_sum = largest + tl.log(total)
    target = tl.load(targets_ptr + row)
    own = tl.load(logits_ptr + tl.maximum(target, 0)).to(tl.float32)
    tl.store(log_sums_ptr + row, log_sum)
    tl.store(losses_ptr + row, tl.where(target != _NO_TARGET, log_sum - own, 0.0))
    tl.store(predicted_ptr + row, tl.cast(predicted, tl.int64))


@triton.jit
def _gradient(
    logits_ptr, targets_ptr, log_sums_ptr, sums_ptr, rows, width, z_loss,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Overwrites the logits with the gradient of the losses' sum; this program's part of its column sums."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    split, splits = tl.program_id(1), tl.num_programs(1)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(split * ROWS, rows, splits * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = row < rows
        valid = inside & (column < width)
        log_sum = tl.load(log_sums_ptr + row, mask=inside, other=0.0)
        target = tl.load(targets_ptr + row, mask=inside, other=_NO_TARGET)
        at = logits_ptr + row.to(tl.int64) * width + column
        logits = tl.load(at, mask=valid, other=float("-inf")).to(tl.float32)
        factor = tl.where(target != _NO_TARGET, 1.0 + 2.0 * z_loss * log_sum, 0.0)
        gradient = tl.exp(logits - log_sum) * factor - tl.where(column == target, 1.0, 0.0)
        tl.store(at, gradient.to(logits_ptr.dtype.element_ty), mask=valid)
        sums += tl.where(valid, gradient, 0.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums_ptr + split * width + column, tl.sum(sums, 0), mask=column < width)


def loss_statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the softmax's sum and loss, fp32, and prediction, int64, of each row of contiguous [C, V].

    A row with the target -1 has no loss.
    """
    rows, width = logits.shape
    log_sums, losses = torch.empty(2, rows, device=logits.device)
    predicted = torch.empty_like(targets)
    if rows:
        _statistics[(rows,)](
            logits, targets, log_sums, losses, predicted, width, BLOCK=_BLOCK, num_warps=_WARPS
        )
    return log_sums, losses, predicted


def loss_gradient(logits: Tensor, log_sums: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """``logits`` [C, V], overwritten with the gradient of the sum of losses and z-losses; its sums [V]."""
    rows, width = logits.shape
    blocks = triton.cdiv(width, _COLUMNS)
    splits = max(1, min(_PROGRAMS * multiprocessors(logits.device) // blocks, rows // _ROWS))
    sums = torch.empty(splits, width, device=logits.device)
    _gradient[(blocks, splits)](
        logits, targets, log_sums, sums, rows, width, z_loss,
        ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=_GRADIENT_WARPS,
    )  # fmt: skip
    return logits, sums.sum(0)
