"""Files of a shuffle: the rows of a map task sorted by bucket, and an index with the bytes of each bucket.

A data file is a sequence of pieces in ascending order of their buckets. A piece is a header (bucket, stored
bytes, raw bytes, CRC-32 of the stored bytes) and a record batch in Arrow's IPC format, compressed with zstd.
The index is written last and holds the bytes of every bucket, so a range of buckets is one range of bytes.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from cluster import scratch, storage
from schemas.arrays import I64
from schemas.errors import CorpusError

BUCKET = "bucket"
_RUN_BYTES = 128 << 20
_HEADER = struct.Struct("<IIII")
_CODEC = pa.Codec("zstd", compression_level=1)
_INDEX_TYPE = np.dtype("<i8")


class MapOutput:
    """Sorts the rows of a map task by bucket. Memory holds at most one run of 128 MB, for any number of rows.

    >>> schema = pa.schema([pa.field("number", pa.int64())])
    >>> with MapOutput(schema, buckets=3) as output:
    ...     output.write(pa.table({"bucket": [2, 0, 2], "number": [7, 8, 9]}))
    ...     output.finish("memory://shuffle/map-00000")  # doctest: +SKIP
    """

    def __init__(self, schema: pa.Schema, buckets: int) -> None:
        self._schema, self._buckets = schema, buckets
        self._tables: list[pa.Table] = []
        self._of_rows: list[I64] = []
        """The bucket of every row in memory."""
        self._buffered_bytes = 0
        self._runs: list[I64] = []
        """For each run, the bytes of every bucket."""
        self._cleanup = ExitStack()
        self._folder = self._cleanup.enter_context(scratch.folder("shuffle"))
        self._file: BinaryIO = self._cleanup.enter_context((self._folder / "runs").open("w+b"))

    def __enter__(self) -> "MapOutput":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def write(self, table: pa.Table) -> None:
        """Adds rows. ``table`` has the columns of the schema and an integer column ``bucket``."""
        if not table.num_rows:
            return
        self._tables.append(table.select(self._schema.names).cast(self._schema))
        self._of_rows.append(table[BUCKET].to_numpy().astype(np.int64))
        self._buffered_bytes += table.nbytes
        if self._buffered_bytes >= _RUN_BYTES:
            self._end_run()

    def finish(self, uri: str) -> None:
        """Uploads the data to ``uri``.data, then the index to ``uri``.index."""
        self._end_run()
        self._file.flush()
        path = self._folder / "runs"
        if len(self._runs) > 1:
            path = self._folder / "merged"
            with path.open("wb") as merged:
                self._merge(merged)
        sizes = np.sum([np.zeros(self._buckets, np.int64), *self._runs], axis=0)
        if self._runs:
            storage.upload_file(path, data_uri(uri))
        raw = sizes.astype(_INDEX_TYPE).tobytes()
        storage.put_bytes(index_uri(uri), _CODEC.compress(raw, asbytes=True))

    def _end_run(self) -> None:
        """Appends the rows in memory to the file of runs, as one piece for each bucket."""
        if not self._tables:
            return
        table, buckets = pa.concat_tables(self._tables), np.concatenate(self._of_rows)
        self._tables, self._of_rows, self._buffered_bytes = [], [], 0
        rows = table.take(pa.array(np.argsort(buckets, kind="stable"))).combine_chunks()
        counts = np.bincount(buckets, minlength=self._buckets)
        if len(counts) > self._buckets:
            raise AssertionError(f"bucket {len(counts) - 1} of {self._buckets}")
        sizes = np.zeros(self._buckets, np.int64)
        start = 0
        for bucket in np.flatnonzero(counts).tolist():
            count = int(counts[bucket])
            sizes[bucket] = self._file.write(_piece(bucket, rows.slice(start, count)))
            start += count
        self._runs.append(sizes)

    def _merge(self, merged: BinaryIO) -> None:
        """Copies the pieces of all runs in the order of their buckets."""
        sizes = np.array(self._runs)
        ends = np.cumsum(sizes.ravel()).reshape(sizes.shape)
        for bucket in np.flatnonzero(sizes.sum(axis=0)).tolist():
            for end, size in zip(ends[:, bucket].tolist(), sizes[:, bucket].tolist(), strict=True):
                self._file.seek(end - size)
                merged.write(self._file.read(size))


def data_uri(uri: str) -> str:
    """The data file of a map task."""
    return f"{uri}.data"


def index_uri(uri: str) -> str:
    """The index of a map task. A task without its index has not finished."""
    return f"{uri}.index"


def _piece(bucket: int, rows: pa.Table) -> bytes:
    (batch,) = rows.to_batches()
    raw = batch.serialize()
    stored = _CODEC.compress(raw, asbytes=True)
    return b"".join([_HEADER.pack(bucket, len(stored), raw.size, zlib.crc32(stored)), stored])


def read_index(stored: bytes, buckets: int) -> I64:
    """[buckets] the bytes of each bucket in a data file, from the content of its index."""
    raw = _CODEC.decompress(stored, decompressed_size=buckets * _INDEX_TYPE.itemsize, asbytes=True)
    return np.frombuffer(raw, _INDEX_TYPE).astype(np.int64)


def read_pieces(data: bytes, schema: pa.Schema, source: str) -> Iterator[tuple[int, "Piece"]]:
    """(bucket, piece) for all pieces in a range of a data file.

    Raises CorpusError that names ``source`` if the bytes are not whole pieces.
    """
    place, view = 0, memoryview(data)
    while place < len(view):
        header = view[place : place + _HEADER.size]
        if len(header) < _HEADER.size:
            raise CorpusError(f"{source}: a piece of a shuffle ends too early")
        bucket, stored, raw, checksum = _HEADER.unpack(header)
        place += _HEADER.size
        body = view[place : place + stored]
        if len(body) < stored or zlib.crc32(body) != checksum:
            raise CorpusError(f"{source}: a piece of a shuffle is damaged; remove the file and run again")
        place += stored
        yield bucket, Piece(body, raw, schema)


class Piece:
    """Some rows of one bucket, still compressed."""

    def __init__(self, stored: memoryview, raw_bytes: int, schema: pa.Schema) -> None:
        self._stored, self._raw_bytes, self._schema = stored, raw_bytes, schema

    def batch(self) -> pa.RecordBatch:
        """The rows."""
        raw = _CODEC.decompress(self._stored, decompressed_size=self._raw_bytes)
        return pa.ipc.read_record_batch(raw, self._schema)
