"""Tests smoothing by language, copies of documents, and their distribution over buckets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.instances.sampling import DOCUMENTS_PER_BUCKET, plan_sampling, smoothing_copies

SIZES = {"en": 900_000_000, "is": 90_000_000, "ltg": 10_000_000}


def keys(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def test_shares_follow_the_exponent() -> None:
    copies = smoothing_copies(SIZES, 0.7)
    weights = {lang: SIZES[lang] * copies[lang] for lang in SIZES}
    total = sum(weights.values())
    shares = [weights[lang] / total for lang in ("en", "is", "ltg")]
    assert shares == pytest.approx([0.8049, 0.1606, 0.0345], abs=1e-4)
    assert min(copies.values()) == 1.0


def test_exponent_one_keeps_every_document_once() -> None:
    plan = plan_sampling({"en": 10, "is": 5}, {"en": 100, "is": 9}, 1.0, 1 << 20, seed=1)
    assert (plan.copies("is", keys(5), 0) == 1).all()


def test_copies_have_the_planned_mean_and_differ_by_pass() -> None:
    plan = plan_sampling({"en": 1000, "is": 500, "ltg": 20_000}, SIZES, 0.7, 1 << 20, seed=7)
    first, second = (plan.copies("ltg", keys(20_000), number) for number in (0, 1))
    assert first.mean() == pytest.approx(plan.languages["ltg"].copies, rel=0.01)
    assert (first != second).any()


@given(st.integers(1, 3000), st.integers(0, 1 << 60), st.integers(0, 20))
def test_a_small_language_stays_together(documents: int, seed: int, pass_number: int) -> None:
    plan = plan_sampling(
        {"en": 10**6, "x": documents}, {"en": 10**9, "x": documents * 1000}, 1.0, 10**6, seed
    )
    copy = np.zeros(documents, np.int64)
    buckets = plan.bucket("x", keys(documents), copy, pass_number)
    assert ((buckets >= 0) & (buckets < plan.buckets)).all()
    assert len(np.unique(buckets)) <= max(1, documents // DOCUMENTS_PER_BUCKET)


def test_a_large_language_fills_every_bucket_evenly() -> None:
    plan = plan_sampling({"en": 100_000}, {"en": 10**9}, 1.0, 5 * 10**7, seed=3)
    counts = np.bincount(
        plan.bucket("en", keys(100_000), np.zeros(100_000, np.int64), 0), minlength=plan.buckets
    )
    assert plan.buckets == 20
    assert counts.min() > 4500
    assert counts.max() < 5500
