"""Divides the work of a shuffle into map tasks, and into runs of buckets with about equal bytes."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from schemas.arrays import I64

# The driver keeps and writes two 8-byte offsets for each map task and partition.
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
    """The pending buckets (ascending) in runs of neighbors. Minimizes the bytes of the largest run.

    ``sizes`` [buckets] are the stored bytes of every bucket. Buckets are not divided, because a bucket is
    reduced as a whole. Without gaps in ``pending``, a partition exceeds the total divided by
    ``partition_count`` by at most the largest bucket.

    >>> sizes = np.array([64, 64, 64, 64]) << 20
    >>> [(one.first, one.last) for one in plan_partitions(sizes, np.array([0, 1, 3]))]
    [(0, 0), (1, 1), (3, 3)]
    """
    pending_sizes = sizes[pending]
    ends = [0, *np.cumsum(pending_sizes).tolist()]
    count = partition_count(ends[-1], len(pending))
    gaps = [0, *(np.flatnonzero(np.diff(pending) > 1) + 1).tolist(), len(pending)]
    if count == len(pending):
        opens = list(range(len(pending) + 1))
    else:
        # Gaps always separate partitions.
        most = max(count, len(gaps) - 1)
        least, enough = max(int(pending_sizes.max(initial=0)), -(-ends[-1] // most)), ends[-1]
        while least < enough:
            middle = (least + enough) // 2
            if len(_opens(ends, gaps, middle)) - 1 <= most:
                enough = middle
            else:
                least = middle + 1
        opens = _opens(ends, gaps, least)
    return [
        Partition(number, int(pending[begin]), int(pending[end - 1]), ends[end] - ends[begin])
        for number, (begin, end) in enumerate(pairwise(opens))
    ]


def _opens(ends: list[int], gaps: list[int], limit: int) -> list[int]:
    """Starts of consecutive partitions of at most ``limit`` bytes, and the end of the last one.

    ``ends`` are the summed bytes before each bucket. No partition crosses one of ``gaps``.
    """
    opens = [0]
    for gap in gaps[1:]:
        while opens[-1] < gap:
            opens.append(bisect_right(ends, ends[opens[-1]] + limit, opens[-1] + 1, gap + 1) - 1)
    return opens
