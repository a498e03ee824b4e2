"""Triton kernels for attention in sequences of at most 128 tokens: one program holds a whole head.

Equal input gives equal bits: nothing is added with atomics. Empty sequences cost nothing.
"""

import triton
import triton.language as tl

from trainer.kernels.tiles import (
    load_head,
    load_query_or_key,
    load_rotated,
    store_gradient,
    store_head,
    visible,
)


@triton.jit
def short_forward(
    query_ptr, kv_ptr, table_ptr, out_ptr, logsum_ptr, cu_seqlens_ptr,
    tokens, width, stride, scale, before, after,
    ROTARY: tl.constexpr, WINDOW: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One head of one sequence. ``kv`` holds keys, then values.

    ``scale`` includes the factor log2(e). ``logsum`` is in base 2.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    if length > 0:
        offset = head * SIZE
        row = tl.arange(0, ROWS)
        rows, valid = row[:, None], row[:, None] < length
        query = load_query_or_key(query_ptr, table_ptr, first, rows, valid, stride, offset, ROTARY, SIZE)
        key = load_query_or_key(kv_ptr, table_ptr, first, rows, valid, stride, offset, ROTARY, SIZE)
        value = load_head(kv_ptr, first, rows, valid, stride, offset + width, SIZE)
        seen = visible(rows, row[None, :], length, before, after, WINDOW)
        logits = tl.where(seen, tl.dot(query, tl.trans(key)), -1e30)
        largest = tl.max(logits, 1) * scale
        weights = tl.exp2(logits * scale - largest[:, None])
        total = tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value) * (1.0 / total)[:, None]
        store_head(out_ptr, mixed, first, rows, valid, width, offset, SIZE)
        tl.store(logsum_ptr + head * tokens + first + row, largest + tl.log2(total), mask=row < length)


@triton.jit
def short_backward(
    query_tiles, dout_tiles, query_ptr, kv_ptr, table_ptr, logsum_ptr, d_query_ptr, d_kv_ptr, sums_ptr,
    cu_seqlens_ptr, tokens, width, stride, scale, plain_scale, before, after,
    ROTARY: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of one head of one sequence, QUERIES queries at a time, and their sums over tokens if SUMS.

    All products have keys as rows, so that each is large enough for the fastest instructions of Hopper
    (wgmma), and weights need not be transposed. The tiles describe QUERIES rows of queries and of dout.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    if length > 0:
        offset = head * SIZE
        key_row = tl.arange(0, ROWS)
        rows = key_row[:, None]
        valid = rows < length
        key = load_query_or_key(kv_ptr, table_ptr, first, rows, valid, stride, offset, ROTARY, SIZE)
        value = load_head(kv_ptr, first, rows, valid, stride, offset + width, SIZE)
        d_key = tl.zeros((ROWS, SIZE), tl.float32)
        d_value = tl.zeros((ROWS, SIZE), tl.float32)
        query_sum = tl.zeros((SIZE,), tl.float32)
        for begin in tl.range(0, length, QUERIES, num_stages=STAGES):
            row = begin + tl.arange(0, QUERIES)
            queries, inside = row[:, None], row[:, None] < length
            # Rows beyond the end are those of the next sequence, or zero.
            if ROTARY:
                query = load_rotated(query_ptr, table_ptr, first, queries, inside, stride, offset, SIZE)
            else:
                query = query_tiles.load([first + begin, offset])
            dout = dout_tiles.load([first + begin, offset])
            # Infinite beyond the end, for a weight of 0. Keys beyond the end are masked: their logit is 0,
            # which can lie so far above those of real keys that its weight would be infinite.
            logsum = tl.load(logsum_ptr + head * tokens + first + row, mask=row < length, other=float("inf"))
            seen = visible(row[None, :], rows, length, before, after, WINDOW)
            logits = tl.where(seen, tl.dot(key, tl.trans(query)) * scale, float("-inf"))
            weights = tl.exp2(logits - logsum[None, :])
            d_value = tl.dot(weights.to(dout.dtype), dout, d_value)
            d_weights = tl.dot(value, tl.trans(dout))
            level = tl.sum(weights * d_weights, 0)[None, :]
            d_logits = (weights * (d_weights - level)).to(dout.dtype)
            d_key = tl.dot(d_logits, query, d_key)
            d_query = tl.dot(tl.trans(d_logits), key) * plain_scale
            store_gradient(
                d_query_ptr, d_query, table_ptr, first, queries, queries, inside, stride, offset,
                ROTARY, QUERIES, SIZE,
            )  # fmt: skip
            if SUMS:
                query_sum += tl.sum(d_query, 0)
        d_key *= plain_scale
        store_gradient(
            d_kv_ptr, d_key, table_ptr, first, rows, rows, valid, stride, offset, ROTARY, ROWS, SIZE
        )
        store_head(d_kv_ptr, d_value, first, rows, valid, stride, offset + width, SIZE)
        if SUMS:
            sums = sums_ptr + sequence * 3 * width + offset + tl.arange(0, SIZE)
            tl.store(sums, query_sum)
            tl.store(sums + width, tl.sum(d_key, 0))
            tl.store(sums + 2 * width, tl.sum(d_value, 0))
