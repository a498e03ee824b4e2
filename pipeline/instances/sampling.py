"""How often each document is used in a pass, and which bucket each of its copies goes to.

Languages are smoothed as in multilingual BERT: a share p of the text becomes p^s / sum of p^s. Whole
documents are repeated for it; the factors are scaled so that the language which needs the fewest
copies has one of each document, and nothing is left out. Buckets are shuffled and paired by
themselves, so a language of few documents is kept to few buckets: a random next segment can then
always come from another document of the same language.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.randomness import U64, below, draws, key_from_text, uniform

Int64 = npt.NDArray[np.int64]

# Documents of a language that a bucket should have at least; fewer buckets are used until it does.
DOCUMENTS_PER_BUCKET = 64
_COPIES, _PLACE, _FIRST = 1, 2, 3


@dataclass(frozen=True)
class LanguageSampling:
    """Of one language on one side of the split."""

    copies: float
    """Mean copies of a document in a pass, at least 1."""
    buckets: int
    """Buckets that its documents are spread over."""


@dataclass(frozen=True)
class SamplingPlan:
    """One side of the split: its buckets, and copies and spread of each language."""

    seed: int
    buckets: int
    languages: Mapping[str, LanguageSampling]

    def copies(self, lang: str, keys: U64, pass_number: int) -> Int64:
        """[D] how often each document is used in a pass; ``keys`` are the 64-bit keys of the documents."""
        whole, rest = divmod(self.languages[lang].copies, 1.0)
        chance = uniform(self.seed, _COPIES, pass_number, keys)
        return int(whole) + (chance < rest).astype(np.int64)

    def bucket(self, lang: str, keys: U64, copy: Int64, pass_number: int) -> Int64:
        """[D] the bucket of each copy, from 0 to ``buckets``."""
        spread = self.languages[lang].buckets
        first = int(draws(self.seed, _FIRST, pass_number, key_from_text(lang))) % self.buckets
        place = below(spread, self.seed, _PLACE, pass_number, keys, copy)
        return (first + place * self.buckets // spread) % self.buckets


def smoothing_copies(sizes: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Mean copies of a document for each language of ``sizes`` (bytes of text; empty ones are left out).

    Devlin, google-research/bert, multilingual.md: q = p^s / sum p^s; the copies are proportional to q / p.
    """
    total = sum(sizes.values())
    factors = {lang: (size / total) ** (exponent - 1.0) for lang, size in sorted(sizes.items()) if size}
    least = min(factors.values(), default=1.0)
    # Rounded, so that the last bit of a power, which differs between machines, decides nothing.
    return {lang: round(factor / least, 6) for lang, factor in factors.items()}


def plan_sampling(
    documents: Mapping[str, int], sizes: Mapping[str, int], exponent: float, bucket_bytes: int, seed: int
) -> SamplingPlan:
    """The plan for documents and bytes of text by language; every pass uses the same plan."""
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
