"""Tests that the slow reference gives the same hashes as the original's functions."""

import pytest

from tests.support.reference_instances import (
    Rules,
    compatible_instances,
    golden_corpus,
    golden_hash,
    golden_vocabulary,
)

# seed, length, predictions, passes, whole words, documents, short, then
# instances, random, tokens, masked, full length, hash (semantics of the original, run on Python 3.11)
GOLDEN = [
    (12345, 128, 20, 2, False, 200, 0.1, 1841, 1045, 191396, 28518, 1057, "a4b42e972a945922a92e89b07329bc69"),
    (12345, 128, 20, 2, True, 200, 0.1, 1875, 1092, 194813, 29030, 1075, "e9db70afd581dc5aa383240167ae97c8"),
    (7, 512, 77, 1, False, 200, 0.1, 469, 283, 112848, 16949, 53, "653a1a6e4ba1bef38f653fab79392b75"),
    (12345, 64, 10, 1, False, 200, 0.1, 1411, 759, 86401, 13439, 1186, "148ce665f61308beac51c26b5fc7778f"),
    (1, 128, 20, 1, False, 1, 0.0, 1, 1, 9, 1, 0, "80d2efd13460c9ab7d2af1647ba9a8bb"),
]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"seed{row[0]}-{row[1]}-{row[12][:6]}")
def test_golden_hashes_of_the_original(
    row: tuple[int, int, int, int, bool, int, float, int, int, int, int, int, str],
) -> None:
    """Cases pipeline-001 to pipeline-005."""
    seed, length, predictions, passes, whole_word, documents, short, *facts, expected = row
    rules = Rules(length, predictions, short, whole_word)
    instances = compatible_instances(golden_corpus(documents), golden_vocabulary(), rules, seed, passes)
    assert facts == [
        len(instances),
        sum(instance.label or 0 for instance in instances),
        sum(len(instance.tokens) for instance in instances),
        sum(len(instance.positions) for instance in instances),
        sum(len(instance.tokens) == length for instance in instances),
    ]
    assert golden_hash(instances) == expected
