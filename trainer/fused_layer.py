"""A post-norm layer of BERT as one differentiable function, with as few passes over memory as there must be.

What torch.compile leaves apart is together here: GELU lies in the epilogue of its product
(trainer/cublaslt.py), sums over tokens for biases and norms in the kernels that read those tokens anyway
(trainer/fused_kernels.py), and the gradients of queries, keys and values are written where the next product
reads them (trainer/fused_attention.py). The hidden states between layers are bf16, statistics and sums fp32;
gradients of matrices leave their product in fp32. The formulas are those of trainer/encoder.py.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer import fused_kernels as kernels
from trainer.cublaslt import gelu_product
from trainer.fused_attention import attend, attend_backward
from trainer.fused_kernels import Drop

_SEEDS = 1 << 31


class Shape(NamedTuple):
    """What a layer is told beside its tensors."""

    heads: int
    eps: float
    max_seqlen: int
    dropout: float
    tanh: bool
    """GELU by tanh, in the epilogue; the exact one otherwise, in passes of its own."""


def draw(p: float) -> Drop:
    """Dropout with a seed from torch's generator of the CPU, which costs no wait for the device."""
    return Drop(p, int(torch.randint(_SEEDS, ())) if p > 0 else 0)


def _bf16(tensors: list[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return copies


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Dy' x in fp32."""
    return torch.mm(dy.t(), x, out_dtype=torch.float32)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bounds: Tensor, shape: Shape, *weights: Tensor) -> Tensor:
        """[T, width] -> [T, width]; ``weights`` as in ``fused_layer``."""
        matrices = [weights[i] for i in (0, 1, 2, 3, 6, 7, 8, 9)]
        qkv_w, qkv_b, out_w, out_b, up_w, up_b, down_w, down_b = _bf16(matrices)
        gain1, bias1, gain2, bias2 = (weights[i] for i in (4, 5, 10, 11))
        drops = draw(shape.dropout), draw(shape.dropout)
        qkv = torch.addmm(qkv_b, x, qkv_w.t())
        mixed, logsum = attend(qkv, bounds, shape.max_seqlen, shape.heads)
        attended = torch.addmm(out_b, mixed, out_w.t())
        middle = kernels.add_norm(x, attended, gain1, bias1, shape.eps, drops[0])
        if shape.tanh:
            inner, before = gelu_product(middle.y, up_w, up_b)
        else:
            before = torch.addmm(up_b, middle.y, up_w.t())
            inner = F.gelu(before)
        fed = torch.addmm(down_b, inner, down_w.t())
        last = kernels.add_norm(middle.y, fed, gain2, bias2, shape.eps, drops[1])
        ctx.shape, ctx.drops = shape, drops
        ctx.save_for_backward(
            x, bounds, qkv, mixed, logsum, attended, *middle, inner, before, fed, last.mean, last.scale,
            qkv_w, out_w, up_w, down_w, gain1, gain2,
        )  # fmt: skip
        return last.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        (x, bounds, qkv, mixed, logsum, attended, y1, mean1, scale1, inner, before, fed, mean2, scale2,
         qkv_w, out_w, up_w, down_w, gain1, gain2) = ctx.saved_tensors  # fmt: skip
        shape: Shape = ctx.shape
        normed = kernels.Normed(y1, mean2, scale2)
        last = kernels.add_norm_backward(dy.contiguous(), y1, fed, gain2, normed, ctx.drops[1])
        d_down = _weight_gradient(last.z, inner)
        d_before, d_up_b = kernels.gelu_backward(torch.mm(last.z, down_w), before, tanh=shape.tanh)
        d_up = _weight_gradient(d_before, y1)
        # In place: the gradient along the residual and the one through the product are one sum. Without
        # dropout last.z is the same tensor; it has been used already.
        d_middle = last.x.addmm_(d_before, up_w)
        del d_before
        normed = kernels.Normed(y1, mean1, scale1)
        first = kernels.add_norm_backward(d_middle, x, attended, gain1, normed, ctx.drops[0])
        d_out = _weight_gradient(first.z, mixed)
        d_mixed = torch.mm(first.z, out_w)
        dqkv, d_qkv_b = attend_backward(d_mixed, mixed, logsum, qkv, bounds, shape.max_seqlen, shape.heads)
        d_qkv = _weight_gradient(dqkv, x)
        dx = first.x.addmm_(dqkv, qkv_w)
        return (
            dx, None, None, d_qkv, d_qkv_b, d_out, first.before, first.gain, first.bias,
            d_up, d_up_b, d_down, last.before, last.gain, last.bias,
        )  # fmt: skip


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, positions: Tensor, segments: Tensor, bounds: Tensor, shape: Shape,
        *weights: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """bf16 [T, width]; ``weights``: gain, bias, tables of words, positions and segments."""
        gain, bias, word, position, segment = weights
        assert gain is not None and bias is not None and word is not None and position is not None  # noqa: PT018, S101 - for mypy
        tables = kernels.Tables(ids, positions, segments, word, position, segment)
        ctx.shape, ctx.drop = shape, draw(shape.dropout)
        ctx.save_for_backward(*tables, gain, bounds)
        return kernels.embed_norm(tables, gain, bias, shape.eps, ctx.drop)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of forward."""
        *parts, gain, bounds = ctx.saved_tensors
        tables, shape = kernels.Tables(*parts), ctx.shape
        found = kernels.embed_norm_backward(
            dy.contiguous(), tables, bounds, shape.max_seqlen, gain, shape.eps, ctx.drop
        )
        words = tables.word.shape[0]
        d_word = torch.ops.aten.embedding_dense_backward(found.total, tables.ids, words, -1, False)
        d_position = torch.zeros_like(tables.position)
        d_position[: shape.max_seqlen] = found.positions
        d_segment = None if tables.segment is None else found.segments
        return None, None, None, None, None, found.gain, found.bias, d_word, d_position, d_segment


def fused_layer(x: Tensor, bounds: Tensor, shape: Shape, layer: Any) -> Tensor:
    """The output bf16 [T, width] of ``layer``, a trainer.encoder.Layer, for contiguous x bf16 [T, width].

    ``bounds`` int32 [n + 1] cut the tokens into sequences. Raises BertmillError when cuBLASLt refuses.
    """
    attention, feed = layer.attention, layer.feed_forward
    norms = layer.attention_norm, layer.feed_forward_norm
    weights = [
        *(attention.qkv.weight, attention.qkv.bias, attention.output.weight, attention.output.bias),
        *(norms[0].weight, norms[0].bias, feed.up.weight, feed.up.bias, feed.down.weight, feed.down.bias),
        *(norms[1].weight, norms[1].bias),
    ]
    y: Tensor = _Layer.apply(  # type: ignore[no-untyped-call]  # torch's
        x, bounds, shape, *weights
    )
    return y


def fused_embeddings(
    ids: Tensor, segments: Tensor, positions: Tensor, bounds: Tensor, shape: Shape, embeddings: Any
) -> Tensor:
    """The output bf16 [T, width] of ``embeddings``, a trainer.encoder.Embeddings without projection.

    Its table of segments, if there is one, must have two rows; positions count from 0 in each sequence.
    """
    segment = None if embeddings.segment is None else embeddings.segment.weight
    y: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]  # torch's
        ids, positions, segments, bounds, shape, embeddings.norm.weight, embeddings.norm.bias,
        embeddings.word.weight, embeddings.position.weight, segment,
    )  # fmt: skip
    return y
