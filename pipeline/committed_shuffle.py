"""A shuffle that can be resumed: one committed file for each bucket."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cluster import storage
from pipeline.commit import PartWriter, StageFolder
from pipeline.progress import Progress
from pipeline.ray_stage import BUCKET, Row, shuffle_units

Emit = Callable[[Row], Iterator[pa.Table]]
Reduce = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class CommittedShuffle:
    """One shuffle of a stage: a folder, and in the end one file of ``schema`` for each of its buckets."""

    folder: StageFolder
    schema: pa.Schema
    buckets: int

    def run(self, items: list[Row], emit: Emit, reduce: Reduce, emitted: pa.Schema) -> None:
        """Does the buckets not done yet, and commits each by itself.

        ``emit`` gives, for an item, tables of the schema ``emitted`` with a column ``bucket`` beside it;
        ``reduce`` gets all rows of one bucket in no particular order, and gives a table of ``schema``.
        """
        done = self.folder.finished()
        pending = np.array(
            [bucket for bucket in range(self.buckets) if self._id(bucket) not in done], np.int64
        )
        name = self.folder.uri.rsplit("/", 1)[-1].rsplit("-", 1)[0]
        progress = Progress(
            name, len(pending), skipped=self.buckets - len(pending), amount_name="rows", amount_scale=1
        )

        def emit_pending(row: Row) -> Iterator[pa.Table]:
            for table in emit(row):
                yield table.filter(pa.array(np.isin(table[BUCKET].to_numpy(), pending)))

        def reduce_and_commit(bucket: int, table: pa.Table) -> Row:
            self._commit(bucket, reduce(table))
            return {"rows": table.num_rows}

        if not len(pending):
            return
        for result in shuffle_units(items, emit_pending, reduce_and_commit, len(pending), emitted):
            progress.advance(result["rows"])
        for bucket in pending.tolist():
            if self.folder.marker(self._id(bucket)) is None:  # nothing fell into it
                self._commit(bucket, self.schema.empty_table())

    def _commit(self, bucket: int, table: pa.Table) -> None:
        name = f"{self._id(bucket)}.parquet"
        with PartWriter(self.schema, self.folder.path(name), name) as writer:
            writer.write(table.select(self.schema.names).cast(self.schema))
            self.folder.commit(self._id(bucket), [writer.finish()], {"rows": table.num_rows})

    def _id(self, bucket: int) -> str:
        return f"bucket-{bucket:05d}"

    def read(self, bucket: int) -> pa.Table:
        """The rows of one bucket."""
        return storage.parquet_file(self.folder.path(f"{self._id(bucket)}.parquet")).read().cast(self.schema)

    def read_all(self) -> pa.Table:
        """The rows of all buckets, in the order of the buckets."""
        return pa.concat_tables([self.read(bucket) for bucket in range(self.buckets)])

    def sizes(self) -> list[int]:
        """How many rows each bucket has."""
        markers = self.folder.finished()
        return [int(markers[self._id(bucket)].counts["rows"]) for bucket in range(self.buckets)]
