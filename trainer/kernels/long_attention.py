"""Triton kernels for attention in longer sequences: tiles with a running softmax (Dao et al. 2022).

The backward pass has one kernel for queries and one for keys and values, so nothing is added with atomics and
equal input gives equal bits. The first loads keys and values with the copy engine of the GPU (Triton's
tensor descriptors), which saves registers for addresses. With a window, tiles that no query of a program
sees are never loaded. Queries and keys are rotated before (``rotate_in_place``). Their gradients are turned
back when they are stored.

With SOME, only some tokens have a query. ``tokens`` int64 [N] are these tokens, ascending. Row i of the
queries, of the output and of their gradients belongs to token tokens[i], and rows bounds[i] : bounds[i + 1]
belong to sequence i. Without SOME, row i belongs to token i.
"""

import triton
import triton.language as tl

from trainer.kernels.tiles import load_head, store_gradient, store_head, visible


@triton.jit
def _queries_of(cu_seqlens_ptr, bounds_ptr, sequence, SOME: tl.constexpr):
    """The first token of a sequence, its length, its first query, and the number of its queries."""
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    first_query, count = first, length
    if SOME:
        first_query = tl.load(bounds_ptr + sequence)
        count = tl.load(bounds_ptr + sequence + 1) - first_query
    return first, length, first_query, count


@triton.jit
def _positions_of(tokens_ptr, first, first_query, count, query, SOME: tl.constexpr):
    """The positions of queries in their sequence."""
    position = query
    if SOME:
        token = tl.load(tokens_ptr + first_query + query, mask=query < count, other=0)
        position = (token - first).to(tl.int32)
    return position


@triton.jit
def _keys_of(start, inside, position, length, before, after, ROWS: tl.constexpr, SOME: tl.constexpr):
    """The first key that one of ROWS queries sees through a window, and the end of these keys."""
    lowest, highest = start, start + ROWS - 1
    if SOME:
        lowest = tl.min(tl.where(inside, position, length), 0)
        highest = tl.max(tl.where(inside, position, 0), 0)
    return tl.maximum(0, lowest - before), tl.minimum(length, highest + 1 + after)


@triton.jit
def _forward_tile(
    query_ptr, kv_ptr, tokens_ptr, out_ptr, logsum_ptr,
    first, length, first_query, count, start, head, queries, width, query_stride, kv_stride,
    scale, before, after,
    SOME: tl.constexpr, WINDOW: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS queries, from ``start`` on, of one head of one sequence."""
    offset = head * SIZE
    row = start + tl.arange(0, ROWS)
    inside = row < count
    position = _positions_of(tokens_ptr, first, first_query, count, row, SOME)
    rows, positions, valid = row[:, None], position[:, None], inside[:, None]
    query = load_head(query_ptr, first_query, rows, valid, query_stride, offset, SIZE)
    largest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, SIZE), tl.float32)
    low, high = 0, length
    if WINDOW:
        low, high = _keys_of(start, inside, position, length, before, after, ROWS, SOME)
        low = low // KEYS * KEYS
    for begin in range(low, high, KEYS):
        keys = begin + tl.arange(0, KEYS)
        real = keys[:, None] < length
        key = load_head(kv_ptr, first, keys[:, None], real, kv_stride, offset, SIZE)
        value = load_head(kv_ptr, first, keys[:, None], real, kv_stride, offset + width, SIZE)
        visible_keys = visible(positions, keys[None, :], length, before, after, WINDOW)
        logits = tl.where(visible_keys, tl.dot(query, tl.trans(key)), -1e30)
        now = tl.maximum(largest, tl.max(logits, 1) * scale)
        weights = tl.exp2(logits * scale - now[:, None])
        if WINDOW:
            # A row may see no key of a tile. Then both terms are about -1e29, and a fused multiply and
            # subtract may give any difference of them.
            weights = tl.where(visible_keys, weights, 0.0)
        fade = tl.exp2(largest - now)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None])
        largest = now
    store_head(out_ptr, mixed * (1.0 / total)[:, None], first_query, rows, valid, width, offset, SIZE)
    tl.store(logsum_ptr + head * queries + first_query + row, largest + tl.log2(total), mask=inside)


@triton.jit
def long_forward(
    query_ptr, kv_ptr, tokens_ptr, out_ptr, logsum_ptr, cu_seqlens_ptr, bounds_ptr,
    queries, width, query_stride, kv_stride, scale, before, after,
    SOME: tl.constexpr, WINDOW: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Queries of one head of one sequence. ``kv`` holds keys, then values.

    ``logsum`` is in base 2, fp32 [heads, queries].
    """
    sequence, head = tl.program_id(1), tl.program_id(2)
    first, length, first_query, count = _queries_of(cu_seqlens_ptr, bounds_ptr, sequence, SOME)
    start, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    # A sequence may have more queries than tokens, such as those of masked slots that only fill a shape.
    # Without SOME this loop would only cost registers.
    if SOME:
        for begin in tl.range(start, count, step, num_stages=1):
            _forward_tile(
                query_ptr, kv_ptr, tokens_ptr, out_ptr, logsum_ptr,
                first, length, first_query, count, begin, head, queries, width, query_stride, kv_stride,
                scale, before, after, SOME, WINDOW, SIZE, ROWS, KEYS,
            )  # fmt: skip
    elif start < count:
        _forward_tile(
            query_ptr, kv_ptr, tokens_ptr, out_ptr, logsum_ptr,
            first, length, first_query, count, start, head, queries, width, query_stride, kv_stride,
            scale, before, after, SOME, WINDOW, SIZE, ROWS, KEYS,
        )  # fmt: skip


@triton.jit
def long_backward_keys(
    query_ptr, kv_ptr, table_ptr, tokens_ptr, dout_ptr, logsum_ptr, delta_ptr, d_kv_ptr,
    sums_ptr, cu_seqlens_ptr, bounds_ptr,
    queries, width, query_stride, kv_stride, scale, plain_scale, before, after,
    SOME: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of KEYS keys and values of one head of one sequence. ``sums`` has a line for each program."""
    start, sequence, head = tl.program_id(0) * KEYS, tl.program_id(1), tl.program_id(2)
    first, length, first_query, count = _queries_of(cu_seqlens_ptr, bounds_ptr, sequence, SOME)
    if start < length:
        offset = head * SIZE
        key_row = start + tl.arange(0, KEYS)
        keys, valid = key_row[:, None], key_row[:, None] < length
        key = load_head(kv_ptr, first, keys, valid, kv_stride, offset, SIZE)
        value = load_head(kv_ptr, first, keys, valid, kv_stride, offset + width, SIZE)
        d_key = tl.zeros((KEYS, SIZE), tl.float32)
        d_value = tl.zeros((KEYS, SIZE), tl.float32)
        low, high = 0, count
        if WINDOW and not SOME:
            low = tl.maximum(0, start - after) // ROWS * ROWS
            high = tl.minimum(length, start + KEYS + before)
        for begin in range(low, high, ROWS):
            row = begin + tl.arange(0, ROWS)
            rows, inside = row[:, None], row < count
            query = load_head(query_ptr, first_query, rows, inside[:, None], query_stride, offset, SIZE)
            dout = load_head(dout_ptr, first_query, rows, inside[:, None], width, offset, SIZE)
            # Infinite beyond the end: a weight of 0.
            of_row = head * queries + first_query + row
            logsum = tl.load(logsum_ptr + of_row, mask=inside, other=float("inf"))
            delta = tl.load(delta_ptr + of_row, mask=inside, other=0.0)
            logits = tl.dot(key, tl.trans(query)) * scale
            if WINDOW:
                position = _positions_of(tokens_ptr, first, first_query, count, row, SOME)
                seen = visible(position[None, :], keys, length, before, after, WINDOW)
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
            d_kv_ptr, d_key, table_ptr, first, keys, keys, valid, kv_stride, offset, ROTARY, KEYS, SIZE
        )
        store_head(d_kv_ptr, d_value, first, keys, valid, kv_stride, offset + width, SIZE)
        if SUMS:
            line = tl.program_id(0) * tl.num_programs(1) + sequence
            sums = sums_ptr + line * 3 * width + offset + tl.arange(0, SIZE)
            tl.store(sums + width, tl.sum(d_key, 0))
            tl.store(sums + 2 * width, tl.sum(d_value, 0))


@triton.jit
def _backward_tile(
    tiles, query_ptr, table_ptr, tokens_ptr, out_ptr, dout_ptr, logsum_ptr, delta_ptr, d_query_ptr,
    first, length, first_query, count, start, head, queries, width, query_stride,
    scale, plain_scale, before, after,
    SOME: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Stores the gradients of ROWS queries and ``delta`` of them, and returns the sum of the gradients."""
    offset = head * SIZE
    row = start + tl.arange(0, ROWS)
    inside = row < count
    position = _positions_of(tokens_ptr, first, first_query, count, row, SOME)
    rows, positions, valid = row[:, None], position[:, None], inside[:, None]
    query = load_head(query_ptr, first_query, rows, valid, query_stride, offset, SIZE)
    dout = load_head(dout_ptr, first_query, rows, valid, width, offset, SIZE)
    of_row = head * queries + first_query + row
    logsum = tl.load(logsum_ptr + of_row, mask=inside, other=float("inf"))
    out = load_head(out_ptr, first_query, rows, valid, width, offset, SIZE)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    tl.store(delta_ptr + of_row, delta, mask=inside)
    d_query = tl.zeros((ROWS, SIZE), tl.float32)
    low, high = 0, length
    if WINDOW:
        low, high = _keys_of(start, inside, position, length, before, after, ROWS, SOME)
        low = low // KEYS * KEYS
    for begin in range(low, high, KEYS):
        keys = begin + tl.arange(0, KEYS)
        # Rows beyond the end are those of the next sequence, or zero.
        key = tiles.load([first + begin, offset])
        value = tiles.load([first + begin, offset + width])
        seen = visible(positions, keys[None, :], length, before, after, WINDOW)
        logits = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        weights = tl.exp2(logits - logsum[:, None])
        d_logits = weights * (tl.dot(dout, tl.trans(value)) - delta[:, None])
        d_query = tl.dot(d_logits.to(key.dtype), key, d_query)
    d_query *= plain_scale
    store_gradient(
        d_query_ptr, d_query, table_ptr, first_query, rows, positions, valid, query_stride, offset,
        ROTARY, ROWS, SIZE,
    )  # fmt: skip
    return tl.sum(d_query, 0)


@triton.jit
def long_backward_queries(
    tiles, query_ptr, table_ptr, tokens_ptr, out_ptr, dout_ptr, logsum_ptr, delta_ptr, d_query_ptr,
    sums_ptr, cu_seqlens_ptr, bounds_ptr, queries, width, query_stride, scale, plain_scale, before, after,
    SOME: tl.constexpr, ROTARY: tl.constexpr, WINDOW: tl.constexpr, SUMS: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries of one head of one sequence, and ``delta`` of them.

    ``delta`` fp32 [heads, queries] is the sum over a head of its output times the gradient of the output.
    ``tiles`` describes tiles of KEYS keys and values. ``sums``, if SUMS, has a line for each program.
    """
    sequence, head = tl.program_id(1), tl.program_id(2)
    first, length, first_query, count = _queries_of(cu_seqlens_ptr, bounds_ptr, sequence, SOME)
    start, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    if SOME:
        for begin in tl.range(start, count, step, num_stages=1):  # as in long_forward
            _backward_tile(
                tiles, query_ptr, table_ptr, tokens_ptr, out_ptr, dout_ptr, logsum_ptr, delta_ptr,
                d_query_ptr, first, length, first_query, count, begin, head, queries, width, query_stride,
                scale, plain_scale, before, after, SOME, ROTARY, WINDOW, SIZE, ROWS, KEYS,
            )  # fmt: skip
    elif start < count:
        query_sum = _backward_tile(
            tiles, query_ptr, table_ptr, tokens_ptr, out_ptr, dout_ptr, logsum_ptr, delta_ptr,
            d_query_ptr, first, length, first_query, count, start, head, queries, width, query_stride,
            scale, plain_scale, before, after, SOME, ROTARY, WINDOW, SIZE, ROWS, KEYS,
        )  # fmt: skip
        if SUMS:
            line = tl.program_id(0) * tl.num_programs(1) + sequence
            tl.store(sums_ptr + line * 3 * width + head * SIZE + tl.arange(0, SIZE), query_sum)
