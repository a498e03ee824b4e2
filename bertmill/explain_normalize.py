"""``explain normalize``: Unicode cleaning of one text."""

from typing import Any

from pipeline.normalize import normalize_text


def explain(record: dict[str, Any]) -> dict[str, Any]:
    """Takes ``lang`` and ``text``; ``output`` is the cleaned text."""
    return {"output": normalize_text(record["text"], record["lang"])}
