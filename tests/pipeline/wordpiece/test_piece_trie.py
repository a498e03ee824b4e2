"""Compares the trie of pieces with plain longest-match cutting."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.wordpiece.piece_trie import NO_PIECE, PieceTrie
from pipeline.wordpiece.word_encoder import WordEncoder


def cut_by_hand(word: str, numbers: dict[str, int], unknown: int) -> list[int]:
    ids, begin = [], 0
    while begin < len(word):
        prefix = "##" if begin else ""
        fitting = [end for end in range(begin + 1, len(word) + 1) if prefix + word[begin:end] in numbers]
        if not fitting:
            return [unknown]
        ids.append(numbers[prefix + word[begin : max(fitting)]])
        begin = max(fitting)
    return ids


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.tuples(st.sampled_from(["", "##"]), st.text("abñ山𠀀", min_size=1, max_size=5)), max_size=30),
    st.lists(st.text("abcñ山𠀀", min_size=1, max_size=12), max_size=20),
)
def test_words_are_cut_into_the_longest_pieces(pieces: set[tuple[str, str]], words: list[str]) -> None:
    numbers = {prefix + text: number for number, (prefix, text) in enumerate(sorted(pieces))}
    ids, offsets = WordEncoder(numbers, len(numbers)).encode(words)
    found = [ids[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]
    assert found == [cut_by_hand(word, numbers, len(numbers)) for word in words]


@pytest.mark.parametrize("width", [2, 40, 200])
def test_crowded_rows_all_find_a_place(width: int) -> None:
    """Every two-letter word over an alphabet gives as many full rows as letters, so the table grows."""
    letters = [chr(0x4E00 + number) for number in range(width)]
    pieces = {a + b: number for number, (a, b) in enumerate((a, b) for a in letters for b in letters)}
    trie = PieceTrie([pieces, {}])
    codes = trie.codes[[ord(char) for word in pieces for char in word + "\0"]].astype(np.int64)
    out, failed = trie.walk(codes, np.arange(0, len(codes), 3))
    assert out[::3].tolist() == list(range(width * width))
    assert len(failed) == 0
    assert (out.reshape(-1, 3)[:, 1:] == NO_PIECE).all()


def test_a_word_with_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        WordEncoder({"a": 0}, 1).encode(["a", "a\0a"])


def test_no_pieces_and_no_words() -> None:
    encoder = WordEncoder({}, 7)
    assert [part.tolist() for part in encoder.encode([])] == [[], [0]]
    assert [part.tolist() for part in encoder.encode(["ab", "c"])] == [[7, 7], [0, 1, 2]]
