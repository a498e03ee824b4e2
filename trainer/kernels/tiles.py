"""Parts that all attention kernels share: loading, rotating and storing the rows of one head, and masks."""

import triton
import triton.language as tl


@triton.jit
def load_head(pointer, first, row, valid, stride, offset, SIZE: tl.constexpr):
    """[rows, SIZE] of the columns from ``offset`` on, of the rows ``row`` [rows, 1] of a sequence."""
    # Only the start of the sequence needs 64 bits.
    start = pointer + tl.cast(first, tl.int64) * stride + offset
    return tl.load(start + row * stride + tl.arange(0, SIZE)[None, :], mask=valid, other=0.0)


@triton.jit
def load_rotated(pointer, table_ptr, first, row, valid, stride, offset, SIZE: tl.constexpr):
    """``load_head`` turned by the angle of each row: column i is paired with i + SIZE / 2 (Su et al. 2021).

    A row of the table holds SIZE / 2 cosines, then as many sines.
    """
    half: tl.constexpr = SIZE // 2
    column = tl.arange(0, SIZE)[None, :]
    start = pointer + tl.cast(first, tl.int64) * stride + offset + row * stride
    value = tl.load(start + column, mask=valid, other=0.0).to(tl.float32)
    partner = tl.load(start + (column + half) % SIZE, mask=valid, other=0.0).to(tl.float32)
    angle = table_ptr + row * SIZE + column % half
    cosine = tl.load(angle, mask=valid, other=0.0)
    sine = tl.load(angle + half, mask=valid, other=0.0)
    return (value * cosine + partner * tl.where(column < half, -sine, sine)).to(pointer.dtype.element_ty)


@triton.jit
def load_query_or_key(
    pointer, table_ptr, first, row, valid, stride, offset, ROTATE: tl.constexpr, SIZE: tl.constexpr
):
    """``load_rotated`` if ROTATE, else ``load_head``."""
    if ROTATE:
        value = load_rotated(pointer, table_ptr, first, row, valid, stride, offset, SIZE)
    else:
        value = load_head(pointer, first, row, valid, stride, offset, SIZE)
    return value


@triton.jit
def store_head(pointer, value, first, row, valid, stride, offset, SIZE: tl.constexpr):
    """Stores ``value`` where ``load_head`` would load it from."""
    start = pointer + tl.cast(first, tl.int64) * stride + offset
    at = start + row * stride + tl.arange(0, SIZE)[None, :]
    tl.store(at, value.to(pointer.dtype.element_ty), mask=valid)


@triton.jit
def store_turned_back(
    pointer, value, table_ptr, first, row, position, valid, stride, offset,
    ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of rows that were rotated by their ``position``, for the gradient of the result."""
    half: tl.constexpr = SIZE // 2
    left, right = tl.split(tl.permute(tl.reshape(value, (ROWS, 2, half)), (0, 2, 1)))
    column = tl.arange(0, half)[None, :]
    angle = table_ptr + position * SIZE + column
    cosine = tl.load(angle, mask=valid, other=0.0)
    sine = tl.load(angle + half, mask=valid, other=0.0)
    at = pointer + tl.cast(first, tl.int64) * stride + offset + row * stride + column
    tl.store(at, (left * cosine + right * sine).to(pointer.dtype.element_ty), mask=valid)
    tl.store(at + half, (right * cosine - left * sine).to(pointer.dtype.element_ty), mask=valid)


@triton.jit
def store_gradient(
    pointer, value, table_ptr, first, row, position, valid, stride, offset,
    ROTATED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """``store_turned_back`` if ROTATED, else ``store_head``."""
    if ROTATED:
        store_turned_back(pointer, value, table_ptr, first, row, position, valid, stride, offset, ROWS, SIZE)
    else:
        store_head(pointer, value, first, row, valid, stride, offset, SIZE)


@triton.jit
def visible(query, key, length, before, after, WINDOW: tl.constexpr):
    """Whether the row ``query`` sees the row ``key``: inside the sequence and, if WINDOW, near enough."""
    seen = key < length
    if WINDOW:
        seen = seen & (key >= query - before) & (key <= query + after)
    return seen


@triton.jit
def rotate_in_place(
    pointer, positions_ptr, table_ptr, rows, pairs, stride,
    SIZE: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Turns the first 2 ``pairs`` columns of ROWS rows, PAIRS pairs at a time, by each row's position."""
    half: tl.constexpr = SIZE // 2
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)[None, :]
    valid = (row < rows) & (pair < pairs)
    position = tl.load(positions_ptr + row, mask=row < rows, other=0)
    angle = table_ptr + position * SIZE + pair % half
    cosine = tl.load(angle, mask=valid, other=0.0)
    sine = tl.load(angle + half, mask=valid, other=0.0)
    at = pointer + row.to(tl.int64) * stride + pair // half * SIZE + pair % half
    left = tl.load(at, mask=valid, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=valid, other=0.0).to(tl.float32)
    tl.store(at, (left * cosine - right * sine).to(pointer.dtype.element_ty), mask=valid)
    tl.store(at + half, (right * cosine + left * sine).to(pointer.dtype.element_ty), mask=valid)
