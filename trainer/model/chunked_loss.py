"""The MLM loss from hidden states, without the logits of all targets at once.

With 119,547 subwords the fp32 logits of 20,000 targets take 9.6 GB, and their gradient as much. Here the
logits of some targets at a time exist, and the loss and its gradients are computed from them in the forward
pass (as in Liger, Hsu et al. 2024, arXiv:2410.10989). It is one autograd function outside of compiled code,
so no compiler sees its loop.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_NO_TARGET = -1


class TokenLosses(NamedTuple):
    """The MLM losses of M targets; only ``total`` has a gradient."""

    total: Tensor
    """fp32 scalar: the sum of the losses, and of z-loss."""
    losses: Tensor
    """fp32 [M], 0 where there is no target."""
    predicted: Tensor
    """int64 [M]: the most probable subword."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def chunked_token_losses(
    states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, chunk: int, z_loss: float = 0.0
) -> TokenLosses:
    """Cross-entropy of ``states`` [M, width] @ ``weight`` [V, width]^T + ``bias`` [V], for ``targets`` [M].

    Logits of ``chunk`` targets exist at a time. A target of -1 does not count. Products are in autocast's
    type, all else is fp32, as with all logits at once.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    # The casts are differentiable: gradients return in the type of the parameters.
    with torch.autocast(device, enabled=False):
        found = _Losses.apply(states, weight, bias, targets, chunk, z_loss, dtype)  # type: ignore[no-untyped-call]
        return TokenLosses(*found)


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor,
        chunk: int, z_loss: float, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        context.types = states.dtype, weight.dtype, bias.dtype
        narrow, table, offset = states.to(dtype), weight.to(dtype), bias.to(dtype)
        total = torch.zeros((), device=states.device)
        losses = torch.empty(targets.shape[0], device=states.device)
        predicted = torch.empty_like(targets)
        wanted = any(context.needs_input_grad)
        by_state = torch.empty_like(narrow) if wanted else None
        by_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        by_bias = torch.zeros_like(bias, dtype=torch.float32) if wanted else None
        for first in range(0, targets.shape[0], chunk):
            part = slice(first, min(first + chunk, targets.shape[0]))
            logits = F.linear(narrow[part], table, offset)
            predicted[part] = logits.argmax(-1)
            logits = logits.float()
            real = (targets[part] != _NO_TARGET).float()
            label = targets[part].clamp(min=0)[:, None]
            log_sums = logits.logsumexp(-1)
            losses[part] = (log_sums - logits.gather(1, label)[:, 0]) * real
            total += losses[part].sum() + z_loss * (log_sums**2 * real).sum()
            if by_state is None or by_weight is None or by_bias is None:
                continue
            # d total / d logits = softmax x (1 + 2 z log_sum) - one_hot, in place of the logits.
            gradient = logits.sub_(log_sums[:, None]).exp_()
            gradient *= ((1 + 2 * z_loss * log_sums) * real)[:, None]
            gradient.scatter_add_(1, label, -real[:, None])
            by_bias += gradient.sum(0)
            narrow_gradient = gradient.to(dtype)
            by_state[part] = narrow_gradient @ table
            by_weight += narrow_gradient.T @ narrow[part]
        context.save_for_backward(by_state, by_weight, by_bias)
        context.mark_non_differentiable(losses, predicted)
        return total, losses, predicted

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = [
            (gradient * gradients[0]).to(dtype) if needed else None
            for gradient, dtype, needed in zip(
                context.saved_tensors, context.types, context.needs_input_grad, strict=False
            )
        ]
        return (*found, None, None, None, None)
