"""``bertmill explain tokens --vocab FILE``: the pieces of a text and their ids."""

from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary


def with_vocabulary(uri: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The handler for records with ``text`` and ``cased``. Raises CorpusError for a bad vocab.txt."""
    load_vocabulary(uri, cased=True)

    @cache
    def tokenizer(cased: bool) -> WordPieceTokenizer:
        return WordPieceTokenizer(load_vocabulary(uri, cased=cased))

    def explain(record: dict[str, Any]) -> dict[str, Any]:
        this = tokenizer(bool(record["cased"]))
        ids = this.encode(record["text"])
        return {"output": [this.vocabulary.pieces[number] for number in ids], "ids": ids}

    return explain
