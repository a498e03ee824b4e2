"""Facts about individual languages and their wikis.

The lists are in ``data/languages.toml`` and ``data/namespaces.tsv``, which name their sources. The code of a
language is the lowercase code of its wiki (``simple``, ``zh-min-nan``).
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any


def _load() -> dict[str, Any]:
    return tomllib.loads(resources.files("pipeline").joinpath("data/languages.toml").read_text("utf-8"))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.replace("\n", " ").split(",") if name.strip())


_DATA = _load()

WIKI_CODES = frozenset(_DATA["wiki_codes"].split())
"""Codes that name a language edition in an interlanguage link."""
DISAMBIGUATION_TEMPLATES = _names(_DATA["disambiguation_templates"])
"""Templates, in lower case, that mark a disambiguation page."""
UNSPACED_LANGUAGES = frozenset(_DATA["unspaced"].split())
"""Languages written without spaces between words."""
ZERO_WIDTH_SPACED_LANGUAGES = frozenset(_DATA["zero_width_spaced"].split())
"""Languages that separate words, if at all, with U+200B."""
UNMARKED_LANGUAGES = frozenset(_DATA["unmarked"].split())
"""Languages that do not mark the end of a sentence."""
PARSER_FUNCTION_ALIASES: Mapping[str, str] = {
    f"#{name}" if function.startswith("#") else name: function
    for function, listed in _DATA["parser_functions"].items()
    for name in _names(listed)
}
"""Local name of a parser function -> its English name, both in lower case."""
LONG_GROUP_LANGUAGES = frozenset(_DATA["long_groups"].split())
"""Languages that group the digits of a number only from five digits on."""
LAKH_GROUP_LANGUAGES = frozenset(_DATA["lakh_groups"].split())
"""Languages that group digits as in 12,34,567."""
NUMBER_DIGITS: Mapping[str, str] = _DATA["number_digits"]
"""Language -> its ten digits, if its wiki does not use Western Arabic digits."""
MONTHS: Mapping[str, tuple[str, ...]] = {
    lang: tuple(name.replace("_", " ") for name in names.split()) for lang, names in _DATA["months"].items()
}
"""Language -> the names of the twelve months."""
_NUMBER_MARKS = {
    lang: (marks[0].replace("_", "\u00a0"), marks[2])
    for marks, languages in _DATA["number_marks"].items()
    for lang in languages.split()
}
_REDIRECT = re.compile(
    "\\s*#\\s*(?:{})\\s*:?\\s*\\[\\[".format("|".join(map(re.escape, _DATA["redirect_words"].split()))), re.I
)
# In a language without a list, any single word before a lone link counts as a redirect.
_UNKNOWN_REDIRECT = re.compile(
    "\\s*#[^\\W\\d]{3,30}\\s*:?\\s*\\[\\[[^\\[\\]\n]+\\]\\]\\s*(?:\\{\\{[^{}]*\\}\\}\\s*)*$"
)


def is_redirect(wikitext: str) -> bool:
    """Whether the wikitext is a redirect in any language."""
    if "#" not in wikitext[:200]:
        return False
    return bool(_REDIRECT.match(wikitext) or (len(wikitext) < 2000 and _UNKNOWN_REDIRECT.match(wikitext)))


def number_marks(lang: str) -> tuple[str, str]:
    """The group separator and the decimal mark of a language."""
    return _NUMBER_MARKS.get(lang, (",", "."))


def variant_order(lang: str) -> tuple[str, ...]:
    """The variants of a wiki in which ``-{...}-`` is markup, preferred one first. () for other wikis."""
    return tuple(_DATA["variants"].get(lang, "").split())


@lru_cache(maxsize=1)
def _namespace_names() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    text = resources.files("pipeline").joinpath("data/namespaces.tsv").read_text("utf-8")
    names = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            lang, files, categories = line.split("\t")
            names[lang] = (
                tuple(filter(None, files.split("|"))),
                tuple(filter(None, categories.split("|"))),
            )
    return names


TEMPLATE_NAMESPACES: Mapping[str, str] = {
    lang: name for name, languages in _DATA["template_namespaces"].items() for lang in languages.split()
}
"""Language -> local name of the Template namespace."""


def file_and_category_names(lang: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Local names of the File and Category namespaces, including aliases, or () if unknown."""
    return _namespace_names().get(lang, ((), ()))
