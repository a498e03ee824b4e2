"""Attention within packed sequences, directly on products of queries, keys and values.

The kernels read queries, keys and values where the products left them, and write gradients where the next
products read them. Sequences of up to SHORT tokens have separate kernels. Attention of some tokens only, as
in the last layer of pretraining, takes those for longer sequences.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trainer.kernels.device import shared_memory
from trainer.kernels.long_attention import (
    long_backward_keys,
    long_backward_queries,
    long_forward,
)
from trainer.kernels.short_attention import short_backward, short_forward
from trainer.kernels.tiles import rotate_in_place

SHORT = 128
_SHORT_WARPS = 8
# Queries at a time, warps, stages of the loop: the fastest of several on an H200.
_SHORT_BACKWARD = (32, 4, 3)
# Rows of queries, rows of keys, warps, stages of the loop: the fastest of several on an H100.
_FORWARD = (64, 64, 4, 3)
_BACKWARD_KEYS = (64, 64, 4, 1)
_BACKWARD_QUERIES = (64, 32, 4, 3)
# The same where only some tokens have a query: the fastest on an H200 with 20 and 79 queries per sequence.
# Forward, the rows are as many as a sequence has on average, within these limits.
_SOME_FORWARD_ROWS = (32, 128)
_SOME_BACKWARD_KEYS = (32, 128, 4, 1)
_ROTATE_ROWS, _ROTATE_PAIRS = 8, 256
_LOG2_E = 1.4426950408889634
_NO_LIMIT = 1 << 30


class Sequences(NamedTuple):
    """How packed tokens form sequences."""

    cu_seqlens: Tensor
    """int32 [n + 1]: sequence i is tokens cu_seqlens[i] : cu_seqlens[i + 1]."""
    max_seqlen: int
    """No sequence is longer."""
    positions: Tensor
    """int64 [T], from 0 in each sequence."""


class Queries(NamedTuple):
    """Some of the packed tokens. The output of attention has a row for each."""

    tokens: Tensor
    """int64 [N], indices of tokens, ascending."""
    bounds: Tensor
    """int64 [n + 1]: tokens[bounds[i] : bounds[i + 1]] belong to sequence i."""
    places: Tensor
    """int64 [N]: tokens[places] are the tokens in the order in which they were given."""

    @classmethod
    def of(cls, tokens: Tensor, cu_seqlens: Tensor) -> "Queries":
        """Those of ``tokens``, indices into the sequences that ``cu_seqlens`` [n + 1] bounds.

        >>> Queries.of(torch.tensor([5, 1, 2]), torch.tensor([0, 2, 6]))
        Queries(tokens=tensor([1, 2, 5]), bounds=tensor([0, 1, 3]), places=tensor([2, 0, 1]))
        """
        # Stable, because the order of equal tokens is the order of their terms in a gradient.
        ascending, order = tokens.sort(stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return cls(ascending, torch.searchsorted(ascending, cu_seqlens.long()), places)


class QueryKeyValue(NamedTuple):
    """Queries, keys and values, or their gradients, bf16. Rows may be parts of longer ones."""

    query: Tensor
    """[N, width]."""
    kv: Tensor
    """[T, 2 width]: keys, then values."""

    @classmethod
    def of_product(cls, qkv: Tensor) -> "QueryKeyValue":
        """Those in the rows of a product [T, 3 width]."""
        width = qkv.shape[1] // 3
        return cls(qkv[:, :width], qkv[:, width:])


class AttentionSpec(NamedTuple):
    """What an attention layer computes."""

    heads: int
    window: tuple[int, int] = (-1, -1)
    """Tokens before and after itself that a token sees, or -1 for no limit."""
    rotary: Tensor | None = None
    """fp32 [max_seqlen, head size] of rotary_cache, or None for no rotation."""

    @property
    def limits(self) -> tuple[int, int]:
        """The window for the kernels."""
        before, after = (_NO_LIMIT if limit < 0 else limit for limit in self.window)
        return before, after

    @property
    def limited(self) -> bool:
        """Whether a token may see less than its whole sequence."""
        return self.window != (-1, -1)


def rotary_cache(size: int, base: float, max_seqlen: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: fp32 [max_seqlen, size] for heads of ``size``.

    The same angles as trainer.model.attention.rotary_table.
    """
    steps = torch.arange(0, size, 2, device=device, dtype=torch.float32)
    angles = torch.arange(max_seqlen, device=device, dtype=torch.float32)[:, None] * base ** (-steps / size)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _stages(stages: int, size: int, kept_rows: int, loop_rows: int, device: torch.device) -> int:
    """How many of ``stages`` fit into shared memory, at two bf16 tiles of ``loop_rows`` for each stage.

    Heads of 128 with three stages take 112 KB, more than GPUs other than A100 and H100 have.
    """
    room = shared_memory(device) - kept_rows * size * 2
    return max(1, min(stages, room // (2 * loop_rows * size * 2)))


def _tiles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles [rows, columns] of ``matrix``, for the copy engine."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def attention_forward(
    inputs: QueryKeyValue, sequences: Sequences, spec: AttentionSpec, queries: Queries | None = None
) -> tuple[Tensor, Tensor]:
    """Attention [N, width] of ``queries``, or of all tokens, and the log of the softmax sums for backward.

    The logs are fp32 [heads, N], in base 2. Where the kernels for longer sequences run, rotary positions turn
    the queries and keys of ``inputs`` in place.
    """
    query, kv = inputs
    (count, width), n = query.shape, sequences.cu_seqlens.shape[0] - 1
    out = torch.empty(count, width, dtype=query.dtype, device=query.device)
    logsum = torch.empty(spec.heads, count, dtype=torch.float32, device=query.device)
    size = width // spec.heads
    scale = size**-0.5 * _LOG2_E
    if queries is None and sequences.max_seqlen <= SHORT:
        rows = max(16, triton.next_power_of_2(sequences.max_seqlen))
        short_forward[(n, spec.heads)](
            query, kv, logsum if spec.rotary is None else spec.rotary, out, logsum, sequences.cu_seqlens,
            count, width, query.stride(0), scale, *spec.limits,
            ROTARY=spec.rotary is not None, WINDOW=spec.limited, SIZE=size, ROWS=rows,
            num_warps=_SHORT_WARPS if rows > 64 else 4,
        )  # fmt: skip
        return out, logsum
    if spec.rotary is not None:
        positions = sequences.positions
        _rotate(query, positions if queries is None else positions[queries.tokens], spec.rotary)
        _rotate(kv[:, :width], positions, spec.rotary)
    rows, keys, warps, stages = _FORWARD
    if queries is not None:
        least, most = _SOME_FORWARD_ROWS
        rows = max(least, min(most, triton.next_power_of_2(triton.cdiv(count, n))))
    tokens, bounds, _ = queries or (sequences.cu_seqlens,) * 3
    long_forward[(triton.cdiv(sequences.max_seqlen, rows), n, spec.heads)](
        query, kv, tokens, out, logsum, sequences.cu_seqlens, bounds,
        count, width, query.stride(0), kv.stride(0), scale, *spec.limits,
        SOME=queries is not None, WINDOW=spec.limited, SIZE=size, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, rows, keys, query.device),
    )  # fmt: skip
    return out, logsum


def _rotate(matrix: Tensor, positions: Tensor, table: Tensor) -> None:
    """Turns all heads in the rows of ``matrix``, in place."""
    rows, width = matrix.shape
    grid = (triton.cdiv(rows, _ROTATE_ROWS), triton.cdiv(width // 2, _ROTATE_PAIRS))
    rotate_in_place[grid](
        matrix, positions, table, rows, width // 2, matrix.stride(0),
        SIZE=table.shape[1], ROWS=_ROTATE_ROWS, PAIRS=_ROTATE_PAIRS,
    )  # fmt: skip


class Attended(NamedTuple):
    """Inputs and outputs of attention_forward that its backward pass needs."""

    query: Tensor
    kv: Tensor
    out: Tensor
    logsum: Tensor


def attention_backward(
    dout: Tensor, attended: Attended, into: QueryKeyValue, sequences: Sequences, spec: AttentionSpec,
    queries: Queries | None = None, *, bias: bool,
) -> Tensor | None:  # fmt: skip
    """Fills ``into`` with the gradients of the inputs, for that of the output [N, width].

    ``into`` must have the strides of the inputs. Returns, if ``bias``, the gradient of a bias of all
    queries, keys and values, fp32 [3 width].
    """
    # The kernels sum gradients of rotated queries and keys: those of a bias come before the rotation.
    by_kernel = bias and spec.rotary is None
    if queries is None and sequences.max_seqlen <= SHORT:
        sums = _short_backward(dout, attended, into, sequences, spec, sums=by_kernel)
    else:
        sums = _long_backward(dout, attended, into, sequences, spec, queries, sums=by_kernel)
    if bias and spec.rotary is not None:
        return torch.cat([part.sum(0, dtype=torch.float32) for part in into])
    return sums


def _short_backward(
    dout: Tensor, attended: Attended, into: QueryKeyValue, sequences: Sequences, spec: AttentionSpec,
    *, sums: bool,
) -> Tensor | None:  # fmt: skip
    """Fills ``into`` and returns, if ``sums``, its sums over tokens."""
    width, count = dout.shape[1], sequences.cu_seqlens.shape[0] - 1
    size = width // spec.heads
    scale = size**-0.5
    rows = max(16, triton.next_power_of_2(sequences.max_seqlen))
    # Zeros: empty sequences write nothing.
    partial = torch.zeros(count if sums else 1, 3 * width, dtype=torch.float32, device=dout.device)
    queries, warps, stages = min(rows, _SHORT_BACKWARD[0]), *_SHORT_BACKWARD[1:]
    # Rotated queries are not loaded by the copy engine, and stages of them would take shared memory.
    stages = _stages(stages if spec.rotary is None else 1, size, 2 * rows, queries, dout.device)
    short_backward[(count, spec.heads)](
        _tiles(attended.query, queries, size), _tiles(dout, queries, size), attended.query, attended.kv,
        partial if spec.rotary is None else spec.rotary, attended.logsum, *into, partial,
        sequences.cu_seqlens, dout.shape[0], width, attended.query.stride(0),
        scale * _LOG2_E, scale, *spec.limits,
        ROTARY=spec.rotary is not None, WINDOW=spec.limited, SUMS=sums,
        SIZE=size, ROWS=rows, QUERIES=queries, STAGES=stages, num_warps=warps if size <= 64 else 8,
    )  # fmt: skip
    return partial.sum(0) if sums else None


def _long_backward(
    dout: Tensor, attended: Attended, into: QueryKeyValue, sequences: Sequences, spec: AttentionSpec,
    queries: Queries | None, *, sums: bool,
) -> Tensor | None:  # fmt: skip
    """Like _short_backward, for sequences longer than SHORT and for some tokens' queries."""
    (count, width), n, longest = dout.shape, sequences.cu_seqlens.shape[0] - 1, sequences.max_seqlen
    size, device = width // spec.heads, dout.device
    scale = size**-0.5
    delta = torch.empty_like(attended.logsum)
    some, stride = queries is not None, attended.query.stride(0)
    of_keys = _SOME_BACKWARD_KEYS if some else _BACKWARD_KEYS
    lines = triton.cdiv(longest, min(of_keys[1], _BACKWARD_QUERIES[0])) * n if sums else 1
    partial = torch.zeros(lines, 3 * width, dtype=torch.float32, device=device)
    table = partial if spec.rotary is None else spec.rotary
    tokens, bounds, _ = queries or (sequences.cu_seqlens,) * 3
    numbers = (scale * _LOG2_E, scale, *spec.limits)
    flags = {"SOME": some, "ROTARY": spec.rotary is not None, "WINDOW": spec.limited, "SIZE": size}
    # First, because it computes delta.
    rows, keys, warps, stages = _BACKWARD_QUERIES
    long_backward_queries[(triton.cdiv(longest, rows), n, spec.heads)](
        _tiles(attended.kv, keys, size), attended.query, table, tokens, attended.out, dout,
        attended.logsum, delta, into.query, partial, sequences.cu_seqlens, bounds,
        count, width, stride, *numbers,
        **flags, SUMS=sums and not some, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, 2 * rows, keys, device),
    )  # fmt: skip
    rows, keys, warps, stages = of_keys
    long_backward_keys[(triton.cdiv(longest, keys), n, spec.heads)](
        attended.query, attended.kv, table, tokens, dout,
        attended.logsum, delta, into.kv, partial, sequences.cu_seqlens, bounds,
        count, width, stride, attended.kv.stride(0), *numbers,
        **flags, SUMS=sums, ROWS=rows, KEYS=keys,
        num_warps=warps, num_stages=_stages(stages, size, 2 * keys, rows, device),
    )  # fmt: skip
    if not sums:
        return None
    total = partial.sum(0)
    if some:
        total[:width] = into.query.sum(0, dtype=torch.float32)
    return total
