"""Compares words with BERT's own basic tokenizer, for every code point and for sentences."""

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.wordpiece.basic_tokenization import as_array, chunks, split_words, words_of
from pipeline.wordpiece.character_table import character_table
from pipeline.wordpiece.vocabulary import Vocabulary, tokenizer_json
from schemas.vocabulary import SPECIAL_TOKENS
from tests.pipeline.bert_reference import bert_words

MODES = [(True, "keep", False), (False, "strip", True), (False, "keep", False), (True, "strip", True)]
AWKWARD = (
    "aZ é\u0301\u0323ÅİßΣς\u200d\u200c\u00ad\ufeff\ufffd\x00\x85\u2028\t"
    "山\uf900\u2f868𫠠กำ\u0941ह\u093cが\u3099각\u1161\u11a8.,«$`[]#\u037e≠ﬁ𝒳😀"
)


def assert_words_of_bert(codes: Any, cased: bool, accents: bool, strips: bool) -> None:
    table = character_table(cased, accents)
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    for begin in range(0, len(characters), 50_000):
        text = " ".join(f"a{character}b" for character in characters[begin : begin + 50_000])
        assert words_of(text, table) == bert_words(text, cased, strips)


@pytest.mark.parametrize(("cased", "accents", "strips"), MODES)
def test_every_character_gives_the_words_of_bert(cased: bool, accents: bool, strips: bool) -> None:
    """Covers only some code points of the planes without characters and for private use."""
    assigned = [*range(0x34000), *range(0xE0000, 0xE0200)]
    assert_words_of_bert([*assigned, *range(0x34000, 0x110000, 997)], cased, accents, strips)


@pytest.mark.parametrize(("cased", "accents", "strips"), MODES)
@settings(max_examples=100)
@given(st.lists(st.text(st.one_of(st.sampled_from(AWKWARD), st.characters()), max_size=40), max_size=5))
@example(["e", "\u0301a"])
def test_sentences_give_the_words_of_bert(
    cased: bool, accents: bool, strips: bool, sentences: list[str]
) -> None:
    sentences = [text.encode("utf-8", "replace").decode() for text in sentences]
    words = split_words(as_array(sentences), character_table(cased, accents))
    expected = [bert_words(sentence, cased, strips) for sentence in sentences]
    bounds = words.sentence_offsets.tolist()
    assert [end - begin for begin, end in pairwise(bounds)] == list(map(len, expected))
    assert words_of("\n".join(sentences), character_table(cased, accents)) == [w for s in expected for w in s]


MARKS = (
    "aeㄱ가각\u1100\u1161\u11a8কড\u09bc\u09be\u09c7\u09ddန\u1037\u103a"
    "שׁ\u05bc\u05c1\u05b8\u0301\u0323\u0344\u0345ά "
)


@pytest.mark.parametrize(("cased", "accents", "strips"), MODES)
@settings(max_examples=150)
@given(st.lists(st.text(st.sampled_from(MARKS), max_size=12), max_size=4))
@example(["\u09a1\u09bc\u09be", "\u1014\u1037\u103a", "\u1014\u103a\u1037", "\u05e9\u05bc\u05c1\u05b8"])
@example(["a\u0323\u05bc\u05bc\u0301", "\u0301", "\u0323a"])
def test_runs_of_marks_are_composed_as_by_unicodedata(
    cased: bool, accents: bool, strips: bool, sentences: list[str]
) -> None:
    table = character_table(cased, accents)
    for part in (sentences, ["".join(sentences)]):
        words = split_words(as_array(part), table)
        expected = [bert_words(sentence, cased, strips) for sentence in part]
        assert np.diff(words.sentence_offsets).tolist() == list(map(len, expected))
        assert words_of(" ".join(part), table) == [word for words in expected for word in words]


def test_strip_letters_keeps_vowel_signs() -> None:
    table = character_table(False, "strip_letters")
    assert words_of("Café Ωμέγα Ёлка", table) == ["cafe", "ωμεγα", "елка"]
    for text in ("नदियाँ", "กำลัง", "が", "각", "מִלָּה", "می‌رود"):
        expected = unicodedata.normalize("NFC", text).replace("\u200c", "")
        assert words_of(text, table) == [expected]


@given(st.text(st.one_of(st.sampled_from(AWKWARD), st.characters(codec="utf-8")), max_size=40))
def test_strip_letters_is_what_tokenizer_json_does(text: str) -> None:
    vocabulary = Vocabulary(list(SPECIAL_TOKENS), cased=False, accents="strip_letters")
    file = Tokenizer.from_str(tokenizer_json(vocabulary).decode())
    folded = file.normalizer.normalize_str(text)
    expected = [word for word, _ in file.pre_tokenizer.pre_tokenize_str(folded)]
    assert words_of(text, character_table(False, "strip_letters")) == expected


@given(st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=9)), max_size=9))
def test_chunks_are_the_whole_array(values: Any) -> None:
    array = pa.array(values, pa.string())
    assert [value for part in chunks(array) for value in part.to_pylist()] == values
