"""Shuffles rows through files. Map tasks write rows sorted by bucket, and reduce tasks read ranges of bytes.

Ray moves no rows, so the driver keeps no state for the pieces of a shuffle. A lost node loses no moved rows,
because the output of finished map tasks stays in storage until all buckets are reduced. The bookkeeping is
one index for each map task and one table of offsets, which reduce tasks read from storage.

A resumed shuffle uses the map tasks that finished before. Their groups of items depend only on the items, not
on the number of cores.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cluster import storage
from pipeline.engine.partitions import Partition, plan_partitions
from pipeline.engine.ray_data import GROUP_BYTES, Size, grouped, map_items
from pipeline.engine.shuffle_files import (
    BUCKET,
    MapOutput,
    Piece,
    data_uri,
    index_uri,
    read_index,
    read_pieces,
)
from schemas.arrays import I64
from schemas.errors import ShuffleLostError

Item = TypeVar("Item")
Result = TypeVar("Result")

_READERS = 16
_OFFSET_TYPE = np.dtype("<i8")
# Map tasks of a small shuffle. Enough for every core of a laptop.
_CORES_OF_A_SMALL_SHUFFLE = 4.0


@dataclass(frozen=True)
class Shuffle:
    """A shuffle of rows of ``schema`` to ``buckets`` buckets, with its files in the folder ``uri``.

    The name of the folder must change with everything that the rows depend on.
    """

    uri: str
    schema: pa.Schema
    buckets: int

    def run(
        self,
        items: Sequence[Item],
        emit: Callable[[Item], Iterator[pa.Table]],
        reduce: Callable[[int, pa.Table], Result],
        pending: I64,
        size: Size[Item] | None = None,
    ) -> Iterator[Result]:
        """Moves what ``emit`` yields for each item, then yields the result of ``reduce`` for ``pending``.

        Emitted tables have the columns of the schema and an integer column ``bucket``. ``reduce`` gets the
        number of a bucket and its rows, possibly none, in any order. Its result must not depend on the order.
        ``pending`` has the buckets to reduce, ascending. The shuffle ignores rows of other buckets. ``size``
        gives the bytes of an item. Raises ShuffleLostError when another process has finished the same shuffle
        and removed its files. A second run moves the rows again.
        """
        try:
            if len(pending):
                yield from self._move(items, emit, reduce, pending, size)
        except ShuffleLostError:
            storage.delete_prefix(self.uri)
            raise
        storage.delete_prefix(self.uri)

    def _move(
        self,
        items: Sequence[Item],
        emit: Callable[[Item], Iterator[pa.Table]],
        reduce: Callable[[int, pa.Table], Result],
        pending: I64,
        size: Size[Item] | None,
    ) -> Iterator[Result]:
        maps = self._write(items, emit, size)
        sizes = self._bytes_of_buckets(maps)
        partitions = plan_partitions(sizes, pending)
        offsets_uri = self._write_offsets(maps, partitions)

        def reduce_partition(partition: Partition) -> list[Result]:
            pieces = self._read(partition, maps, offsets_uri)
            results = []
            for bucket in range(partition.first, partition.last + 1):
                batches = [piece.batch() for piece in pieces.pop(bucket, [])]
                results.append(reduce(bucket, pa.Table.from_batches(batches, self._moved)))
            return results

        for results in map_items(partitions, reduce_partition, lambda partition: partition.bytes):
            yield from results

    @property
    def _moved(self) -> pa.Schema:
        return pa.schema([field for field in self.schema if field.name != BUCKET])

    def _write(
        self, items: Sequence[Item], emit: Callable[[Item], Iterator[pa.Table]], size: Size[Item] | None
    ) -> int:
        """Runs the unfinished map tasks. Returns the number of all map tasks."""
        sizes = [GROUP_BYTES if size is None else size(item) for item in items]
        tasks = list(enumerate(grouped(items, sizes, _CORES_OF_A_SMALL_SHUFFLE)))
        finished = {info.uri for info in storage.list_files(self.uri)}
        to_do = [task for task in tasks if self._of_map(task[0], index_uri) not in finished]

        def write(task: tuple[int, list[Item]]) -> None:
            number, group = task
            with MapOutput(self._moved, self.buckets) as output:
                for item in group:
                    for table in emit(item):
                        output.write(table)
                output.finish(self._of_map(number))

        for _ in map_items(to_do, write):
            pass
        return len(tasks)

    def _of_map(self, number: int, suffixed: Callable[[str], str] = str) -> str:
        return suffixed(storage.join(self.uri, f"map-{number:05d}"))

    def _indexes(self, maps: int) -> Iterator[I64]:
        """[buckets] bytes of every bucket, for each map task in order."""

        def read(number: int) -> bytes:
            return _read_or_lost(storage.read_bytes, self._of_map(number, index_uri))

        with ThreadPoolExecutor(_READERS) as pool:
            for stored in pool.map(read, range(maps)):
                yield read_index(stored, self.buckets)

    def _bytes_of_buckets(self, maps: int) -> I64:
        total = np.zeros(self.buckets, np.int64)
        for sizes in self._indexes(maps):
            total += sizes
        return total

    def _write_offsets(self, maps: int, partitions: Sequence[Partition]) -> str:
        """Writes the start and end of each partition in each data file. Returns the URI.

        The file has two rows for each partition, with one number for each map task.
        """
        first = np.array([partition.first for partition in partitions])
        last = np.array([partition.last for partition in partitions])
        table = np.empty((len(partitions), 2, maps), _OFFSET_TYPE)
        for number, sizes in enumerate(self._indexes(maps)):
            ends = np.concatenate(([0], np.cumsum(sizes)))
            table[:, 0, number], table[:, 1, number] = ends[first], ends[last + 1]
        content = table.tobytes()
        uri = storage.join(self.uri, f"offsets-{hashlib.sha256(content).hexdigest()[:16]}")
        storage.put_bytes(uri, content)
        return uri

    def _read(self, partition: Partition, maps: int, offsets_uri: str) -> dict[int, list[Piece]]:
        """Bucket -> its pieces in the order of the map tasks."""
        row = 2 * maps * _OFFSET_TYPE.itemsize
        stored = _read_or_lost(storage.read_range, offsets_uri, partition.number * row, row)
        begins, ends = np.frombuffer(stored, _OFFSET_TYPE).reshape(2, maps)

        def read(number: int) -> tuple[str, bytes]:
            uri = self._of_map(number, data_uri)
            begin, end = int(begins[number]), int(ends[number])
            return uri, _read_or_lost(storage.read_range, uri, begin, end - begin)

        pieces: dict[int, list[Piece]] = {}
        with ThreadPoolExecutor(_READERS) as pool:
            for uri, data in pool.map(read, np.flatnonzero(ends > begins).tolist()):
                for bucket, piece in read_pieces(data, self._moved, uri):
                    pieces.setdefault(bucket, []).append(piece)
        return pieces


def _read_or_lost(read: Callable[..., bytes], uri: str, *arguments: int) -> bytes:
    try:
        return read(uri, *arguments)
    except FileNotFoundError as error:
        raise ShuffleLostError(f"{uri}: moved rows were removed before all buckets were reduced") from error
