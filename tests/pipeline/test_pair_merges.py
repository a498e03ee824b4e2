import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import pair_merges
from pipeline.pair_merges import PairMerges

LETTERS = "abc"
ALPHABET = [*LETTERS, *("##" + letter for letter in LETTERS)]


def merges_by_hand(words, wanted):
    """Byte-pair encoding over lists: all pairs counted anew before each merge."""
    pieces = list(ALPHABET)
    cut = [([word[0], *("##" + letter for letter in word[1:])], count) for word, count in words]
    while len(pieces) - len(ALPHABET) < wanted:
        counts = Counter()
        for parts, count in cut:
            for pair in itertools.pairwise(parts):
                counts[pair] += count
        if not counts:
            break
        first, second = min(
            counts, key=lambda pair: (-counts[pair], pieces.index(pair[0]), pieces.index(pair[1]))
        )
        name = first + second.removeprefix("##")
        if name not in pieces:
            pieces.append(name)
        for parts, _ in cut:
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == (first, second):
                    parts[place : place + 2] = [name]
                place += 1
    return pieces[len(ALPHABET) :]


@pytest.mark.parametrize("few", [0, 3, 48])
@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text(LETTERS, min_size=1, max_size=9), st.integers(1, 1 << 33), max_size=12),
    st.integers(0, 40),
)
def test_pieces_are_those_of_counting_anew(few, counts, wanted):
    words = list(counts.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_merges, "_FEW", few)
        merges = PairMerges(words, ALPHABET)
        merges.run(wanted)
    assert merges.made() == merges_by_hand(words, wanted)
