"""Encoder layers as single differentiable functions with as few passes over memory as possible.

torch.compile keeps several passes apart that are one pass here: residual sum, dropout and norm
(`norms`), GELU in the epilogue of its product (`products`), rotation and gradients of queries, keys and
values where the next product reads them (`attention`), sums over tokens for biases inside the kernels that
read the tokens anyway. Hidden states between layers are bf16, statistics and sums fp32, and gradients of
matrices leave their product in fp32. The formulas are those of trainer/model/encoder.py.

A post-norm layer maps hidden states to hidden states. A pre-norm layer maps a residual sum and the last
branch, not yet added to it, to the same two, so that adding a branch and the norm after it are one pass.

Either layer with ``used``, N of the tokens, returns only the hidden states of these. It computes keys and
values of all tokens and everything else of the N alone. Dropout draws its masks by their places among the N.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.kernels.attention import Attended, AttentionSpec, Queries, Sequences
from trainer.kernels.dropout import Dropout, draw_dropout
from trainer.kernels.embedding_gradient import embedding_gradient
from trainer.kernels.embeddings import Tables, embed_norm, embed_norm_backward
from trainer.kernels.norms import (
    Norm,
    Normed,
    add_norm,
    add_norm_backward,
    plain_norm,
    plain_norm_backward,
    residual_norm,
    residual_norm_backward,
)
from trainer.kernels.sublayers import (
    Activation,
    Fed,
    Linear,
    attend,
    attend_backward,
    feed_forward,
    feed_forward_backward,
    put_rows,
    take_rows,
)


class LayerSpec(NamedTuple):
    """What a layer computes, apart from its tensors."""

    attention: AttentionSpec
    activation: Activation
    eps: float
    dropout: float
    dtype: torch.dtype = torch.bfloat16
    """Of hidden states and products. Tests use fp32, because Triton's interpreter has no bf16 products."""
    keeps_copies: bool = True
    """Whether the weights in ``dtype`` stay until the backward pass, which otherwise makes them again."""


class _Weights(NamedTuple):
    """The parameters of a layer, fp32. The gain of a missing first norm (pre-norm) is None."""

    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    attention_gain: Tensor | None
    attention_norm_bias: Tensor | None
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    feed_gain: Tensor
    feed_norm_bias: Tensor | None

    @classmethod
    def of(cls, layer: Any) -> "_Weights":
        """Those of a trainer.model.encoder.Layer."""
        attention, feed = layer.attention, layer.feed_forward
        first, second = layer.attention_norm, layer.feed_forward_norm
        no_norm = isinstance(first, nn.Identity)
        return cls(
            attention.qkv.weight, attention.qkv.bias, attention.output.weight, attention.output.bias,
            None if no_norm else first.weight, None if no_norm else first.bias,
            feed.up.weight, feed.up.bias, feed.down.weight, feed.down.bias, second.weight, second.bias,
        )  # fmt: skip


class _Linears(NamedTuple):
    """The four linear layers in bf16."""

    qkv: Linear
    output: Linear
    up: Linear
    down: Linear


def _linears(weights: _Weights, dtype: torch.dtype) -> _Linears:
    """Copies in ``dtype`` of the matrices and their biases, made by one kernel."""
    fp32 = [*weights[0:4], *weights[6:10]]
    present = [tensor for tensor in fp32 if tensor is not None]
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in present]
    torch._foreach_copy_(copies, present)
    copy = iter(copies)
    narrow = [None if tensor is None else next(copy) for tensor in fp32]
    pairs = [(narrow[i], narrow[i + 1]) for i in (0, 2, 4, 6)]
    return _Linears(*(Linear(weight, bias) for weight, bias in pairs if weight is not None))


def _kept(linears: _Linears, spec: LayerSpec) -> list[Tensor | None]:
    """What of the copies stays until the backward pass."""
    return [tensor if spec.keeps_copies else None for linear in linears for tensor in linear]


def _restored(kept: list[Any], weights: _Weights, spec: LayerSpec) -> _Linears:
    """The copies that ``kept`` holds, or new ones."""
    if not spec.keeps_copies:
        return _linears(weights, spec.dtype)
    return _Linears(*(Linear(kept[i], kept[i + 1]) for i in (0, 2, 4, 6)))


class _PostNormLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sequences: Sequences, spec: LayerSpec, used: Queries | None, *parameters: Tensor
    ) -> Tensor:
        """bf16 [T, width] -> [N, width]. ``parameters`` are those of _Weights."""
        weights = _Weights(*parameters)
        linears = _linears(weights, spec.dtype)
        drops = draw_dropout(spec.dropout), draw_dropout(spec.dropout)
        query_rows = take_rows(x, used)
        attended, saved = attend(x, query_rows, linears.qkv, linears.output, sequences, spec.attention, used)
        assert weights.attention_gain is not None  # noqa: S101 - a post-norm layer always has both norms
        norm = Norm(weights.attention_gain, weights.attention_norm_bias, spec.eps)
        middle = add_norm(query_rows, attended, norm, drops[0])
        fed, kept = feed_forward(middle.y, linears.up, linears.down, spec.activation)
        last = add_norm(middle.y, fed, Norm(weights.feed_gain, weights.feed_norm_bias, spec.eps), drops[1])
        ctx.sequences, ctx.spec, ctx.drops, ctx.used = sequences, spec, drops, used
        ctx.save_for_backward(
            x, *saved, attended, *middle, *kept, fed, last.mean, last.scale, *_kept(linears, spec),
            *parameters,
        )  # fmt: skip
        return last.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        saved = ctx.saved_tensors
        x, *mixed, attended, y1, mean1, scale1, before, inner, fed, mean2, scale2 = saved[:14]
        rest = saved[14:]
        spec: LayerSpec = ctx.spec
        weights, used = _Weights(*rest[8:]), ctx.used
        linears = _restored(rest[:8], weights, spec)
        norm = Norm(weights.feed_gain, weights.feed_norm_bias, spec.eps)
        last = add_norm_backward(dy.contiguous(), y1, fed, norm, Normed(y1, mean2, scale2), ctx.drops[1])
        # In place: the gradient along the residual and the one through the sublayer are one sum. Without
        # dropout last.branch is the same tensor, but has been used by then.
        feed = feed_forward_backward(
            last.branch, y1, Fed(before, inner), linears.up, linears.down, spec.activation, last.x
        )
        assert weights.attention_gain is not None  # noqa: S101 - as in forward
        norm = Norm(weights.attention_gain, weights.attention_norm_bias, spec.eps)
        normed = Normed(y1, mean1, scale1)
        query_rows = take_rows(x, used)
        first = add_norm_backward(feed.x, query_rows, attended, norm, normed, ctx.drops[0])
        attention = attend_backward(
            first.branch, x, query_rows, Attended(*mixed), linears.qkv, linears.output,
            ctx.sequences, spec.attention, used, first.x,
        )  # fmt: skip
        return (
            attention.x, None, None, None,
            attention.first_weight, attention.first_bias, attention.second_weight, first.branch_bias,
            first.gain, first.bias,
            feed.first_weight, feed.first_bias, feed.second_weight, last.branch_bias,
            last.gain, last.bias,
        )  # fmt: skip


class _PreNormLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor | None, sequences: Sequences, spec: LayerSpec,
        used: Queries | None, *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """A residual sum and a branch to be added to it, bf16 [T, width], to the same after this layer."""
        weights = _Weights(*parameters)
        linears = _linears(weights, spec.dtype)
        drops = draw_dropout(spec.dropout), draw_dropout(spec.dropout)
        if weights.attention_gain is None:
            total, first = residual, Normed(residual, residual, residual)
        else:
            norm = Norm(weights.attention_gain, weights.attention_norm_bias, spec.eps)
            if branch is None:
                total, first = residual, plain_norm(residual, norm)
            else:
                total, first = residual_norm(residual, branch, norm, drops[0])
        attended, saved = attend(
            first.y, take_rows(first.y, used), linears.qkv, linears.output, sequences, spec.attention, used
        )
        norm = Norm(weights.feed_gain, weights.feed_norm_bias, spec.eps)
        middle, second = residual_norm(take_rows(total, used), attended, norm, drops[1])
        fed, kept = feed_forward(second.y, linears.up, linears.down, spec.activation)
        ctx.sequences, ctx.spec, ctx.drops, ctx.used = sequences, spec, drops, used
        ctx.adds = branch is not None
        ctx.save_for_backward(
            total, *first, *saved, middle, *second, *kept, *_kept(linears, spec), *parameters
        )
        # The sum itself and not a view: the caller's autograd sees two outputs of one function.
        return middle, fed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_residual: Tensor, d_branch: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        saved = ctx.saved_tensors
        total, y1, mean1, scale1, *mixed, middle, y2, mean2, scale2, before, inner = saved[:14]
        rest = saved[14:]
        spec: LayerSpec = ctx.spec
        weights, used = _Weights(*rest[8:]), ctx.used
        linears = _restored(rest[:8], weights, spec)
        dy = d_branch.contiguous()
        feed = feed_forward_backward(
            dy, y2, Fed(before, inner), linears.up, linears.down, spec.activation, None
        )
        norm = Norm(weights.feed_gain, weights.feed_norm_bias, spec.eps)
        d_down_bias = None if weights.down_bias is None else dy.sum(0, dtype=torch.float32)
        second = residual_norm_backward(
            feed.x, d_residual.contiguous(), middle, norm, Normed(y2, mean2, scale2), ctx.drops[1]
        )
        gain = weights.attention_gain
        attention = attend_backward(
            second.branch, y1, take_rows(y1, used), Attended(*mixed), linears.qkv, linears.output,
            ctx.sequences, spec.attention, used, second.x if gain is None else None,
        )  # fmt: skip
        d_total, d_before, d_gain, d_bias = attention.x, None, None, None
        if gain is not None:
            d_residual = put_rows(second.x, used, total.shape[0])
            norm = Norm(gain, weights.attention_norm_bias, spec.eps)
            normed = Normed(y1, mean1, scale1)
            if ctx.adds:
                first = residual_norm_backward(attention.x, d_residual, total, norm, normed, ctx.drops[0])
                d_before = first.branch
            else:
                first = plain_norm_backward(attention.x, d_residual, total, norm, normed)
            d_total, d_gain, d_bias = first.x, first.gain, first.bias
        return (
            d_total, d_before, None, None, None,
            attention.first_weight, attention.first_bias, attention.second_weight, second.branch_bias,
            d_gain, d_bias,
            feed.first_weight, feed.first_bias, feed.second_weight, d_down_bias,
            second.gain, second.bias,
        )  # fmt: skip


class _FinalNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor, eps: float, dropout: Dropout,
        gain: Tensor, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """norm(residual + dropout(branch)), bf16 [T, width]."""
        normed = add_norm(residual, branch, Norm(gain, bias, eps), dropout)
        ctx.eps, ctx.dropout = eps, dropout
        ctx.save_for_backward(residual, branch, normed.mean, normed.scale, gain, bias)
        return normed.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        residual, branch, mean, scale, gain, bias = ctx.saved_tensors
        normed = Normed(residual, mean, scale)
        norm = Norm(gain, bias, ctx.eps)
        gradients = add_norm_backward(dy.contiguous(), residual, branch, norm, normed, ctx.dropout)
        return gradients.x, gradients.branch, None, None, gradients.gain, gradients.bias


class _Embeddings(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, segments: Tensor, sequences: Sequences, spec: LayerSpec,
        *parameters: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """[T, width]. ``parameters``: gain, bias, tables of words, positions and segments."""
        gain, bias, word, position, segment = parameters
        assert gain is not None and word is not None  # noqa: PT018, S101 - for mypy
        tables = Tables(ids, sequences.positions, segments, word, position, segment)
        ctx.sequences, ctx.eps, ctx.dropout = sequences, spec.eps, draw_dropout(spec.dropout)
        ctx.save_for_backward(*tables, gain, bias)
        return embed_norm(tables, Norm(gain, bias, spec.eps), ctx.dropout, spec.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        *parts, gain, bias = ctx.saved_tensors
        tables, sequences = Tables(*parts), ctx.sequences
        gradients = embed_norm_backward(
            dy.contiguous(), tables, sequences.cu_seqlens, sequences.max_seqlen,
            Norm(gain, bias, ctx.eps), ctx.dropout,
        )  # fmt: skip
        d_word = embedding_gradient(gradients.total, tables.ids, tables.word.shape[0])
        d_position = None
        if tables.position is not None:
            d_position = torch.zeros_like(tables.position)
            d_position[: sequences.max_seqlen] = gradients.positions
        d_segment = None if tables.segment is None else gradients.segments
        d_bias = None if bias is None else gradients.bias
        return None, None, None, None, gradients.gain, d_bias, d_word, d_position, d_segment


def fused_post_norm_layer(
    x: Tensor, sequences: Sequences, spec: LayerSpec, used: Queries | None, layer: Any
) -> Tensor:
    """The output bf16 [T, width] of ``layer``, a post-norm encoder.Layer, for contiguous x bf16 [T, width].

    Only that of ``used`` tokens, bf16 [N, width], if they are given. Raises BertmillError when cuBLASLt
    refuses.
    """
    y: Tensor = _PostNormLayer.apply(  # type: ignore[no-untyped-call]  # torch's
        x, sequences, spec, used, *_Weights.of(layer)
    )
    return y


def fused_pre_norm_layer(
    residual: Tensor, branch: Tensor | None, sequences: Sequences, spec: LayerSpec, used: Queries | None,
    layer: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The residual sum and the branch to be added to it, bf16 [T, width], after a pre-norm encoder.Layer.

    Only those of ``used`` tokens, bf16 [N, width], if they are given. ``branch`` is None for the first layer.
    Raises BertmillError when cuBLASLt refuses.
    """
    residual, branch = _PreNormLayer.apply(  # type: ignore[no-untyped-call]  # torch's
        residual, branch, sequences, spec, used, *_Weights.of(layer)
    )
    return residual, branch


def fused_final_norm(residual: Tensor, branch: Tensor, spec: LayerSpec, norm: Any) -> Tensor:
    """The norm, bf16 [rows, width], of the residual sum with its last branch added to it."""
    y: Tensor = _FinalNorm.apply(  # type: ignore[no-untyped-call]  # torch's
        residual, branch, spec.eps, draw_dropout(spec.dropout), norm.weight, norm.bias
    )
    return y


def fused_embeddings(
    ids: Tensor, segments: Tensor, sequences: Sequences, spec: LayerSpec, embeddings: Any
) -> Tensor:
    """The normed sum bf16 [T, width] of ``embeddings``, an encoder.Embeddings, before any projection.

    Its table of segments, if there is one, must have two rows.
    """
    position = None if embeddings.position is None else embeddings.position.weight
    segment = None if embeddings.segment is None else embeddings.segment.weight
    y: Tensor = _Embeddings.apply(  # type: ignore[no-untyped-call]  # torch's
        ids, segments, sequences, spec, embeddings.norm.weight, embeddings.norm.bias,
        embeddings.word.weight, position, segment,
    )  # fmt: skip
    return y
