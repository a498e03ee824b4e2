"""Metrics against seqeval, scikit-learn, scipy and the rules of SQuAD's script, on random cases."""

import random
import re
import string
from collections import Counter

import numpy as np
import pytest

from trainer.finetuning.tasks import metrics

# Each test imports its library itself: they take seconds in each process that collects these tests.

SEEDS = range(60)
_BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def pairs(seed: int, tags: list[str], count: int = 12) -> tuple[list[list[str]], list[list[str]]]:
    """Tags of some sentences, and guesses that are often right."""
    draw = random.Random(seed)
    truth = [[draw.choice(tags) for _ in range(draw.randint(1, 9))] for _ in range(count)]
    guess = [[tag if draw.random() < 0.7 else draw.choice(tags) for tag in row] for row in truth]
    return truth, guess


@pytest.mark.parametrize(
    "tags", [_BIO, ["O", "B", "I"], [*_BIO, "S-PER", "E-PER", "E-LOC"], ["O", "I-PER", "I-LOC"]]
)
def test_entity_f1_is_that_of_seqeval(tags: list[str]) -> None:
    """IOB2, bare BIO, BIOES and IOB1, with malformed sequences."""
    import seqeval.metrics

    for seed in SEEDS:
        truth, guess = pairs(seed, tags)
        # seqeval names the type of a bare B or I "_".
        assert metrics.entity_f1(truth, guess) == pytest.approx(seqeval.metrics.f1_score(truth, guess))


def test_entities_that_only_predictions_have_count_as_wrong() -> None:
    import seqeval.metrics

    truth, guess = [["O", "O", "B-PER"]], [["B-ORG", "O", "B-PER"]]
    assert metrics.entity_f1(truth, guess) == pytest.approx(seqeval.metrics.f1_score(truth, guess))
    assert metrics.entity_f1(truth, guess) == pytest.approx(2 / 3)


def test_accuracy_of_parts_of_speech_is_that_of_seqeval() -> None:
    import seqeval.metrics

    for seed in SEEDS:
        truth, guess = pairs(seed, ["NOUN", "VERB", "ADJ", "INTJ", "SCONJ"])
        flat = ([tag for row in rows for tag in row] for rows in (truth, guess))
        assert metrics.accuracy(*flat) == pytest.approx(seqeval.metrics.accuracy_score(truth, guess))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_class_metrics_are_those_of_scikit_learn() -> None:
    """Some cases have classes that only the truth or only the predictions have."""
    import sklearn.metrics

    for seed in SEEDS:
        draw = np.random.default_rng(seed)
        truth, guess = draw.integers(0, 2 + seed % 4, 30), draw.integers(seed % 2, 3 + seed % 3, 30)
        assert metrics.matthews(truth, guess) == pytest.approx(
            sklearn.metrics.matthews_corrcoef(truth, guess)
        )
        assert metrics.macro_f1(truth, guess) == pytest.approx(
            sklearn.metrics.f1_score(truth, guess, average="macro", zero_division=0.0)
        )
        ours = metrics.f1(truth, guess)
        assert ours == pytest.approx(sklearn.metrics.f1_score(truth == 1, guess == 1, zero_division=0.0))


def test_correlations_are_those_of_scipy() -> None:
    import scipy.stats

    for seed in SEEDS:
        draw = np.random.default_rng(seed)
        truth = draw.integers(0, 6, 40).astype(float)
        guess = truth + draw.normal(0, 2, 40).round(seed % 3)
        assert metrics.pearson(truth, guess) == pytest.approx(scipy.stats.pearsonr(truth, guess).statistic)
        assert metrics.spearman(truth, guess) == pytest.approx(scipy.stats.spearmanr(truth, guess).statistic)


def squad_words(text: str) -> list[str]:
    """The rule of SQuAD 1.1: lower case, no ASCII punctuation, no articles, split at white space."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def squad_f1(guess: str, truth: str) -> float:
    found, right = squad_words(guess), squad_words(truth)
    common = sum((Counter(found) & Counter(right)).values())
    return 2 * common / (len(found) + len(right)) if common else 0.0


def test_answers_follow_the_rules_of_squad() -> None:
    draw = random.Random(1)
    vocabulary = ["the", "A", "an", "cat,", "Cat", "(dog)", "it's", "12.5", "U.S."]
    compared = 0
    for _ in range(400):
        guess, *truths = (
            " ".join(draw.choice(vocabulary) for _ in range(draw.randint(1, 5))) for _ in range(3)
        )
        if not all(map(squad_words, (guess, *truths))):
            # SQuAD 1.1 gives 0 for two answers that are articles only. SQuAD 2.0 gives 1, as here.
            continue
        compared += 1
        assert metrics.answer_f1(guess, truths) == pytest.approx(max(squad_f1(guess, one) for one in truths))
        exact = any(squad_words(guess) == squad_words(one) for one in truths)
        assert metrics.exact_answer(guess, truths) == exact
    assert compared > 200
