"""Columns of the template stage: what is found in one unit, and the table of one wiki."""

import pyarrow as pa

TEMPLATES_VERSION = 2

FOUND = pa.schema(
    [
        # dbname of the wiki, or its language where the dump does not give it.
        pa.field("wiki", pa.string(), nullable=False),
        # "template" (a page), "use" (calls in articles) or "heading" (sections at the end of articles).
        pa.field("what", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        # Of a template: its revision, what a call includes, and where a redirect leads.
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        pa.field("redirect", pa.string(), nullable=False),
        pa.field("too_long", pa.bool_(), nullable=False),
        # Of a use: calls. Of a heading: sections, and those that are lists of links or citations.
        pa.field("count", pa.int64(), nullable=False),
        pa.field("listed", pa.int64(), nullable=False),
    ]
)

TABLE = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        # "alias" for a redirect, which has only a target; else the kind of the template.
        pa.field("kind", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("sure", pa.bool_(), nullable=False),
        # The wikitext that a call is expanded to; null for kinds that show nothing.
        pa.field("body", pa.string()),
        pa.field("arguments", pa.list_(pa.string()), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("uses", pa.int64(), nullable=False),
    ]
)
