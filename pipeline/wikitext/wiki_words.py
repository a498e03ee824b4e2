"""Words in the wikis' markup and headings, from ``data/wikis.toml``, which names their sources."""

import re
import tomllib
from collections.abc import Mapping
from importlib import resources

_DATA = tomllib.loads(resources.files("pipeline").joinpath("data/wikis.toml").read_text("utf-8"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name in text.split())


TEXT_ARGUMENTS: tuple[str, ...] = _names(_DATA["text_arguments"])
"""Names of the argument with the text of a quotation."""
PAGE_NAME_WORDS: Mapping[str, str] = {
    name.replace("_", " "): word for name, word in _DATA["page_names"].items()
}
"""Local name of a magic word that shows the page's title -> its English name."""
PREFIX_LETTERS: Mapping[str, frozenset[str]] = {
    lang: frozenset(letters) for lang, letters in _DATA["prefixes"].items()
}
"""Language -> letters of prefixed prepositions and articles."""
_HIDDEN = _DATA["hidden_classes"].split()
HIDDEN_CLASSES = frozenset(name for name in _HIDDEN if not name.endswith("*"))
"""Lowercase class names of elements without running text."""
HIDDEN_CLASS_STARTS = tuple(name[:-1] for name in _HIDDEN if name.endswith("*"))
"""Prefixes of other such class names."""
ASIDE_CLASSES = frozenset(_DATA["aside_classes"].split())
"""Class names of elements with a pronunciation."""


def _headings(text: str) -> frozenset[str]:
    return frozenset(
        name.strip().strip(".").casefold() for name in text.replace("\n", " ").split(",") if name.strip()
    )


PRONUNCIATION_WORDS: tuple[str, ...] = _names(_DATA["pronunciation_words"])
"""Beginnings of words that announce a pronunciation."""
BACK_MATTER = _headings(_DATA["back_matter"])
"""Lowercase headings of sections of references, links and books."""
BACK_MATTER_IF_LISTED = _headings(_DATA["back_matter_if_listed"]) - BACK_MATTER
"""Headings of sections that are back matter if they contain lists, and prose otherwise."""
SUFFIXES: Mapping[str, re.Pattern[str]] = {
    lang: re.compile(pattern) for lang, pattern in _DATA["suffixes"].items()
}
"""Language -> endings that can only end a word."""
ONLY_LISTED_SUFFIXES = frozenset(_DATA["only_listed_suffixes"].split())
"""Languages whose words have no other endings."""
