"""Columns of a training shard."""

import pyarrow as pa

SHARDS_VERSION = 1
ROW_GROUP_ROWS = 1024

SHARD = pa.schema(
    [
        # [CLS] A [SEP] B [SEP] with the masks applied, without padding.
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        # Token types are 0 before this position and 1 from it on. Without a segment B it equals length.
        pa.field("segment_a_length", pa.int32(), nullable=False),
        # Ascending positions of the targets, counted from the start of the row.
        pa.field("masked_positions", pa.list_(pa.int32()), nullable=False),
        # The original ids at those positions.
        pa.field("masked_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("next_sentence_label", pa.int8(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("lang", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        # The document that segment A comes from.
        pa.field("document_key", pa.string(), nullable=False),
    ]
)
