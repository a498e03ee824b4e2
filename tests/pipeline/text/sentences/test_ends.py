"""Tests sentence ends by kind and language: abbreviations, numbers, units, quotation marks, brackets."""

from collections import defaultdict
from pathlib import Path

import pytest

from pipeline.text.sentences.split import split_sentences

_LINES = [
    line.split("\t")
    for line in Path(__file__).with_name("sentence_ends.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
_BY_KIND: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
for _kind, _lang, _text in _LINES:
    _BY_KIND[_kind].append((_lang, _text.split(" | ")))
_UNSPACED = {"ja", "yue", "zh"}


@pytest.mark.parametrize("kind", sorted(_BY_KIND))
def test_sentences_end_where_they_should(kind: str) -> None:
    wrong = []
    for lang, sentences in _BY_KIND[kind]:
        split = split_sentences(("" if lang in _UNSPACED else " ").join(sentences), lang)
        if split != sentences:
            wrong.append((lang, split))
    assert not wrong
