import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import pair_merges
from pipeline.pair_merges import PairMerges
from tests.pipeline.merges_by_hand import merged_by_hand

LETTERS = "abc"
ALPHABET = [*LETTERS, *("##" + letter for letter in LETTERS)]


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
    assert ALPHABET + merges.made() == merged_by_hand(counts, ALPHABET, len(ALPHABET) + wanted)
