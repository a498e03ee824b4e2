"""Compares the distributions of fast and reference instances.

benchmarks/corpus/instances.py does so with 10^6 rows.
"""

import itertools
import random
from collections import Counter
from collections.abc import Hashable

import numpy as np
import pytest

from pipeline.instances.make_instances import make_instances
from tests.support.reference_instances import (
    Rules,
    compatible_instances,
    golden_corpus,
    golden_vocabulary,
    policy_instances,
)
from tests.support.statistics_of_instances import (
    SIGNIFICANCE,
    Histograms,
    bucket_of,
    homogeneity,
    instances_of,
    settings_of,
)

VOCABULARY = golden_vocabulary()
ROUNDS = 4


def fast_histograms(rules: Rules, unit: str, rounds: int) -> Histograms:
    bucket = bucket_of(golden_corpus(200), VOCABULARY)
    settings = settings_of(rules, unit, VOCABULARY)
    found, rng = Histograms(), random.Random(1)
    for number in range(rounds):
        for instance in instances_of(make_instances(bucket, settings, 11, number).table):
            found.add(instance, rng)
    return found


@pytest.mark.parametrize("unit", ["token", "whole_word", "span", "ngram"])
def test_fast_and_slow_have_one_distribution(unit: str) -> None:
    rules = Rules(max_seq_length=64, max_predictions=10)
    slow, rng = Histograms(), random.Random(2)
    for seed in range(ROUNDS):
        for instance in policy_instances(golden_corpus(200), VOCABULARY, rules, seed, unit):
            slow.add(instance, rng)
    probabilities = fast_histograms(rules, unit, ROUNDS).compare(slow)
    assert min(probabilities.values()) > SIGNIFICANCE, probabilities


# In two samples of n rows, a cell of share p that differs by d adds n d^2 / 2p to chi-square, and about 36 is
# significant for ten cells. So 50,000 rows show that a cell with a tenth of the rows is one eighth too large.
# `python -m benchmarks.corpus.instances --chi-square 1000000` shows one thirty-seventh.
ROWS = 50_000


@pytest.mark.parametrize("unit", ["span", "ngram"])
def test_many_rows_of_the_longer_units_have_one_distribution(unit: str) -> None:
    rules = Rules(max_seq_length=64, max_predictions=10)
    corpus, bucket = golden_corpus(200), bucket_of(golden_corpus(200), VOCABULARY)
    settings = settings_of(rules, unit, VOCABULARY)
    slow, done, chance = Histograms(), 0, random.Random(0)
    for seed in itertools.count():
        for instance in policy_instances(corpus, VOCABULARY, rules, seed, unit):
            slow.add(instance, chance)
            done += 1
        if done >= ROWS:
            break
    fast, rows, rng = Histograms(), 0, np.random.default_rng(1)
    for number in itertools.count():
        table = make_instances(bucket, settings, 11, number).table
        fast.add_table(table, rng)
        rows += table.num_rows
        if rows >= ROWS:
            break
    probabilities = fast.compare(slow)
    assert min(probabilities.values()) > SIGNIFICANCE, probabilities


def test_rows_are_counted_alike_one_by_one_and_together() -> None:
    bucket = bucket_of(golden_corpus(200), VOCABULARY)
    settings = settings_of(Rules(max_seq_length=64, max_predictions=10), "span", VOCABULARY)
    one, all_, table = Histograms(), Histograms(), make_instances(bucket, settings, 3, 0).table
    rng = random.Random(1)
    for instance in instances_of(table):
        one.add(instance, rng)
    all_.add_table(table, np.random.default_rng(1))
    assert one.by_name.keys() == all_.by_name.keys()
    for name in ("label", "length", "segment a", "targets", "first of a", "runs"):
        assert one.by_name[name] == all_.by_name[name], name
    for name in ("position", "kind", "run"):
        assert homogeneity(one.by_name[name], all_.by_name[name]) > SIGNIFICANCE, name


def test_a_difference_would_be_found() -> None:
    rules = Rules(max_seq_length=64, max_predictions=10)
    fast = fast_histograms(rules, "span", ROUNDS)
    slow, rng = Histograms(), random.Random(2)
    for seed in range(ROUNDS):
        # The original has one short target for a whole document and makes every one-sentence chunk random.
        for instance in compatible_instances(golden_corpus(200), VOCABULARY, rules, seed, 1):
            slow.add(instance, rng)
    probabilities = fast.compare(slow)
    for name in ("label", "length", "segment a", "run"):
        assert probabilities[name] < SIGNIFICANCE, name


def test_masks_of_the_original_are_met_token_by_token() -> None:
    rules = Rules(max_seq_length=64, max_predictions=10)
    fast, rng = Histograms(), random.Random(3)
    bucket = bucket_of(golden_corpus(200), VOCABULARY)
    settings = settings_of(rules, "token", VOCABULARY)
    counts: dict[str, dict[int, set[int]]] = {"fast": {}, "slow": {}}
    for number in range(ROUNDS):
        for instance in instances_of(make_instances(bucket, settings, 11, number).table):
            fast.add(instance, rng)
            counts["fast"].setdefault(len(instance.tokens), set()).add(len(instance.positions))
    slow = Histograms()
    for instance in compatible_instances(golden_corpus(200), VOCABULARY, rules, 5, ROUNDS):
        slow.add(instance, rng)
        counts["slow"].setdefault(len(instance.tokens), set()).add(len(instance.positions))
    for length in counts["fast"].keys() & counts["slow"].keys():
        assert counts["fast"][length] == counts["slow"][length]
    probabilities = fast.compare(slow)
    assert probabilities["kind"] > SIGNIFICANCE


def test_the_chi_square_test_itself() -> None:
    rng = random.Random(1)
    same = [
        homogeneity(Counter(rng.choices("abcd", k=500)), Counter(rng.choices("abcd", k=700)))
        for _ in range(300)
    ]
    assert 0.4 < sum(same) / len(same) < 0.6
    assert sum(value < 0.05 for value in same) < 30
    skewed = Counter[Hashable](rng.choices("abcd", [5, 4, 4, 4], k=5000))
    assert homogeneity(skewed, Counter[Hashable](rng.choices("abcd", k=5000))) < 1e-3
