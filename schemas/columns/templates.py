"""Columns of the template stage: what it finds in one unit, and the table of one wiki."""

import pyarrow as pa

TEMPLATES_VERSION = 2

SCANNED = pa.schema(
    [
        # dbname of the wiki, or its language if the dump does not give the dbname.
        pa.field("wiki", pa.string(), nullable=False),
        # "template" (a page), "use" (calls in articles) or "heading" (sections at the end of articles).
        pa.field("what", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        # For a template: its revision, what a call includes, and the target of a redirect.
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        pa.field("redirect", pa.string(), nullable=False),
        pa.field("too_long", pa.bool_(), nullable=False),
        # For a use: calls. For a heading: sections, and those that are lists of links or citations.
        pa.field("count", pa.int64(), nullable=False),
        pa.field("listed", pa.int64(), nullable=False),
    ]
)

TABLE = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        # "alias" for a redirect, which has only a target. Otherwise the kind of the template.
        pa.field("kind", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("sure", pa.bool_(), nullable=False),
        # The wikitext that a call expands to. Null for kinds that show nothing.
        pa.field("body", pa.string()),
        pa.field("arguments", pa.list_(pa.string()), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("uses", pa.int64(), nullable=False),
    ]
)
