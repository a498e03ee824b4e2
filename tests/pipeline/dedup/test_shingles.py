"""Compares the hashes of runs of words with sums in plain Python."""

from functools import cache

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.dedup.shingles import hashed_words
from pipeline.wordpiece.basic_tokenization import SLICE_BYTES, words_of
from pipeline.wordpiece.character_table import prose_table
from schemas.randomness import draws

SEED, BASE, PERIOD = 0x5EED, 0x9E3779B97F4A7C15, 4096
# Letters, marks, spaces, punctuation, symbols, dropped and expanding characters, rare planes.
AWKWARD = "aZß ée\u0301İΣ\u200d\u00ad\ufeff\x00\n山กำ\u0941ह가\u3099.,«—–\u037eﬁ𝒳😀𠫠\U00010400"


@cache
def letter_hash(letter: str) -> int:
    return int(draws(SEED, ord(letter)))


@cache
def power(place: int) -> int:
    return pow(BASE, place, 1 << 64)


def hash_by_hand(word: str) -> int:
    """The polynomial over the letters' hashes, with Python integers. A change would break resumed builds."""
    total = sum(letter_hash(letter) * power(place % PERIOD) for place, letter in enumerate(word))
    return int(draws(SEED, total % (1 << 64)))


def assert_hashed(sentences: list[str]) -> None:
    words = [words_of(sentence, prose_table()) for sentence in sentences]
    found = hashed_words(pa.array(sentences, pa.string()), np.arange(len(sentences) + 1))
    assert found.hashes.tolist() == [hash_by_hand(word) for of_one in words for word in of_one]
    assert found.offsets.tolist() == np.cumsum([0, *map(len, words)]).tolist()


@given(
    st.lists(
        st.text(st.one_of(st.sampled_from(AWKWARD), st.characters(codec="utf-8")), max_size=40), max_size=6
    )
)
@example([" , ", "", "."])
@example([" a", "b ", "«c»d"])
def test_words_are_hashed_like_the_reference(sentences: list[str]) -> None:
    assert_hashed(sentences)


def test_long_words_and_long_text_are_hashed_like_the_reference() -> None:
    long = "ab" * PERIOD
    assert_hashed([f"x {long}é, {long} y", "z" * PERIOD, "z" * (PERIOD + 1) + "! " * PERIOD])
    assert_hashed([" ".join(["ab, cd"] * (SLICE_BYTES // 5)), "é", " " + "a" * (SLICE_BYTES + 3), "b"])
