"""The two sublayers of an encoder layer, attention and feed-forward, each with its backward pass.

Plain functions on bf16 tensors [T, width]. ``layer`` puts norms and residual sums around them. Gradients of
matrices and biases are fp32. The formulas are those of trainer/model/encoder.py.

The last layer of an encoder goes on after attention with the N of T tokens whose hidden states are used:
``rows`` int64 [N] are their indices.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.kernels.activations import geglu, geglu_backward, gelu_backward
from trainer.kernels.attention import (
    Attended,
    AttentionSpec,
    Sequences,
    attention_backward,
    attention_forward,
)
from trainer.kernels.products import (
    add_input_gradient,
    gelu_input_gradient,
    input_gradient,
    linear,
    linear_gelu,
    weight_gradient,
)

Activation = Literal["gelu", "gelu_tanh", "geglu"]


class Linear(NamedTuple):
    """A linear layer: weight bf16 [n, k] and bias bf16 [n]."""

    weight: Tensor
    bias: Tensor | None


class SublayerGradients(NamedTuple):
    """Gradients of a sublayer's input, bf16 [T, width], and of its parameters, fp32. None without a bias.

    The bias of the last product is missing, because the norm's backward pass sums its gradient.
    """

    x: Tensor
    first_weight: Tensor
    first_bias: Tensor | None
    second_weight: Tensor


def take_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """The ``rows`` [N, width] of ``x`` [T, width], or ``x`` itself for None."""
    return x if rows is None else x.index_select(0, rows)


def put_rows(dy: Tensor, rows: Tensor | None, tokens: int) -> Tensor:
    """The gradient [``tokens``, width] of x for that of take_rows(x, rows), or ``dy`` itself for None.

    The sum is exact, in any order, where at most two of the rows of a token have a gradient other than 0.
    No more have one in pretraining: a token is masked once and is first once, and fillers have none.
    """
    if rows is None:
        return dy
    return torch.zeros(tokens, dy.shape[1], dtype=dy.dtype, device=dy.device).index_add_(0, rows, dy)


def attend(
    x: Tensor, qkv: Linear, output: Linear, sequences: Sequences, spec: AttentionSpec, rows: Tensor | None
) -> tuple[Tensor, Attended]:
    """Multi-head attention [T, width] -> [N, width] of ``rows``, and what its backward pass needs."""
    product = linear(x, qkv.weight, qkv.bias)
    mixed, logsum = attention_forward(product, sequences, spec)
    attended = Attended(product, mixed, logsum)
    return linear(take_rows(mixed, rows), output.weight, output.bias), attended


def attend_backward(
    dy: Tensor, x: Tensor, attended: Attended, qkv: Linear, output: Linear,
    sequences: Sequences, spec: AttentionSpec, rows: Tensor | None, residual: Tensor | None,
) -> SublayerGradients:  # fmt: skip
    """The gradients of attend for ``dy`` [N, width].

    ``residual`` is a gradient of x [T, width] from elsewhere, overwritten.
    """
    d_output = weight_gradient(dy, take_rows(attended.out, rows))
    d_mixed = put_rows(input_gradient(dy, output.weight), rows, x.shape[0])
    dqkv, d_bias = attention_backward(d_mixed, attended, sequences, spec, bias=qkv.bias is not None)
    d_qkv = weight_gradient(dqkv, x)
    dx = _input_gradient(dqkv, qkv.weight, residual)
    return SublayerGradients(dx, d_qkv, d_bias, d_output)


class Fed(NamedTuple):
    """What the feed-forward sublayer keeps: its activation's argument and result."""

    before: Tensor
    inner: Tensor


def feed_forward(x: Tensor, up: Linear, down: Linear, activation: Activation) -> tuple[Tensor, Fed]:
    """Up, activation, down: [T, width] -> [T, width], and what its backward pass needs."""
    if activation == "gelu_tanh" and up.bias is not None:
        inner, before = linear_gelu(x, up.weight, up.bias)
    else:
        before = linear(x, up.weight, up.bias)
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        inner = geglu(before) if activation == "geglu" else F.gelu(before, approximate=approximate)
    return linear(inner, down.weight, down.bias), Fed(before, inner)


def feed_forward_backward(
    dy: Tensor, x: Tensor, fed: Fed, up: Linear, down: Linear, activation: Activation, residual: Tensor | None
) -> SublayerGradients:
    """The gradients of feed_forward for ``dy``. ``residual`` is that of attend_backward."""
    d_down = weight_gradient(dy, fed.inner)
    d_before, d_bias = _activation_backward(dy, fed, down, activation)
    if up.bias is not None and d_bias is None:
        d_bias = d_before.sum(0, dtype=d_down.dtype)
    d_up = weight_gradient(d_before, x)
    dx = _input_gradient(d_before, up.weight, residual)
    return SublayerGradients(dx, d_up, d_bias if up.bias is not None else None, d_down)


def _activation_backward(
    dy: Tensor, fed: Fed, down: Linear, activation: Activation
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the activation's argument, and its sum over rows if that needs no separate pass."""
    if activation == "gelu_tanh":
        d_before = gelu_input_gradient(dy, down.weight, fed.before)
        if d_before is not None:
            return d_before, None
    d_inner = input_gradient(dy, down.weight)
    if activation == "geglu":
        return geglu_backward(d_inner, fed.before), None
    return gelu_backward(d_inner, fed.before, tanh=activation == "gelu_tanh")


def _input_gradient(dy: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    if residual is None:
        return input_gradient(dy, weight)
    return add_input_gradient(residual, dy, weight)
