"""Columns of a documents part: what extraction writes, and dedup, vocabulary and instances read."""

import pyarrow as pa

DOCUMENTS_VERSION = 1

DOCUMENTS = pa.schema(
    [
        # source/language/page id/revision: unique within a build, the name of the document in every draw.
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("page_id", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        # All sentences in order; paragraph_sentences says how many of them each paragraph has.
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("paragraph_sentences", pa.list_(pa.int32()), nullable=False),
        # UTF-8 bytes of all sentences together.
        pa.field("text_bytes", pa.int64(), nullable=False),
        # BLAKE2b-128 of the paragraphs' text with white space squeezed.
        pa.field("content_hash", pa.binary(16), nullable=False),
    ]
)
