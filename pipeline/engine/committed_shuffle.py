"""A shuffle that can resume: one committed file for each bucket."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cluster import storage
from pipeline.engine.commit import PartWriter, RowCounts, StageFolder
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import Size
from pipeline.engine.shuffle import Shuffle

# A reader that needs a few rows must read whole row groups.
_ROWS_PER_GROUP = 1 << 16

Item = TypeVar("Item")
Reduce = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class CommittedShuffle:
    """One shuffle of a stage. Its folder finally has one file of ``schema`` for each bucket."""

    folder: StageFolder[RowCounts]
    schema: pa.Schema
    buckets: int

    @staticmethod
    def create(
        work_uri: str, stage: str, schema: pa.Schema, buckets: int, *inputs: object
    ) -> "CommittedShuffle":
        """The shuffle of ``stage``. ``inputs`` is what its result depends on besides the code version."""
        return CommittedShuffle(
            StageFolder.create(work_uri, stage, RowCounts, buckets, *inputs), schema, buckets
        )

    def run(
        self,
        items: Sequence[Item],
        emit: Callable[[Item], Iterator[pa.Table]],
        reduce: Reduce,
        emitted: pa.Schema,
        size: Size[Item] | None = None,
    ) -> None:
        """Makes the missing buckets and commits each separately.

        For an item, ``emit`` yields tables of the schema ``emitted`` with an additional column ``bucket``.
        ``reduce`` gets all rows of one bucket in any order and returns a table of ``schema``.
        """
        finished = self.folder.finished()
        pending = np.array(
            [bucket for bucket in range(self.buckets) if self._id(bucket) not in finished], np.int64
        )
        name = self.folder.uri.rsplit("/", 1)[-1].rsplit("-", 1)[0]
        progress = Progress(
            name, len(pending), skipped=self.buckets - len(pending), amount_name="rows", amount_scale=1
        )

        def reduce_and_commit(bucket: int, table: pa.Table) -> int:
            self._commit(bucket, reduce(table) if table.num_rows else self.schema.empty_table())
            return int(table.num_rows)

        shuffle = Shuffle(self.folder.path("shuffle"), emitted, self.buckets)
        for rows in shuffle.run(items, emit, reduce_and_commit, pending, size):
            progress.advance(rows)

    def _commit(self, bucket: int, table: pa.Table) -> None:
        name = f"{self._id(bucket)}.parquet"
        with PartWriter(self.schema, self.folder.path(name), name) as writer:
            ordered = table.select(self.schema.names).cast(self.schema)
            for start in range(0, ordered.num_rows, _ROWS_PER_GROUP):
                writer.write(ordered.slice(start, _ROWS_PER_GROUP))
            self.folder.commit(self._id(bucket), [writer.finish()], RowCounts(table.num_rows))

    def _id(self, bucket: int) -> str:
        return f"bucket-{bucket:05d}"

    def read(self, bucket: int) -> pa.Table:
        """The rows of one bucket."""
        return storage.parquet_file(self.folder.path(f"{self._id(bucket)}.parquet")).read().cast(self.schema)

    def read_all(self) -> pa.Table:
        """The rows of all buckets, in the order of the buckets."""
        return pa.concat_tables([self.read(bucket) for bucket in range(self.buckets)])

    def files(self) -> list[str]:
        """The URIs of the buckets that have rows."""
        sizes = self.sizes()
        return [self.folder.path(f"{self._id(bucket)}.parquet") for bucket in np.flatnonzero(sizes).tolist()]

    def digests(self) -> list[str]:
        """The SHA-256 of each bucket's file."""
        markers = self.folder.finished()
        return [markers[self._id(bucket)].files[0].sha256 for bucket in range(self.buckets)]

    def sizes(self) -> list[int]:
        """The number of rows in each bucket."""
        markers = self.folder.finished()
        return [markers[self._id(bucket)].counts.rows for bucket in range(self.buckets)]
