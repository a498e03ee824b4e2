"""Columns of a training shard, and the label convention written into every manifest."""

import pyarrow as pa

SHARDS_VERSION = 1
ROW_GROUP_ROWS = 1024

# As in google-research/bert: 0 when B is the text that follows A. For sentence order, 1 means swapped.
LABEL_CONVENTIONS = {
    "nsp": {"0": "is_next", "1": "random_next"},
    "sop": {"0": "in_order", "1": "swapped"},
    "none": {},
}
# Written in next_sentence_label when the objective has no sentence label.
NO_LABEL = -1

SHARD = pa.schema(
    [
        # [CLS] A [SEP] B [SEP] with the masks applied, without padding.
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        # Positions below it have token type 0, the rest 1; equals length when there is no segment B.
        pa.field("segment_a_length", pa.int32(), nullable=False),
        # Ascending, and the original ids at those positions.
        pa.field("masked_positions", pa.list_(pa.int32()), nullable=False),
        pa.field("masked_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("next_sentence_label", pa.int8(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("lang", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        # The document that segment A comes from.
        pa.field("document_key", pa.string(), nullable=False),
    ]
)
