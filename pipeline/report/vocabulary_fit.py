"""Measures how well the vocabulary fits each language: the share of [UNK] and the subwords per word.

The counts cover all tokenized text: every document of every pass and of the held-out side, copies included.
"""

from collections.abc import Mapping

from schemas.manifest import LanguageCounts

# A language gets a warning if more than one in this many subwords is [UNK].
UNKNOWN_ONE_IN = 100


def unknown_share(counts: LanguageCounts) -> float:
    """The share of [UNK] among the subwords of a language, or 0 without text."""
    return counts.unknown / counts.subwords if counts.subwords else 0.0


def subwords_per_word(counts: LanguageCounts) -> float:
    """Subwords per word of a language, or 0 without text."""
    return counts.subwords / counts.words if counts.words else 0.0


def unknown_warnings(languages: Mapping[str, LanguageCounts]) -> list[str]:
    """A line for each language with more than 1% [UNK], in descending order of the share."""
    high = [lang for lang, counts in languages.items() if counts.unknown * UNKNOWN_ONE_IN > counts.subwords]
    return [
        f"{lang}: {unknown_share(languages[lang]):.1%} of the subwords are [UNK] "
        f"({languages[lang].unknown:,} of {languages[lang].subwords:,}); "
        "the vocabulary lacks letters of this language"
        for lang in sorted(high, key=lambda lang: (-unknown_share(languages[lang]), lang))
    ]
