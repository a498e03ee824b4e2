"""The two sublayers of an encoder layer, attention and feed-forward, each with its backward pass.

Plain functions on bf16 tensors [T, width]. ``layer`` puts norms and residual sums around them. Gradients of
matrices and biases are fp32. The formulas are those of trainer/model/encoder.py.

The last layer of an encoder computes only the hidden states that are used, those of N of the T tokens. Their
``Queries`` attend to the keys and values of all.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.kernels.activations import geglu, geglu_backward, gelu_backward
from trainer.kernels.attention import (
    Attended,
    AttentionSpec,
    Queries,
    QueryKeyValue,
    Sequences,
    attention_backward,
    attention_forward,
)
from trainer.kernels.matmuls import (
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


def take_rows(x: Tensor, used: Queries | None) -> Tensor:
    """The rows [N, width] of ``x`` [T, width] that are ``used``, or ``x`` itself for None."""
    return x if used is None else x.index_select(0, used.tokens)


def put_rows(dy: Tensor, used: Queries | None, tokens: int) -> Tensor:
    """The gradient [``tokens``, width] of x for that of take_rows(x, used), or ``dy`` itself for None.

    The sum is exact, in any order, where at most two of the rows of a token have a gradient other than 0.
    No more have one in pretraining: a token is masked once and is first once, and fillers have none.
    """
    if used is None:
        return dy
    return torch.zeros(tokens, dy.shape[1], dtype=dy.dtype, device=dy.device).index_add_(0, used.tokens, dy)


def attend(
    x: Tensor, query_rows: Tensor, qkv: Linear, output: Linear,
    sequences: Sequences, spec: AttentionSpec, used: Queries | None,
) -> tuple[Tensor, Attended]:  # fmt: skip
    """Multi-head attention of x [T, width] and ``query_rows``, its rows [N, width] that are ``used``.

    Returns [N, width] and what its backward pass needs.
    """
    if used is None:
        inputs = QueryKeyValue.of_product(linear(x, qkv.weight, qkv.bias))
    else:
        query, kv = _parts(qkv)
        inputs = QueryKeyValue(linear(query_rows, query.weight, query.bias), linear(x, kv.weight, kv.bias))
    mixed, logsum = attention_forward(inputs, sequences, spec, used)
    return linear(mixed, output.weight, output.bias), Attended(*inputs, mixed, logsum)


def _parts(qkv: Linear) -> tuple[Linear, Linear]:
    """The layer of queries, and that of keys and values."""
    width = qkv.weight.shape[1]
    first, second = slice(0, width), slice(width, 3 * width)
    return (
        Linear(qkv.weight[first], None if qkv.bias is None else qkv.bias[first]),
        Linear(qkv.weight[second], None if qkv.bias is None else qkv.bias[second]),
    )


def attend_backward(
    dy: Tensor, x: Tensor, query_rows: Tensor, attended: Attended, qkv: Linear, output: Linear,
    sequences: Sequences, spec: AttentionSpec, used: Queries | None, residual: Tensor | None,
) -> SublayerGradients:  # fmt: skip
    """The gradients of attend for ``dy`` [N, width]. That of x includes what comes through ``query_rows``.

    ``residual`` is a gradient of ``query_rows`` from elsewhere, overwritten.
    """
    (tokens, width), has_bias = x.shape, qkv.bias is not None
    d_output = weight_gradient(dy, attended.out)
    d_mixed = input_gradient(dy, output.weight)
    if used is None:
        dqkv = torch.empty(tokens, 3 * width, dtype=x.dtype, device=x.device)
        into = QueryKeyValue.of_product(dqkv)
        d_bias = attention_backward(d_mixed, attended, into, sequences, spec, bias=has_bias)
        d_qkv = weight_gradient(dqkv, x)
        dx = _input_gradient(dqkv, qkv.weight, residual)
        return SublayerGradients(dx, d_qkv, d_bias, d_output)
    into = QueryKeyValue(*(torch.empty_like(tensor) for tensor in (attended.query, attended.kv)))
    d_bias = attention_backward(d_mixed, attended, into, sequences, spec, used, bias=has_bias)
    query, kv = _parts(qkv)
    d_qkv = torch.cat([weight_gradient(into.query, query_rows), weight_gradient(into.kv, x)])
    d_taken = _input_gradient(into.query, query.weight, residual)
    dx = add_input_gradient(put_rows(d_taken, used, tokens), into.kv, kv.weight)
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
    if up.bias is None:
        d_bias = None
    elif d_bias is None:
        d_bias = d_before.sum(0, dtype=torch.float32)
    d_up = weight_gradient(d_before, x)
    dx = _input_gradient(d_before, up.weight, residual)
    return SublayerGradients(dx, d_up, d_bias, d_down)


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
