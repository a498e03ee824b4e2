"""Columns of the dataset that ``publish.documents`` writes. A value that the source does not have is null."""

import pyarrow as pa

PUBLISHED_VERSION = 1

PUBLISHED_DOCUMENTS = pa.schema(
    [
        # Id of the page, or of the row in its source.
        pa.field("id", pa.string()),
        # Revision of the page. For a published extract without revisions, its date.
        pa.field("revision", pa.int64()),
        # When the revision was made, as the source writes it (Wikimedia: ISO 8601).
        pa.field("timestamp", pa.string()),
        # URL of the page.
        pa.field("url", pa.string()),
        # Title of the page or row, or the name of a text file.
        pa.field("title", pa.string()),
        # Language code.
        pa.field("lang", pa.string(), nullable=False),
        # Cleaned paragraphs, with a blank line between them.
        pa.field("text", pa.string(), nullable=False),
        # The document_key of the training sequences.
        pa.field("key", pa.string(), nullable=False),
    ]
)
