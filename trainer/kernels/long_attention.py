"""Triton kernels for attention in longer sequences: tiles with a running softmax (Dao et al. 2022).

The backward pass has one kernel for queries and one for keys and values, so nothing is added with atomics and
equal input gives equal bits. The first loads keys and values with the copy engine of the GPU (Triton's
tensor descriptors), which saves registers for addresses. With a window, tiles that no query of a program
sees are never loaded. Queries and keys are rotated before (``rotate_in_place``). Their gradients are turned
back when they are stored.
"""

import triton
import triton.language as tl

from trainer.kernels.tiles import load_head, store_gradient, store_head, visible


@triton.jit
def long_forward(
    qkv_ptr, out_ptr, logsum_ptr, cu_seqlens_ptr, tokens, width, scale, before, after,
    WINDOW: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one head of one sequence. ``logsum`` is in base 2, fp32 [heads, tokens]."""
    start, sequence, head = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        row = start + tl.arange(0, ROWS)
        rows, valid = row[:, None], row[:, None] < length
        query = load_head(qkv_ptr, first, rows, valid, 3 * width, offset, SIZE)
        largest = tl.full((ROWS,), -1e30, tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, SIZE), tl.float32)
        low, high = 0, length
        if WINDOW:
            low = tl.maximum(0, start - before) // KEYS * KEYS
            high = tl.minimum(length, start + ROWS + after)
        for begin in range(low, high, KEYS):
            keys = begin + tl.arange(0, KEYS)
            inside = keys[:, None] < length
            key = load_head(qkv_ptr, first, keys[:, None], inside, 3 * width, offset + width, SIZE)
            value = load_head(qkv_ptr, first, keys[:, None], inside, 3 * width, offset + 2 * width, SIZE)
            seen = visible(rows, keys[None, :], length, before, after, WINDOW)
            logits = tl.where(seen, tl.dot(query, tl.trans(key)), -1e30)
            now = tl.maximum(largest, tl.max(logits, 1) * scale)
            weights = tl.exp2(logits * scale - now[:, None])
            if WINDOW:
                # A row may see no key of a tile. Then both terms are about -1e29, and a fused multiply and
                # subtract may give any difference of them.
                weights = tl.where(seen, weights, 0.0)
            fade = tl.exp2(largest - now)
            total = total * fade + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None])
            largest = now
        store_head(out_ptr, mixed * (1.0 / total)[:, None], first, rows, valid, width, offset, SIZE)
        tl.store(logsum_ptr + head * tokens + first + row, largest + tl.log2(total), mask=row < length)


@triton.jit
def long_backward_keys(
    qkv_ptr, table_ptr, dout_ptr, logsum_ptr, delta_ptr, dqkv_ptr, sums_ptr, cu_seqlens_ptr,
    tokens, width, scale, plain_scale, before, after,
    ROTARY: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of KEYS keys and values of one head of one sequence."""
    start, sequence, head = tl.program_id(0) * KEYS, tl.program_id(1), tl.program_id(2)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        key_row = start + tl.arange(0, KEYS)
        keys, valid = key_row[:, None], key_row[:, None] < length
        key = load_head(qkv_ptr, first, keys, valid, 3 * width, offset + width, SIZE)
        value = load_head(qkv_ptr, first, keys, valid, 3 * width, offset + 2 * width, SIZE)
        d_key = tl.zeros((KEYS, SIZE), tl.float32)
        d_value = tl.zeros((KEYS, SIZE), tl.float32)
        of_head = head * tokens + first
        low, high = 0, length
        if WINDOW:
            low = tl.maximum(0, start - after) // ROWS * ROWS
            high = tl.minimum(length, start + KEYS + before)
        for begin in range(low, high, ROWS):
            row = begin + tl.arange(0, ROWS)
            inside = row[:, None] < length
            query = load_head(qkv_ptr, first, row[:, None], inside, 3 * width, offset, SIZE)
            dout = load_head(dout_ptr, first, row[:, None], inside, width, offset, SIZE)
            # Infinite beyond the end: a weight of 0.
            logsum = tl.load(logsum_ptr + of_head + row, mask=row < length, other=float("inf"))
            delta = tl.load(delta_ptr + of_head + row, mask=row < length, other=0.0)
            logits = tl.dot(key, tl.trans(query)) * scale
            if WINDOW:
                seen = visible(row[None, :], keys, length, before, after, WINDOW)
                logits = tl.where(seen, logits, float("-inf"))
            weights = tl.exp2(logits - logsum[None, :])
            d_value = tl.dot(weights.to(dout.dtype), dout, d_value)
            d_weights = tl.dot(value, tl.trans(dout))
            d_logits = weights * (d_weights - delta[None, :])
            d_key = tl.dot(d_logits.to(query.dtype), query, d_key)
        # Keys beyond the end have weights of any size, even infinite ones. Their gradient is left out here
        # instead of in the loop.
        d_key = tl.where(valid, d_key * plain_scale, 0.0)
        d_value = tl.where(valid, d_value, 0.0)
        store_gradient(
            dqkv_ptr, d_key, table_ptr, first, keys, valid, 3 * width, offset + width, ROTARY, KEYS, SIZE
        )
        store_head(dqkv_ptr, d_value, first, keys, valid, 3 * width, offset + 2 * width, SIZE)
        if SUMS:
            line = tl.program_id(0) * tl.num_programs(1) + sequence
            sums = sums_ptr + line * 3 * width + offset + tl.arange(0, SIZE)
            tl.store(sums + width, tl.sum(d_key, 0))
            tl.store(sums + 2 * width, tl.sum(d_value, 0))


@triton.jit
def long_backward_queries(
    tiles, qkv_ptr, table_ptr, out_ptr, dout_ptr, logsum_ptr, delta_ptr, dqkv_ptr, sums_ptr, cu_seqlens_ptr,
    tokens, width, scale, plain_scale, before, after,
    ROTARY: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of ROWS queries of one head of one sequence, and ``delta`` of them.

    ``delta`` fp32 [heads, tokens] is the sum over a head of its output times the gradient of the output.
    ``tiles`` describes tiles of KEYS rows of qkv.
    """
    start, sequence, head = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    if start < length:
        offset = head * SIZE
        row = start + tl.arange(0, ROWS)
        rows, valid = row[:, None], row[:, None] < length
        query = load_head(qkv_ptr, first, rows, valid, 3 * width, offset, SIZE)
        dout = load_head(dout_ptr, first, rows, valid, width, offset, SIZE)
        of_head = head * tokens + first
        logsum = tl.load(logsum_ptr + of_head + row, mask=row < length, other=float("inf"))
        out = load_head(out_ptr, first, rows, valid, width, offset, SIZE)
        delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
        tl.store(delta_ptr + of_head + row, delta, mask=row < length)
        d_query = tl.zeros((ROWS, SIZE), tl.float32)
        low, high = 0, length
        if WINDOW:
            low = tl.maximum(0, start - before) // KEYS * KEYS
            high = tl.minimum(length, start + ROWS + after)
        for begin in range(low, high, KEYS):
            keys = begin + tl.arange(0, KEYS)
            # Rows beyond the end are those of the next sequence, or zero.
            key = tiles.load([first + begin, offset + width])
            value = tiles.load([first + begin, offset + 2 * width])
            seen = visible(rows, keys[None, :], length, before, after, WINDOW)
            logits = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, float("-inf"))
            weights = tl.exp2(logits - logsum[:, None])
            d_logits = weights * (tl.dot(dout, tl.trans(value)) - delta[:, None])
            d_query = tl.dot(d_logits.to(key.dtype), key, d_query)
        d_query *= plain_scale
        store_gradient(
            dqkv_ptr, d_query, table_ptr, first, rows, valid, 3 * width, offset, ROTARY, ROWS, SIZE
        )
        if SUMS:
            line = tl.program_id(0) * tl.num_programs(1) + sequence
            sums = sums_ptr + line * 3 * width + offset + tl.arange(0, SIZE)
            tl.store(sums, tl.sum(d_query, 0))
