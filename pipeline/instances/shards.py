"""Writes shards as Parquet that the trainer reads by row group and that `datasets` or a viewer can open.

The bytes depend only on the rows and on the version of pyarrow. The manifest names both.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from schemas.columns.shards import ROW_GROUP_ROWS, SHARD
from schemas.errors import CorpusError
from schemas.instance_counts import Count
from schemas.shard_tables import Shard

# Ids vary only in their two low bytes. In byte planes the high bytes take almost no space, and the low bytes
# compress better than with a dictionary of subwords in every row group.
_LISTS = ("input_ids", "masked_positions", "masked_ids")
_NUMBERS = ("segment_a_length", "length")
_ENCODINGS = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _LISTS} | dict.fromkeys(
    _NUMBERS, "BYTE_STREAM_SPLIT"
)
_DICTIONARIES = ["lang", "document_key"]
_STATISTICS = ["segment_a_length", "next_sentence_label", "length", "lang"]
# Byte planes have few repeats for a higher level to find. On Wikipedia text, level 1 is as small as level 9.
_LEVEL = 1


class WrittenShard(Shard):
    """The facts about a shard that its slot commits."""

    languages: dict[str, Count]
    """Rows by language code."""


def encode_shard(table: pa.Table) -> bytes:
    """The bytes of a shard: zstd, row groups of ROW_GROUP_ROWS rows, page index.

    Raises CorpusError when the table's columns are not those of schemas.columns.shards.SHARD.
    """
    if not table.schema.equals(SHARD):
        raise CorpusError(f"shard to write: columns {table.schema.names} with other types than {SHARD.names}")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SHARD,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=_DICTIONARIES,
        column_encoding=_ENCODINGS,
        write_statistics=_STATISTICS,
        write_page_index=True,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return bytes(sink.getvalue())


def shard_entry(table: pa.Table, data: bytes, path: str) -> WrittenShard:
    """The entry for the shard ``data`` of the rows ``table`` at ``path`` below the corpus."""
    return WrittenShard(
        path=path,
        rows=table.num_rows,
        tokens=int(np.asarray(table.column("length"), dtype=np.int64).sum()),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        languages=language_counts(table),
    )


def language_counts(table: pa.Table) -> dict[str, int]:
    """Rows of each language, in the order of the codes."""
    counts = table.column("lang").cast(pa.string()).value_counts()
    return dict(sorted((each["values"], each["counts"]) for each in counts.to_pylist()))


def write_shard(table: pa.Table, corpus: str, path: str) -> WrittenShard:
    """Writes the table to ``path`` below the folder or URI ``corpus``. Returns its entry."""
    data = encode_shard(table)
    storage.put_bytes(storage.join(corpus, path), data)
    return shard_entry(table, data, path)
