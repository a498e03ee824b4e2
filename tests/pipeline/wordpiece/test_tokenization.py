"""Compares ids with BertTokenizerFast's on real and generated text."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Instances, SequenceLength
from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.wordpiece.basic_tokenization import CHUNK_BYTES
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.training import train_wordpiece
from pipeline.wordpiece.vocabulary import Vocabulary, load_vocabulary
from pipeline.wordpiece.word_counts import count_words
from pipeline.wordpiece.word_encoder import stretches
from tests.pipeline.bert_reference import ROOT, bert_ids, bert_tokenizer, sample_sentences

CASES_VOCABULARY = str(ROOT / "tests" / "cases" / "vocab.txt")


@pytest.fixture(scope="module", params=[True, False], ids=["cased", "uncased"])
def trained(request: pytest.FixtureRequest) -> Vocabulary:
    sentences = sample_sentences()[::20]
    return Vocabulary(train_wordpiece(count_words(sentences, request.param), 8_000, 9), request.param)


def split(ids: Any, offsets: Any) -> list[list[int]]:
    return [ids[begin:end].tolist() for begin, end in pairwise(offsets)]


def assert_ids_of_bert(vocabulary: Vocabulary, sentences: list[str]) -> None:
    found = split(*WordPieceTokenizer(vocabulary).encode_batch(sentences))
    expected = bert_ids(bert_tokenizer(vocabulary.pieces, vocabulary.cased), sentences)
    pairs = zip(sentences, found, expected, strict=True)
    different = [sentence for sentence, ours, theirs in pairs if ours != theirs]
    # Only long runs of scripts without spaces may differ. We cut them, and BERT has one [UNK].
    assert [line for line in different if max(map(len, line.split())) <= 100] == []
    assert len(different) < 50


def test_ids_are_those_of_bert_on_real_lines(trained: Vocabulary) -> None:
    """Covers half of the lines of the sample in every language, a quarter cased and a quarter uncased."""
    lines = sample_sentences()[0 if trained.cased else 1 :: 4]
    assert len(lines) > 25_000
    assert_ids_of_bert(trained, list(lines))


@pytest.mark.parametrize("cased", [True, False])
@given(st.lists(st.text(st.sampled_from("abcdeiloprstuw BRidgSTe.,[#山橋がガनदीกสำ\u0301éüÜ"), max_size=60)))
def test_ids_are_those_of_bert_on_made_up_text(cased: bool, sentences: list[str]) -> None:
    vocabulary = load_vocabulary(CASES_VOCABULARY, cased)
    found = split(*WordPieceTokenizer(vocabulary).encode_batch(sentences))
    assert found == bert_ids(bert_tokenizer(vocabulary.pieces, cased), sentences)


def test_all_forms_of_a_column_give_the_same(trained: Vocabulary) -> None:
    sentences = [*sample_sentences()[:500], ""]
    tokenizer = WordPieceTokenizer(trained)
    expected = split(*tokenizer.encode_batch(sentences))
    array = pa.array(["x", *sentences, "y"])
    forms = [
        array[1:-1],
        array.cast(pa.large_string())[1:-1],
        pa.chunked_array([array[1:200], array[200:-1]]),
        iter(sentences),
    ]
    for form in forms:
        assert split(*tokenizer.encode_batch(form)) == expected


def test_nulls_and_nothing(trained: Vocabulary) -> None:
    tokenizer = WordPieceTokenizer(trained)
    ids, offsets = tokenizer.encode_batch(pa.array([None, "", None], pa.string()))
    assert (ids.tolist(), offsets.tolist()) == ([], [0, 0, 0, 0])
    ids, offsets = tokenizer.encode_batch(pa.array([], pa.string()))
    assert (str(ids.dtype), str(offsets.dtype), offsets.tolist()) == ("int32", "int64", [0])


def test_a_sentence_larger_than_a_chunk(trained: Vocabulary) -> None:
    tokenizer = WordPieceTokenizer(trained)
    once = tokenizer.encode("one river ")
    again = CHUNK_BYTES // 10 + 100
    ids, offsets = tokenizer.encode_batch(["a", "one river " * again, "b"])
    assert offsets.tolist()[1:] == [1, 1 + len(once) * again, 2 + len(once) * again]
    assert ids[1:-1].tolist() == once * again


def test_text_never_gives_a_special_id() -> None:
    vocabulary = load_vocabulary(CASES_VOCABULARY, True)
    tokenizer = WordPieceTokenizer(vocabulary)
    ids = tokenizer.encode("[CLS] [SEP][MASK] [PAD]bridge[UNK] \ud800")
    assert not vocabulary.special_ids - {vocabulary.unknown_id} & set(ids)


def test_long_words() -> None:
    tokenizer = WordPieceTokenizer(load_vocabulary(CASES_VOCABULARY, True))
    assert tokenizer.tokenize("a" * 100) == ["a", *["##a"] * 99]
    assert tokenizer.tokenize("a" * 101) == ["[UNK]"]
    thai = "กสน" * 90
    assert "[UNK]" not in tokenizer.tokenize(thai)
    assert "".join(piece.removeprefix("##") for piece in tokenizer.tokenize(thai)) == thai


@given(st.text(st.sampled_from("กส\u0e48\u0e34"), min_size=1, max_size=400))
def test_stretches(word: str) -> None:
    parts = stretches(word)
    assert "".join(parts) == word
    assert all(0 < len(part) <= 100 for part in parts)
    marks = ("\u0e48", "\u0e34")
    for before, part in pairwise(parts):
        # A stretch starts with a mark only if the previous one had no better position in its second half.
        assert not part.startswith(marks) or set(before[51:]) <= set(marks)


def test_a_thai_text_without_spaces_is_not_a_single_unknown_token() -> None:
    """Case pipeline-009: 5,000 characters are cut before the word limit, and [UNK] is counted."""
    words = ["สะพาน", "แคบ", "มาก", "และ", "เก่า", "น้ำ", "ไหล", "ผ่าน", "เมือง", "หิน"]
    chance = random.Random(5)
    text = "".join(chance.choices(words, k=2000))[:5000]
    pieces = train_wordpiece(count_words([text], cased=True), 200, 9)
    ids, offsets = WordPieceTokenizer(Vocabulary(pieces, cased=True)).encode_batch([text])
    assert (ids != pieces.index("[UNK]")).all()
    assert "".join(pieces[number].removeprefix("##") for number in ids) == text
    assert 50 <= sum(not pieces[number].startswith("##") for number in ids) <= 100
    bucket = BucketDocuments(ids, offsets, np.array([0, 1]), ["th"], ["a"], np.zeros(1, np.int64))
    length = SequenceLength(max_seq_length=128, max_predictions=20)
    made = make_instances(bucket, InstanceSettings.from_config(Instances(), length, pieces), 1, 0)
    counted = made.counts["th"]
    assert (counted.tokens_in, counted.tokens_unknown) == (len(ids), 0)
