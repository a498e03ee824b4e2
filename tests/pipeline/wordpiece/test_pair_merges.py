import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.wordpiece import pair_merges
from pipeline.wordpiece.pair_merges import PairMerges
from pipeline.wordpiece.word_counts import counts_table
from tests.pipeline.wordpiece.merges_by_hand import merged_by_hand

# With "#" a piece can arise twice from different parts: "#" and "##a" give the name of the inner piece "##a".
LETTERS = "ab#"
ALPHABET = [*LETTERS, *("##" + letter for letter in LETTERS)]


@pytest.mark.parametrize("few", [0, 3, 48])
@pytest.mark.parametrize("tracked", [1, 3, 10_000])
@settings(max_examples=40)
@given(
    st.dictionaries(st.text(LETTERS, min_size=1, max_size=9), st.integers(1, 1 << 33), max_size=12),
    st.integers(0, 40),
)
def test_subwords_equal_those_of_full_recounts(few: int, tracked: int, counts: Any, wanted: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_merges, "_FEW", few)
        patch.setattr(pair_merges, "_TRACKED", tracked)
        merges = PairMerges(counts_table(counts), ALPHABET)
        merges.run(wanted)
    assert ALPHABET + merges.merged_pieces() == merged_by_hand(counts, ALPHABET, len(ALPHABET) + wanted)


@pytest.mark.parametrize("few", [0, 48])
def test_fewer_pairs_are_tracked_when_they_become_many(few: int) -> None:
    """At first all twenty pairs of letters are tracked, and then hundreds of longer pieces."""
    chance = random.Random(3)
    letters = "abcd"
    alphabet = [*letters, *("##" + letter for letter in letters)]
    counts = {"".join(chance.choices(letters, k=9)): chance.randrange(1, 3) for _ in range(250)}
    fewer = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_merges, "_FEW", few)
        patch.setattr(pair_merges, "_TRACKED", 40)
        track_fewer = PairMerges._track_fewer

        def counted(merges: PairMerges) -> None:
            fewer.append(len(merges._count))
            track_fewer(merges)

        patch.setattr(PairMerges, "_track_fewer", counted)
        merges = PairMerges(counts_table(counts), alphabet)
        merges.run(250)
    assert fewer
    assert alphabet + merges.merged_pieces() == merged_by_hand(counts, alphabet, len(alphabet) + 250)
