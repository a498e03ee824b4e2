"""The row groups of an epoch in random order. Sorts only the parts in use.

The order is that of `schemas.randomness.permutation`: ascending hashes of the numbers of the row groups. The
upper bits of a hash give the bucket of its row group. One look at all hashes counts the row groups and rows
of every bucket, with one byte of memory for each row group. A bucket is sorted when a sample needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from schemas.arrays import I64, U64
from schemas.randomness import draws

GROUPS_PER_BUCKET = 1 << 17
_MOST_BITS = 8
_CHUNK = 1 << 16
_SORTED_BUCKETS = 8


class PassRows:
    """The rows and row groups of one pass, numbered through its shards.

    ``total`` is the number of rows, ``shard_rows`` gives those of each shard [shards]. It is called when the
    order first reaches the pass. Every row group has ``group_rows`` rows, except for the last of a shard.
    """

    def __init__(self, total: int, group_rows: int, shard_rows: Callable[[], I64]) -> None:
        self.total, self.group_rows, self._shard_rows = total, group_rows, shard_rows

    @cached_property
    def _first_row(self) -> I64:
        """[shards + 1] the number of the first row of each shard, and of the end."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self._shard_rows())])

    @cached_property
    def _first_group(self) -> I64:
        """[shards + 1] the number of the first row group of each shard, and of the end."""
        groups = -(-np.diff(self._first_row) // self.group_rows)
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(groups)])

    @property
    def groups(self) -> int:
        """Number of row groups."""
        return int(self._first_group[-1])

    def short_groups(self) -> tuple[I64, I64]:
        """The last row group of each shard, and the rows that it lacks to a full one."""
        rows, groups = np.diff(self._first_row), np.diff(self._first_group)
        some = groups > 0
        return self._first_group[1:][some] - 1, (groups * self.group_rows - rows)[some]

    def places(self, groups: I64) -> tuple[I64, I64, I64]:
        """Shard, row group inside it, and number of the first row, of the row groups ``groups``."""
        shard = np.searchsorted(self._first_group, groups, side="right") - 1
        inside = groups - self._first_group[shard]
        return shard, inside, self._first_row[shard] + inside * self.group_rows

    def sizes(self, groups: I64) -> I64:
        """Rows of each of the row groups ``groups``."""
        shard, _, first = self.places(groups)
        left: I64 = self._first_row[shard + 1] - first
        return np.minimum(left, self.group_rows)


@dataclass(frozen=True)
class _Bucket:
    """Neighbors in the order."""

    groups: I64
    starts: I64
    """[row groups + 1] the position of the first row of each row group, and of the end."""


class GroupOrder:
    """The row groups of a pass in the order of ``permutation(rows.groups, *key)``.

    A place is the index of a row group in the order. A position is the index of a row in the row groups one
    after the other.
    """

    def __init__(self, rows: PassRows, *key: int, groups_per_bucket: int = GROUPS_PER_BUCKET) -> None:
        self.groups = rows.groups
        self._rows, self._key = rows, key
        self._bits = min(_MOST_BITS, (self.groups // groups_per_bucket).bit_length())
        self._bucket_of, counts = self._assigned()
        last, missing = rows.short_groups()
        short = np.bincount(self._bucket_of[last], weights=missing, minlength=counts.size)
        self._first_place = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        sizes = counts * rows.group_rows - short.astype(np.int64)
        self._first_position = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        self._bucket = lru_cache(maxsize=_SORTED_BUCKETS)(self._sorted)

    def _hashes(self, groups: U64) -> U64:
        return draws(*self._key, groups)

    def _assigned(self) -> tuple["np.ndarray[tuple[int], np.dtype[np.uint8]]", I64]:
        """[row groups] the bucket of each row group, and [buckets] their number in each."""
        bucket_of = np.zeros(self.groups, dtype=np.uint8)
        counts = np.zeros(1 << self._bits, dtype=np.int64)
        if self._bits == 0:
            counts[0] = self.groups
            return bucket_of, counts
        for first in range(0, self.groups, _CHUNK):
            chunk = bucket_of[first : first + _CHUNK]
            numbers = np.arange(first, first + chunk.size, dtype=np.uint64)
            chunk[:] = self._hashes(numbers) >> np.uint64(64 - self._bits)
            counts += np.bincount(chunk, minlength=counts.size)
        return bucket_of, counts

    def _sorted(self, number: int) -> _Bucket:
        groups = np.flatnonzero(self._bucket_of == number)
        groups = groups[np.argsort(self._hashes(groups.astype(np.uint64)), kind="stable")]
        first = self._first_position[number : number + 1]
        return _Bucket(groups, np.concatenate([first, first + np.cumsum(self._rows.sizes(groups))]))

    def starts(self, places: I64) -> I64:
        """The position of the first row of each place. The place after the last gives the end."""
        bucket = np.searchsorted(self._first_place[1:-1], places, side="right")
        starts = np.empty_like(places)
        for number in np.unique(bucket).tolist():
            chosen = bucket == number
            starts[chosen] = self._bucket(number).starts[places[chosen] - self._first_place[number]]
        return starts

    def find(self, positions: I64) -> tuple[I64, I64, I64]:
        """The place, the row group and the position of its first row, of the rows at ``positions``."""
        bucket = np.searchsorted(self._first_position[1:-1], positions, side="right")
        place, group, start = (np.empty_like(positions) for _ in range(3))
        for number in np.unique(bucket).tolist():
            chosen, held = bucket == number, self._bucket(number)
            index = np.searchsorted(held.starts, positions[chosen], side="right") - 1
            place[chosen] = self._first_place[number] + index
            group[chosen], start[chosen] = held.groups[index], held.starts[index]
        return place, group, start
