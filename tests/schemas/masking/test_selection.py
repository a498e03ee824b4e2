"""Compares the vectorized selection of groups of words with a plain loop over words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.masking.selection import MAX_GROUP_WORDS, GroupLengths, Words, find_words, pick_words
from schemas.masking.targets import offsets_of
from schemas.randomness import draws, stream

# A row: the number of subwords of each word, or 0 for a word that is not a candidate.
Row = list[int]


def words_of(rows: list[Row]) -> Words:
    """The words of rows with words of these sizes."""
    candidate, joins = [], []
    for row in rows:
        for size in row:
            candidate += [size > 0] * max(1, size)
            joins += [False] + [True] * (size - 1)
    offsets = offsets_of(np.array([sum(max(1, size) for size in row) for row in rows]))
    return find_words(np.array(candidate), np.array(joins), offsets)


def plainly(words: Words, budget: list[int], lengths: GroupLengths, limit: int) -> dict[int, int]:
    """Word -> first word of its group, computed one word at a time."""
    taken: dict[int, int] = {}
    low = (1 << int(words.count.max()).bit_length()) - 1
    for row, allowed in enumerate(budget):
        first, count, left = int(words.first[row]), int(words.count[row]), allowed
        bits = stream(lengths.keys[row], np.arange(count)).tolist()
        order = [first + column for column in sorted(range(count), key=lambda at: bits[at] & ~low | at)]
        mine: dict[int, int] = {}
        for word in order if left else []:
            position = words.start[[word]] - words.offsets[row]
            length = int(lengths.draw(np.array([row]), position, words.run[[word]])[0])
            fitting, used, ended = [], 0, False
            for each in range(word, word + length):
                if used + words.size[each] > left:
                    ended = not lengths.all_or_nothing
                    break
                if each in mine and not lengths.all_or_nothing:
                    break
                fitting.append(each)
                used += int(words.size[each])
            if ended and word + len(fitting) in mine:
                ended = False
            if any(each in mine for each in fitting):
                continue
            mine |= dict.fromkeys(fitting, word)
            left -= used
            if left == 0 or (ended and left < allowed):
                break
        if allowed and count and not mine:
            small = next((word for word in order if words.size[word] <= limit), order[0])
            mine = {small: small}
        taken |= mine
    return taken


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=150), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=12, max_size=12),
    st.sampled_from([1, 3, 10, MAX_GROUP_WORDS]),
    st.booleans(),
    st.integers(0, 2**63),
)
def test_groups_are_those_of_one_word_after_the_other(
    rows: list[Row], wanted: list[int], longest: int, whole: bool, seed: int
) -> None:
    words = words_of(rows)
    keys = draws(seed, np.arange(len(rows)))
    lengths = GroupLengths(1.0 / np.arange(1, longest + 1), keys, whole)
    budget = [min(one, sum(row)) for one, row in zip(wanted, rows, strict=False)]
    chosen = pick_words(words, budget=np.array(budget), keys=keys, groups=lengths, max_predictions=2)
    found = dict(zip(chosen.word.tolist(), chosen.anchor.tolist(), strict=True))
    assert found == (plainly(words, budget, lengths, 2) if words.size.size else {})


def test_groups_of_more_words_than_the_bits_hold_are_refused() -> None:
    words, keys = words_of([[1] * 80]), draws(1, np.arange(1))
    lengths = GroupLengths(np.ones(MAX_GROUP_WORDS + 1), keys, all_or_nothing=False)
    with pytest.raises(ValueError, match="at most 57 words"):
        pick_words(words, budget=np.array([5]), keys=keys, groups=lengths, max_predictions=5)
