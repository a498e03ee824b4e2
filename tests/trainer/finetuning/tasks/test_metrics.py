"""Metrics compared with values computed manually or by another formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetuning.tasks.metrics import (
    accuracy,
    answer_f1,
    entities,
    entity_f1,
    exact_answer,
    f1,
    has_entities,
    macro_f1,
    matthews,
    pearson,
    spearman,
)

TRUTH = np.array([1, 1, 1, 0, 0, 1])
GUESS = np.array([1, 0, 1, 0, 1, 1])  # 3 true positives, 1 false, 1 missed, 1 true negative


def test_class_metrics_equal_values_computed_manually() -> None:
    assert accuracy(TRUTH.tolist(), GUESS.tolist()) == pytest.approx(4 / 6)
    assert f1(TRUTH, GUESS) == pytest.approx(6 / 8)
    assert macro_f1(TRUTH, GUESS) == pytest.approx((6 / 8 + 2 / 4) / 2)
    assert matthews(TRUTH, GUESS) == pytest.approx((3 * 1 - 1 * 1) / (4 * 2 * 4 * 2) ** 0.5)


def test_a_constant_guess_has_no_correlation() -> None:
    constant = np.ones(6, dtype=np.int64)
    assert matthews(TRUTH, constant) == 0
    assert pearson(TRUTH, constant) == 0
    assert f1(TRUTH, constant * 0) == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2))
def test_matthews_of_two_classes_is_the_correlation_of_numbers(pairs: list[tuple[int, int]]) -> None:
    truth, guess = (np.array(side) for side in zip(*pairs, strict=True))
    assert matthews(truth, guess) == pytest.approx(pearson(truth, guess))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=30))
def test_pearson_is_numpys(pairs: list[tuple[float, float]]) -> None:
    x, y = (np.round(side, 2) for side in zip(*pairs, strict=True))
    if np.std(x) > 0.01 and np.std(y) > 0.01:
        assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


def test_spearman_shares_ranks() -> None:
    assert spearman(np.array([1, 2, 3]), np.array([10, 100, 1000])) == pytest.approx(1)
    assert spearman(np.array([1, 2, 2, 4]), np.array([4, 2, 2, 1])) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", {(1, 3, "PER")}),
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("I-PER I-LOC I-LOC", {(0, 1, "PER"), (1, 3, "LOC")}),
        ("B-ORG I-PER", {(0, 1, "ORG"), (1, 2, "PER")}),
        ("S-PER B-LOC E-LOC S-LOC", {(0, 1, "PER"), (1, 3, "LOC"), (3, 4, "LOC")}),
        ("O O", set()),
        ("B-PER", {(0, 1, "PER")}),
    ],
)
def test_entities_are_those_of_conlleval(tags: str, expected: set[tuple[int, int, str]]) -> None:
    assert entities(tags.split()) == expected


def test_bare_marks_are_entities_and_parts_of_speech_are_not() -> None:
    assert entities("B I O B B I".split()) == {(0, 2, ""), (3, 4, ""), (4, 6, "")}
    assert entity_f1([["B", "I"]], [["B", "I"]]) == 1
    assert has_entities(["O", "B", "I", "S-PER"])
    assert not has_entities(["NOUN", "O"])


def test_macro_f1_counts_classes_that_only_predictions_have() -> None:
    assert macro_f1(np.array([0, 0]), np.array([0, 1])) == pytest.approx((2 / 3 + 0) / 2)


def test_entity_f1_counts_exact_entities() -> None:
    truth = ["B-PER I-PER O B-LOC".split(), "O O".split()]
    guess = ["B-PER I-PER O O".split(), "O B-LOC".split()]
    assert entity_f1(truth, guess) == pytest.approx(2 * 1 / (2 + 2))
    assert entity_f1([["O"]], [["O"]]) == 0


@pytest.mark.parametrize(
    ("found", "answers", "exact", "words"),
    [
        ("The Panthers!", ["panthers"], 1, 1),
        ("Denver Broncos team", ["Denver Broncos", "Broncos"], 0, 0.8),
        ("", [], 1, 1),
        ("something", [], 0, 0),
        ("", ["something"], 0, 0),
        ("北京市", ["北京"], 0, 0.8),
        ("«Пантеры»", ["пантеры"], 1, 1),
        ("a cat", ["the cat"], 1, 1),
    ],
)
def test_answers_are_compared_as_in_squad(found: str, answers: list[str], exact: float, words: float) -> None:
    assert exact_answer(found, answers) == exact
    assert answer_f1(found, answers) == pytest.approx(words)
