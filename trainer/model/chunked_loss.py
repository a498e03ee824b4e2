"""The MLM loss from hidden states, without the logits of all targets at once.

With 119,547 subwords the fp32 logits of 20,000 targets take 9.6 GB, and so does their gradient. This module
computes the logits of some targets at a time, and from them the loss and its gradients in the forward pass
(as in Liger, Hsu et al. 2024, arXiv:2410.10989). It is one autograd function outside of compiled code, so no
compiler unrolls its loop, and no compiled tensor has more than 2^31 elements.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

_NO_TARGET = -1


class TokenLosses(NamedTuple):
    """The MLM losses of M targets. Only ``total`` has a gradient."""

    total: Tensor
    """fp32 scalar: the sum of the losses, and of z-loss."""
    losses: Tensor
    """fp32 [M], 0 where there is no target."""
    predicted: Tensor
    """int64 [M]: the most probable subword."""


# torch.compiler.disable loads all of torch.compile, for more than a second, in each process that imports this
# module. This form of it loads it at the first call.
@_disable_dynamo
def chunked_token_losses(
    states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, chunk: int, z_loss: float = 0.0,
    compiled: bool = False, fused: bool = False,
) -> TokenLosses:  # fmt: skip
    """Cross-entropy of ``states`` [M, width] @ ``weight`` [V, width]^T + ``bias`` [V], for ``targets`` [M].

    Logits of ``chunk`` targets exist at a time. A target of -1 does not count. Products are in autocast's
    type, all else is fp32, as with all logits at once. ``compiled`` compiles what follows each product, and
    ``fused`` takes the kernels of trainer/kernels/cross_entropy.py for it.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    after = _fused() if fused else _compiled() if compiled else _After(_statistics, _gradient)
    with torch.autocast(device, enabled=False):
        found = _Losses.apply(states, weight, bias, targets, chunk, z_loss, dtype, after)  # type: ignore[no-untyped-call]
        return TokenLosses(*found)


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the softmax's sum, loss and prediction of each row of ``logits`` [C, V]."""
    wide = logits.float()
    log_sums = wide.logsumexp(-1)
    own = wide.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    losses = torch.where(targets != _NO_TARGET, log_sums - own, 0.0)
    return log_sums, losses, logits.argmax(-1)


def _gradient(logits: Tensor, log_sums: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """D total / d logits = softmax x (1 + 2 z log_sum) - one_hot, in their type, and its sums."""
    real = (targets != _NO_TARGET).float()
    softmax = (logits.float() - log_sums[:, None]).exp() * ((1 + 2 * z_loss * log_sums) * real)[:, None]
    columns = torch.arange(logits.shape[1], device=logits.device)
    gradient = torch.where(columns[None, :] == targets[:, None], softmax - 1, softmax)
    return gradient.to(logits.dtype), gradient.sum(0)


class _After(NamedTuple):
    """What follows the product of a chunk."""

    statistics: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    gradient: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


@cache
def _compiled() -> _After:
    """Compiles for two static shapes: a whole chunk and the last one."""
    return _After(torch.compile(_statistics, dynamic=False), torch.compile(_gradient, dynamic=False))


def _fused() -> _After:
    from trainer.kernels.cross_entropy import loss_gradient, loss_statistics

    return _After(loss_statistics, loss_gradient)


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor,
        chunk: int, z_loss: float, dtype: torch.dtype, after: _After,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        context.types = states.dtype, weight.dtype, bias.dtype
        narrow, table, offset = states.to(dtype), weight.to(dtype), bias.to(dtype)
        log_sums, losses = torch.zeros(2, targets.shape[0], device=states.device)
        predicted = torch.zeros_like(targets)
        wanted = any(context.needs_input_grad)
        by_state = torch.empty_like(narrow) if wanted else None
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        by_bias = torch.zeros_like(bias, dtype=torch.float32) if wanted else None
        for first in range(0, targets.shape[0], chunk):
            part = slice(first, min(first + chunk, targets.shape[0]))
            logits = F.linear(narrow[part], table, offset)
            log_sums[part], losses[part], predicted[part] = after.statistics(logits, targets[part])
            if by_state is None or by_weight is None or by_bias is None:
                continue
            gradient, by_column = after.gradient(logits, log_sums[part], targets[part], z_loss)
            by_bias += by_column
            by_state[part] = gradient @ table
            by_weight += gradient.T @ narrow[part]
        total = losses.sum() + z_loss * (log_sums**2 * (targets != _NO_TARGET)).sum()
        context.save_for_backward(by_state, by_weight, by_bias)
        context.mark_non_differentiable(losses, predicted)
        return total, losses, predicted

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            (gradient * gradients[0]).to(dtype) if needed else None
            for gradient, dtype, needed in zip(
                context.saved_tensors, context.types, context.needs_input_grad, strict=False
            )
        ]
        return (*scaled, None, None, None, None, None)
