"""Finding words of scripts without spaces with a word list."""

import itertools

import numpy as np
import pytest

from schemas.masking.targets import MaskingRule, MaskingVocabulary, Rows, mask_rows, offsets_of
from schemas.masking.word_list import WordList, parse_words
from schemas.randomness import draws

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    "北", "京", "大", "学", "生", "play", "##ing", "กา", "##รท", "##ดสอบ", "##กา", "は", "##し",
]  # fmt: skip
INDEX = {piece: number for number, piece in enumerate(PIECES)}


def joins(words: list[str], *rows: list[str]) -> list[list[int]]:
    ids = np.array([INDEX[piece] for row in rows for piece in row], np.int32)
    offsets = offsets_of(np.array([len(row) for row in rows]))
    flags = WordList.from_pieces(PIECES, words)(ids, offsets)
    return [flags[lo:hi].astype(int).tolist() for lo, hi in itertools.pairwise(offsets)]


@pytest.mark.parametrize(
    ("words", "row", "expected"),
    [
        (["北京", "大学"], ["北", "京", "大", "学"], [0, 1, 0, 1]),
        (["北京", "大学", "北京大学"], ["北", "京", "大", "学", "生"], [0, 1, 1, 1, 0]),
        # From left to right: a word that begins inside another does not count.
        (["北京", "京大"], ["北", "京", "大", "学"], [0, 1, 0, 0]),
        (["北京"], ["京", "北"], [0, 0]),
        ([], ["北", "京", "play", "##ing"], [0, 0, 0, 1]),
        (["การทดสอบ"], ["กา", "##รท", "##ดสอบ", "##กา"], [0, 1, 1, 0]),
        (["การทดสอบ"], ["##กา", "##รท", "##ดสอบ"], [0, 1, 1]),
        (["北京"], ["[CLS]", "北", "[SEP]", "京", "[SEP]"], [0, 0, 0, 0, 0]),
        (["は"], ["は", "##し"], [0, 0]),
        (["不在"], ["北", "京"], [0, 0]),
    ],
)
def test_words_are_found_longest_first_from_left_to_right(
    words: list[str], row: list[str], expected: list[int]
) -> None:
    assert joins(words, row) == [expected]


def test_a_word_does_not_reach_into_the_next_row() -> None:
    assert joins(["北京"], ["大", "北"], ["京", "北", "京"]) == [[0, 0], [0, 0, 1]]


def test_listed_words_are_masked_whole_and_others_piece_by_piece() -> None:
    row = ["[CLS]", "北", "京", "大", "学", "生", "play", "##ing", "กา", "##รท", "[SEP]"]
    ids = np.array([INDEX[piece] for piece in row] * 400, np.int32)
    rows = Rows(ids, offsets_of(np.full(400, len(row))), draws(1, np.arange(400)))
    vocabulary = MaskingVocabulary.from_pieces(PIECES)
    rule = MaskingRule(unit="whole_word", probability=0.4)
    seen = set()
    listed = WordList.from_pieces(PIECES, ["北京", "大学生"])
    masked = mask_rows(rows, rule, vocabulary, listed)
    for lo, hi in zip(masked.position_offsets[:-1], masked.position_offsets[1:], strict=True):
        positions = set(masked.positions[lo:hi].tolist())
        for word in ({1, 2}, {3, 4, 5}, {6, 7}):
            assert not positions & word or word <= positions
        seen.add(frozenset(positions))
    assert any(8 in positions and 9 not in positions for positions in seen)
    plain = mask_rows(rows, rule, vocabulary)
    first = [set(plain.positions[lo:hi].tolist()) for lo, hi in
             zip(plain.position_offsets[:-1], plain.position_offsets[1:], strict=True)]  # fmt: skip
    assert any(len(positions & {1, 2}) == 1 for positions in first)
    assert all(len(positions & {6, 7}) != 1 for positions in first)


def test_one_word_a_line() -> None:
    assert parse_words("北京\n\n 大学 \r\n".encode()) == ["北京", "大学"]
