"""Columns of the table that lists the shards of a set."""

import pyarrow as pa

SHARD_TABLE = pa.schema(
    [
        # The shard's path is the set's prefix, this number with at least five digits, and .parquet.
        pa.field("number", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        # Lengths of all rows together.
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("sha256", pa.binary(32), nullable=False),
    ]
)
