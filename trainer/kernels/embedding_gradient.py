"""The gradient of an embedding table, summed in a fixed order.

torch's `embedding_dense_backward` gives different bits in every run for more than 3,072 tokens (torch 2.11 on
an H100). This module sorts the tokens by word with a stable sort. Programs sum chunks of the sorted tokens.
The gradient of a word with tokens in several chunks is the sum of its parts, in order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Sorted tokens per program. One program must not sum all of [MASK], which is an eighth of all tokens.
_CHUNK = 128
_COLUMNS, _WARPS = 256, 2


@triton.jit
def _sum_chunk(
    ids_ptr, order_ptr, rows_ptr, table_ptr, parts_ptr, tokens, width,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums the rows of each word in a chunk: into the table if the chunk has all of its tokens.

    Otherwise into the chunk's two parts: the first for a word that began before it, the second for one that
    continues after it.
    """
    chunk = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    first = chunk * CHUNK
    last = tl.minimum(first + CHUNK, tokens)
    parts = parts_ptr + tl.cast(chunk, tl.int64) * 2 * width + column
    current = tl.load(ids_ptr + first)
    began_before = current == tl.load(ids_ptr + first - 1, mask=first > 0, other=-1)
    total = tl.zeros((COLUMNS,), tl.float32)
    for token in range(first, last):
        word = tl.load(ids_ptr + token)
        if word != current:
            target = table_ptr + current * width + column
            if began_before:
                target = parts
            tl.store(target, total, mask=inside)
            total = tl.zeros((COLUMNS,), tl.float32)
            current = word
            began_before = word < 0  # false: no word is negative
        row = tl.load(order_ptr + token)
        total += tl.load(rows_ptr + row * width + column, mask=inside, other=0.0)
    goes_on = current == tl.load(ids_ptr + last, mask=last < tokens, other=-1)
    target = table_ptr + current * width + column
    if began_before:
        target = parts
    elif goes_on:
        target = parts + width
    tl.store(target, total, mask=inside)


@triton.jit
def _join_chunks(ids_ptr, table_ptr, parts_ptr, tokens, width, CHUNK: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums the parts of the word that starts in a chunk and continues after it, if any."""
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    first = chunk * CHUNK
    last = tl.minimum(first + CHUNK, tokens)
    current = tl.load(ids_ptr + last - 1)
    goes_on = current == tl.load(ids_ptr + last, mask=last < tokens, other=-1)
    began_before = current == tl.load(ids_ptr + first - 1, mask=first > 0, other=-1)
    if goes_on & (began_before == 0):
        parts = parts_ptr + column
        total = tl.load(parts + tl.cast(chunk, tl.int64) * 2 * width + width, mask=inside, other=0.0)
        other = chunk + 1
        word = current
        while word == current:
            total += tl.load(parts + tl.cast(other, tl.int64) * 2 * width, mask=inside, other=0.0)
            other += 1
            word = tl.load(ids_ptr + other * CHUNK, mask=other < chunks, other=-1)
        tl.store(table_ptr + current * width + column, total, mask=inside)


def embedding_gradient(rows: Tensor, ids: Tensor, size: int) -> Tensor:
    """The sums fp32 [size, width] of ``rows`` fp32 [T, width] by ``ids`` int64 [T], below ``size``."""
    tokens, width = rows.shape
    table = torch.zeros(size, width, dtype=torch.float32, device=rows.device)
    ordered, order = torch.sort(ids, stable=True)
    chunks = triton.cdiv(tokens, _CHUNK)
    parts = torch.empty(chunks, 2, width, dtype=torch.float32, device=rows.device)
    grid = (chunks, triton.cdiv(width, _COLUMNS))
    _sum_chunk[grid](
        ordered, order, rows, table, parts, tokens, width, CHUNK=_CHUNK, COLUMNS=_COLUMNS, num_warps=_WARPS
    )
    _join_chunks[grid](ordered, table, parts, tokens, width, CHUNK=_CHUNK, COLUMNS=_COLUMNS, num_warps=_WARPS)
    return table
