"""``explain sentences``: sentence splitting of one text."""

from typing import Any

from pipeline.sentences import split_sentences


def explain(record: dict[str, Any]) -> dict[str, Any]:
    """Takes ``lang`` and ``text``; ``output`` is the list of sentences."""
    return {"output": split_sentences(record["text"], record["lang"])}
