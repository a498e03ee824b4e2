"""Columns of a documents part, which extraction writes and dedup, vocabulary and instances read."""

import pyarrow as pa

DOCUMENTS_VERSION = 3

DOCUMENTS = pa.schema(
    [
        # source/language/page id/revision. Unique within a build, and the document's key in random draws.
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("page_id", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        # All sentences in order. paragraph_sentences counts those of each paragraph.
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("paragraph_sentences", pa.list_(pa.int32()), nullable=False),
        # For each sentence, whether white space precedes it in its paragraph.
        pa.field("spaced", pa.list_(pa.bool_()), nullable=False),
        # Total UTF-8 bytes of all sentences.
        pa.field("text_bytes", pa.int64(), nullable=False),
        # BLAKE2b-128 of the paragraphs' text with collapsed white space.
        pa.field("content_hash", pa.binary(16), nullable=False),
        # Id of the page or row in its source, or null.
        pa.field("source_id", pa.string()),
        # Time of the revision. Null if the source does not give it.
        pa.field("timestamp", pa.string()),
        # URL of the page. Null if the source does not give it.
        pa.field("url", pa.string()),
    ]
)
