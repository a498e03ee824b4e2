"""Triton kernels for attention within packed sequences, straight on the product of queries, keys and values.

Up to SHORT tokens one program holds a head of a sequence whole, forward and backward. Longer ones go in
blocks with a running softmax (Dao et al. 2022), backward with one kernel for keys and values and one for
queries: nothing is added with atomics, so equal input gives equal bits. Gradients are written where the
next product reads them, with their sums over tokens for the bias. Empty sequences cost nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SHORT = 128
SHORT_WARPS = 8
# Queries at a time, warps.
SHORT_BACK = (32, 4)
# Rows of queries, rows of keys, warps, stages of the loop: forward, keys and values, queries.
FORWARD = (64, 64, 4, 3)
KEYS = (64, 64, 4, 1)
QUERIES = (64, 32, 4, 3)
_DELTA_ROWS = 64
_LOG2_E = 1.4426950408889634


@triton.jit
def _head(pointer, first, place, valid, stride, offset, SIZE: tl.constexpr):
    """[rows, SIZE] of the columns from ``offset`` on, of the rows ``place`` of a sequence."""
    # Only the start of the sequence needs 64 bits.
    start = pointer + tl.cast(first, tl.int64) * stride + offset
    return tl.load(start + place * stride + tl.arange(0, SIZE)[None, :], mask=valid, other=0.0)


@triton.jit
def _put(pointer, value, first, place, valid, stride, offset, SIZE: tl.constexpr):
    """Stores what ``_head`` would load."""
    start = pointer + tl.cast(first, tl.int64) * stride + offset
    at = start + place * stride + tl.arange(0, SIZE)[None, :]
    tl.store(at, value.to(pointer.dtype.element_ty), mask=valid)


@triton.jit
def _short(
    qkv_ptr, out_ptr, logsum_ptr, bounds_ptr, tokens, width, scale, SIZE: tl.constexpr, ROWS: tl.constexpr
):
    """One head of one sequence. ``scale`` has the factor log2(e) in it; ``logsum`` as of ``_long``."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(bounds_ptr + sequence)
    length = tl.load(bounds_ptr + sequence + 1) - first
    if length > 0:
        offset = head * SIZE
        row = tl.arange(0, ROWS)
        place, valid = row[:, None], row[:, None] < length
        query = _head(qkv_ptr, first, place, valid, 3 * width, offset, SIZE)
        key = _head(qkv_ptr, first, place, valid, 3 * width, offset + width, SIZE)
        value = _head(qkv_ptr, first, place, valid, 3 * width, offset + 2 * width, SIZE)
        logits = tl.where(row[None, :] < length, tl.dot(query, tl.trans(key)), -1e30)
        largest = tl.max(logits, 1) * scale
        weights = tl.exp2(logits * scale - largest[:, None])
        total = tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value) * (1.0 / total)[:, None]
        _put(out_ptr, mixed, first, place, valid, width, offset, SIZE)
        tl.store(logsum_ptr + head * tokens + first + row, largest + tl.log2(total), mask=row < length)


@triton.jit
def _short_back(
    qkv_ptr, dout_ptr, logsum_ptr, dqkv_ptr, sums_ptr, bounds_ptr, tokens, width, scale, plain_scale,
    SIZE: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of one sequence, QUERIES queries at a time, and their sums over the sequence."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(bounds_ptr + sequence)
    length = tl.load(bounds_ptr + sequence + 1) - first
    if length > 0:
        offset = head * SIZE
        place = tl.arange(0, ROWS)[:, None]
        valid = place < length
        key = _head(qkv_ptr, first, place, valid, 3 * width, offset + width, SIZE)
        value = _head(qkv_ptr, first, place, valid, 3 * width, offset + 2 * width, SIZE)
        d_key = tl.zeros((ROWS, SIZE), tl.float32)
        d_value = tl.zeros((ROWS, SIZE), tl.float32)
        query_sum = tl.zeros((SIZE,), tl.float32)
        for begin in range(0, length, QUERIES):
            row = begin + tl.arange(0, QUERIES)
            other, inside = row[:, None], row[:, None] < length
            query = _head(qkv_ptr, first, other, inside, 3 * width, offset, SIZE)
            dout = _head(dout_ptr, first, other, inside, width, offset, SIZE)
            logsum = tl.load(logsum_ptr + head * tokens + first + row, mask=row < length, other=float("inf"))
            # Keys and values beyond the end are 0; what their weights add is cut off below.
            weights = tl.exp2(tl.dot(query, tl.trans(key)) * scale - logsum[:, None])
            d_value = tl.dot(tl.trans(weights.to(dout.dtype)), dout, d_value)
            d_weights = tl.dot(dout, tl.trans(value))
            level = tl.sum(weights * d_weights, 1)[:, None]
            d_logits = (weights * (d_weights - level)).to(dout.dtype)
            d_query = tl.dot(d_logits, key) * plain_scale
            d_key = tl.dot(tl.trans(d_logits), query, d_key)
            _put(dqkv_ptr, d_query, first, other, inside, 3 * width, offset, SIZE)
            query_sum += tl.sum(d_query, 0)
        d_key = tl.where(valid, d_key * plain_scale, 0.0)
        d_value = tl.where(valid, d_value, 0.0)
        _put(dqkv_ptr, d_key, first, place, valid, 3 * width, offset + width, SIZE)
        _put(dqkv_ptr, d_value, first, place, valid, 3 * width, offset + 2 * width, SIZE)
        sums = sums_ptr + sequence * 3 * width + offset + tl.arange(0, SIZE)
        tl.store(sums, query_sum)
        tl.store(sums + width, tl.sum(d_key, 0))
        tl.store(sums + 2 * width, tl.sum(d_value, 0))


@triton.jit
def _long(
    qkv_ptr, out_ptr, logsum_ptr, bounds_ptr, tokens, width, scale,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one head of one sequence; ``logsum`` in base 2, fp32 [heads, tokens]."""
    start, sequence, head = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    first = tl.load(bounds_ptr + sequence)
    length = tl.load(bounds_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        place = start + tl.arange(0, ROWS)[:, None]
        valid = place < length
        query = _head(qkv_ptr, first, place, valid, 3 * width, offset, SIZE)
        largest = tl.full((ROWS,), -1e30, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, SIZE), tl.float32)
        for begin in range(0, length, KEYS):
            other = begin + tl.arange(0, KEYS)[:, None]
            key = _head(qkv_ptr, first, other, other < length, 3 * width, offset + width, SIZE)
            value = _head(qkv_ptr, first, other, other < length, 3 * width, offset + 2 * width, SIZE)
            logits = tl.dot(query, tl.trans(key))
            logits = tl.where(begin + tl.arange(0, KEYS)[None, :] < length, logits, -1e30)
            now = tl.maximum(largest, tl.max(logits, 1) * scale)
            weights = tl.exp2(logits * scale - now[:, None])
            fade = tl.exp2(largest - now)
            total = total * fade + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None])
            largest = now
        _put(out_ptr, mixed * (1.0 / total)[:, None], first, place, valid, width, offset, SIZE)
        row = start + tl.arange(0, ROWS)
        tl.store(logsum_ptr + head * tokens + first + row, largest + tl.log2(total), mask=row < length)


@triton.jit
def _delta(out_ptr, dout_ptr, delta_ptr, tokens, width, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """The sum of out times dout over each head, fp32 [heads, tokens]."""
    row, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    place, valid = row[:, None], row[:, None] < tokens
    out = _head(out_ptr, 0, place, valid, width, head * SIZE, SIZE).to(tl.float32)
    dout = _head(dout_ptr, 0, place, valid, width, head * SIZE, SIZE).to(tl.float32)
    tl.store(delta_ptr + head * tokens + row, tl.sum(out * dout, 1), mask=row < tokens)


@triton.jit
def _long_back_keys(
    qkv_ptr, dout_ptr, logsum_ptr, delta_ptr, dqkv_ptr, sums_ptr, bounds_ptr,
    tokens, width, scale, plain_scale, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of KEYS keys and values of one head of one sequence."""
    start, sequence, head = tl.program_id(0) * KEYS, tl.program_id(1), tl.program_id(2)
    first = tl.load(bounds_ptr + sequence)
    length = tl.load(bounds_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        place = start + tl.arange(0, KEYS)[:, None]
        valid = place < length
        key = _head(qkv_ptr, first, place, valid, 3 * width, offset + width, SIZE)
        value = _head(qkv_ptr, first, place, valid, 3 * width, offset + 2 * width, SIZE)
        d_key = tl.zeros((KEYS, SIZE), tl.float32)
        d_value = tl.zeros((KEYS, SIZE), tl.float32)
        of_head = head * tokens + first
        for begin in range(0, length, ROWS):
            other = begin + tl.arange(0, ROWS)
            query = _head(qkv_ptr, first, other[:, None], other[:, None] < length, 3 * width, offset, SIZE)
            dout = _head(dout_ptr, first, other[:, None], other[:, None] < length, width, offset, SIZE)
            # Infinite beyond the end: a weight of 0.
            logsum = tl.load(logsum_ptr + of_head + other, mask=other < length, other=float("inf"))
            delta = tl.load(delta_ptr + of_head + other, mask=other < length, other=0.0)
            weights = tl.exp2(tl.dot(key, tl.trans(query)) * scale - logsum[None, :])
            d_value = tl.dot(weights.to(dout.dtype), dout, d_value)
            d_weights = tl.dot(value, tl.trans(dout))
            d_logits = weights * (d_weights - delta[None, :])
            d_key = tl.dot(d_logits.to(query.dtype), query, d_key)
        d_key = tl.where(valid, d_key * plain_scale, 0.0)
        d_value = tl.where(valid, d_value, 0.0)
        _put(dqkv_ptr, d_key, first, place, valid, 3 * width, offset + width, SIZE)
        _put(dqkv_ptr, d_value, first, place, valid, 3 * width, offset + 2 * width, SIZE)
        line = tl.program_id(0) * tl.num_programs(1) + sequence
        sums = sums_ptr + line * 3 * width + offset + tl.arange(0, SIZE)
        tl.store(sums + width, tl.sum(d_key, 0))
        tl.store(sums + 2 * width, tl.sum(d_value, 0))


@triton.jit
def _long_back_queries(
    qkv_ptr, dout_ptr, logsum_ptr, delta_ptr, dqkv_ptr, sums_ptr, bounds_ptr,
    tokens, width, scale, plain_scale, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of ROWS queries of one head of one sequence."""
    start, sequence, head = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    first = tl.load(bounds_ptr + sequence)
    length = tl.load(bounds_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        row = start + tl.arange(0, ROWS)
        place, valid = row[:, None], row[:, None] < length
        query = _head(qkv_ptr, first, place, valid, 3 * width, offset, SIZE)
        dout = _head(dout_ptr, first, place, valid, width, offset, SIZE)
        of_head = head * tokens + first
        logsum = tl.load(logsum_ptr + of_head + row, mask=row < length, other=float("inf"))
        delta = tl.load(delta_ptr + of_head + row, mask=row < length, other=0.0)
        d_query = tl.zeros((ROWS, SIZE), tl.float32)
        for begin in range(0, length, KEYS):
            other = begin + tl.arange(0, KEYS)[:, None]
            key = _head(qkv_ptr, first, other, other < length, 3 * width, offset + width, SIZE)
            value = _head(qkv_ptr, first, other, other < length, 3 * width, offset + 2 * width, SIZE)
            # Keys beyond the end are 0, and so is what they add to the gradient.
            weights = tl.exp2(tl.dot(query, tl.trans(key)) * scale - logsum[:, None])
            d_logits = weights * (tl.dot(dout, tl.trans(value)) - delta[:, None])
            d_query = tl.dot(d_logits.to(key.dtype), key, d_query)
        d_query = tl.where(valid, d_query * plain_scale, 0.0)
        _put(dqkv_ptr, d_query, first, place, valid, 3 * width, offset, SIZE)
        line = tl.program_id(0) * tl.num_programs(1) + sequence
        tl.store(sums_ptr + line * 3 * width + offset + tl.arange(0, SIZE), tl.sum(d_query, 0))


def attend(qkv: Tensor, bounds: Tensor, max_seqlen: int, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of packed bf16 [T, 3 width] -> [T, width]; and the logarithms of the sums, for backward.

    ``bounds`` int32 [n + 1] cut the tokens into sequences of at most ``max_seqlen``. The logarithms are
    fp32 [heads, T], in base 2.
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
    size, sequences = width // heads, bounds.shape[0] - 1
    scale = size**-0.5 * _LOG2_E
    logsum = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
    if max_seqlen <= SHORT:
        rows = max(16, triton.next_power_of_2(max_seqlen))
        _short[(sequences, heads)](
            qkv, out, logsum, bounds, tokens, width, scale,
            SIZE=size, ROWS=rows, num_warps=SHORT_WARPS if rows > 64 else 4,
        )  # fmt: skip
        return out, logsum
    rows, keys, warps, stages = FORWARD
    _long[(triton.cdiv(max_seqlen, rows), sequences, heads)](
        qkv, out, logsum, bounds, tokens, width, scale,
        SIZE=size, ROWS=rows, KEYS=keys, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, logsum


def attend_backward(
    dout: Tensor, out: Tensor, logsum: Tensor, qkv: Tensor, bounds: Tensor, max_seqlen: int, heads: int
) -> tuple[Tensor, Tensor]:
    """Gradients of qkv, bf16 [T, 3 width], and of a bias that was added to all its rows, fp32.

    ``out`` and ``logsum`` are what attend gave.
    """
    width, sequences, size = qkv.shape[1] // 3, bounds.shape[0] - 1, qkv.shape[1] // 3 // heads
    dqkv, scale = torch.empty_like(qkv), size**-0.5
    if max_seqlen > SHORT:
        return dqkv, _long_backward(dout, out, logsum, qkv, dqkv, bounds, max_seqlen, heads)
    # Zeros: empty sequences write nothing.
    sums = torch.zeros(sequences, 3 * width, dtype=torch.float32, device=qkv.device)
    rows = max(16, triton.next_power_of_2(max_seqlen))
    _short_back[(sequences, heads)](
        qkv, dout, logsum, dqkv, sums, bounds, qkv.shape[0], width, scale * _LOG2_E, scale,
        SIZE=size, ROWS=rows, QUERIES=min(rows, SHORT_BACK[0]), num_warps=SHORT_BACK[1] if rows > 64 else 4,
    )  # fmt: skip
    return dqkv, sums.sum(0)


def _long_backward(
    dout: Tensor,
    out: Tensor,
    logsum: Tensor,
    qkv: Tensor,
    dqkv: Tensor,
    bounds: Tensor,
    longest: int,
    heads: int,
) -> Tensor:
    """Fills ``dqkv``; its sums over tokens."""
    tokens, width, sequences = qkv.shape[0], qkv.shape[1] // 3, bounds.shape[0] - 1
    size = width // heads
    scale = size**-0.5
    delta = torch.empty_like(logsum)
    _delta[(triton.cdiv(tokens, _DELTA_ROWS), heads)](
        out, dout, delta, tokens, width, SIZE=size, ROWS=_DELTA_ROWS
    )
    blocks = triton.cdiv(longest, min(KEYS[1], QUERIES[0]))
    sums = torch.zeros(blocks * sequences, 3 * width, dtype=torch.float32, device=qkv.device)
    rest = (qkv, dout, logsum, delta, dqkv, sums, bounds, tokens, width, scale * _LOG2_E, scale)
    rows, keys, warps, stages = KEYS
    _long_back_keys[(triton.cdiv(longest, keys), sequences, heads)](
        *rest, SIZE=size, ROWS=rows, KEYS=keys, num_warps=warps, num_stages=stages
    )
    rows, keys, warps, stages = QUERIES
    _long_back_queries[(triton.cdiv(longest, rows), sequences, heads)](
        *rest, SIZE=size, ROWS=rows, KEYS=keys, num_warps=warps, num_stages=stages
    )
    return sums.sum(0)
