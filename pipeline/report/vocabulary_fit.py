"""How well the vocabulary fits each language: the share of [UNK] and the pieces a word takes.

The manifest's ``languages`` hold exact counts: ``words``, the ``pieces`` they became, and how many of
these are [UNK] (``unknown``). They are counted over all that the vocabulary was applied to: every
document of every pass and of the held-out side, copies included.
"""

from collections.abc import Mapping
from typing import Any

# A language with a larger share of [UNK] than one in this many is warned of.
UNKNOWN_ONE_IN = 100


def unknown_share(entry: Mapping[str, Any]) -> float:
    """[UNK] among the pieces of a language of the manifest; 0 without text."""
    return entry["unknown"] / entry["pieces"] if entry["pieces"] else 0.0


def pieces_per_word(entry: Mapping[str, Any]) -> float:
    """Pieces that a word of a language of the manifest takes; 0 without text."""
    return entry["pieces"] / entry["words"] if entry["words"] else 0.0


def unknown_warnings(languages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each language of the manifest whose text is [UNK] by more than 1 %, the worst first."""
    high = [lang for lang, entry in languages.items() if entry["unknown"] * UNKNOWN_ONE_IN > entry["pieces"]]
    return [
        f"{lang}: {unknown_share(languages[lang]):.1%} of the pieces are [UNK] "
        f"({languages[lang]['unknown']:,} of {languages[lang]['pieces']:,}); "
        "the vocabulary lacks letters of this language"
        for lang in sorted(high, key=lambda lang: (-unknown_share(languages[lang]), lang))
    ]
