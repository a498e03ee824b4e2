"""How a shuffle divides its work: the number of map tasks, and runs of buckets with about equal bytes."""

from dataclasses import dataclass

import numpy as np

from schemas.arrays import I64

# The driver keeps and writes an offset for each map task and partition: 8 bytes, twice.
MOST_MAP_TASKS = 4096
MOST_PARTITIONS = 4096
_LEAST_PARTITIONS = 32
# A reduce task holds the stored bytes of its buckets. Smaller partitions mean more and smaller reads.
_PARTITION_BYTES = 64 << 20


@dataclass(frozen=True)
class Partition:
    """The buckets that one reduce task reads: ``first`` to ``last`` inclusive."""

    number: int
    first: int
    last: int
    bytes: int
    """Stored bytes of these buckets in all data files."""


def partition_count(stored_bytes: float, buckets: int) -> int:
    """The number of partitions that a shuffle of ``stored_bytes`` in ``buckets`` non-empty buckets aims at.

    >>> partition_count(1e12, 23_550), partition_count(1e9, 4)
    (4096, 4)
    """
    wanted = -(-int(stored_bytes) // _PARTITION_BYTES)
    return min(max(_LEAST_PARTITIONS, wanted), MOST_PARTITIONS, buckets)


def plan_partitions(sizes: I64, pending: I64) -> list[Partition]:
    """The pending buckets (ascending) in runs of neighbors with about equal bytes.

    ``sizes`` [buckets] are the stored bytes of every bucket. A partition exceeds the average by at most the
    bytes of a bucket.

    >>> sizes = np.array([64, 64, 64, 64]) << 20
    >>> [(one.first, one.last) for one in plan_partitions(sizes, np.array([0, 1, 3]))]
    [(0, 0), (1, 1), (3, 3)]
    """
    wanted = sizes[pending]
    total = int(wanted.sum())
    count = partition_count(total, len(pending))
    # The middle of a bucket's bytes decides in which of ``count`` equal shares it falls.
    middles = np.cumsum(wanted) - wanted / 2
    shares = np.floor(middles * count / max(total, 1)).astype(np.int64)
    if count == len(pending):
        shares = np.arange(count)
    opens = np.flatnonzero(np.append(True, (np.diff(shares) > 0) | (np.diff(pending) > 1)))
    closes = np.append(opens[1:], len(pending)) - 1
    return [
        Partition(number, int(pending[begin]), int(pending[end]), int(wanted[begin : end + 1].sum()))
        for number, (begin, end) in enumerate(zip(opens.tolist(), closes.tolist(), strict=True))
    ]
