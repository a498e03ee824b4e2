"""Tests documents that share a run of words with an evaluation set, and near misses."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.dedup.contamination import contaminated, evaluation_runs
from pipeline.dedup.shingles import hashed_words

QUESTION = "In what year did the builders of the old stone bridge over the river finish their work"


def check(documents: Any, evaluation: Any) -> list[Any]:
    words = hashed_words(pa.array(documents), np.arange(len(documents) + 1))
    found: list[Any] = contaminated(words, evaluation_runs(pa.array(evaluation, pa.string()))).tolist()
    return found


def test_a_run_of_thirteen_words_is_enough_and_twelve_are_not() -> None:
    words = QUESTION.split()
    documents = [
        "Before. " + " ".join(words[2:15]).upper() + ", and after.",
        "Before. " + " ".join(words[2:14]) + " and after.",
        "nothing of it",
        QUESTION,
    ]
    assert check(documents, ["some other text", QUESTION]) == [True, False, False, True]


def test_a_run_does_not_reach_over_two_documents() -> None:
    words = QUESTION.split()
    assert check([" ".join(words[:8]), " ".join(words[8:])], [QUESTION]) == [False, False]


@pytest.mark.parametrize(("size", "hit"), [(39, False), (40, True)])
def test_scripts_without_spaces_need_forty_signs(size: int, hit: str) -> None:
    signs = "".join(chr(0x4E00 + 7 * number) for number in range(60))
    assert check(["前" + signs[5 : 5 + size] + "後"], [signs]) == [hit]


@pytest.mark.parametrize(("size", "hit"), [(39, False), (40, True)])
def test_words_with_signs_among_them_need_forty_of_either(size: int, hit: str) -> None:
    words = [chr(0x4E00 + number) if number % 6 == 0 else f"word{number}" for number in range(60)]
    assert check([" ".join(words[5 : 5 + size])], [" ".join(words)]) == [hit]


def test_nothing_is_contaminated_by_nothing() -> None:
    assert check(["a b c", ""], []) == [False, False]
