"""Decides how often a pass uses each document, and which bucket each copy goes to.

Languages are smoothed as in multilingual BERT: a share p of the text becomes p^s / sum of p^s. To reach these
shares, a pass repeats whole documents. The language that needs the fewest copies has one copy of each
document, so no document is left out. Each bucket is shuffled and paired separately. A language with few
documents therefore uses few buckets, so that a random next segment can come from another document of the
language.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.arrays import I64, U64
from schemas.randomness import below, draws, key_from_text, uniform

# A bucket should have at least this many documents of a language. If not, the language uses fewer buckets.
DOCUMENTS_PER_BUCKET = 64
_COPIES, _PLACE, _FIRST = 1, 2, 3


@dataclass(frozen=True)
class LanguageSampling:
    """How one language is sampled on one side of the split."""

    copies: float
    """Mean copies of a document in a pass, at least 1."""
    buckets: int
    """Buckets that hold its documents."""


@dataclass(frozen=True)
class SamplingPlan:
    """How one side of the split is sampled."""

    seed: int
    buckets: int
    languages: Mapping[str, LanguageSampling]

    def copies(self, lang: str, keys: U64, pass_number: int) -> I64:
        """[D] how often a pass uses each document. ``keys`` are the 64-bit keys of the documents."""
        whole, rest = divmod(self.languages[lang].copies, 1.0)
        chance = uniform(self.seed, _COPIES, pass_number, keys)
        return int(whole) + (chance < rest).astype(np.int64)

    def bucket(self, lang: str, keys: U64, copy: I64, pass_number: int) -> I64:
        """[D] the bucket of each copy, in [0, buckets)."""
        spread = self.languages[lang].buckets
        first = int(draws(self.seed, _FIRST, pass_number, key_from_text(lang))) % self.buckets
        place = below(spread, self.seed, _PLACE, pass_number, keys, copy)
        return (first + place * self.buckets // spread) % self.buckets


def smoothing_copies(sizes: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Mean copies of a document in each language of ``sizes`` (bytes of text) that has text.

    Source: google-research/bert, multilingual.md: q = p^s / sum p^s. The copies are proportional to q / p.

    >>> smoothing_copies({"en": 900, "fi": 100}, 0.5)
    {'en': 1.0, 'fi': 3.0}
    """
    total = sum(sizes.values())
    factors = {lang: (size / total) ** (exponent - 1.0) for lang, size in sorted(sizes.items()) if size}
    least = min(factors.values(), default=1.0)
    # Round, because the last bit of a power differs between machines.
    return {lang: round(factor / least, 6) for lang, factor in factors.items()}


def plan_sampling(
    documents: Mapping[str, int], sizes: Mapping[str, int], exponent: float, bucket_bytes: int, seed: int
) -> SamplingPlan:
    """The plan for these documents and bytes of text by language. Every pass uses the same plan."""
    copies = smoothing_copies(sizes, exponent)
    text = sum(sizes[lang] * factor for lang, factor in copies.items())
    buckets = max(1, -int(-text // bucket_bytes))
    languages = {
        lang: LanguageSampling(
            factor, min(buckets, max(1, int(documents[lang] * factor) // DOCUMENTS_PER_BUCKET))
        )
        for lang, factor in copies.items()
    }
    return SamplingPlan(seed, buckets, languages)
