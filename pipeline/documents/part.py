"""A documents part: one committed Parquet file of extracted documents."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A documents part. ``ordinal`` numbers the parts of a build in the order of their unit ids."""

    ordinal: int
    uri: str
    rows: int
    text_bytes: int


def part_size(part: Part) -> int:
    """Bytes of text, which decide how many small parts share a task."""
    return part.text_bytes
