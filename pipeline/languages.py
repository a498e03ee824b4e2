"""Peculiarities of languages and of their wikis: the one place where they are listed.

The lists are in ``data/languages.toml`` and ``data/namespaces.tsv``, which name their sources. A language is
named by its wiki's code (``simple``, ``zh-min-nan``), in lower case.
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
"""Templates, in lower case, that say that a page only lists what a title may mean."""
UNSPACED_LANGUAGES = frozenset(_DATA["unspaced"].split())
"""Languages written without spaces between words."""
ZERO_WIDTH_SPACED_LANGUAGES = frozenset(_DATA["zero_width_spaced"].split())
"""Languages whose words are parted by U+200B, where parted at all."""
UNMARKED_LANGUAGES = frozenset(_DATA["unmarked"].split())
"""Languages whose writing has no mark at the end of a sentence."""
PARSER_FUNCTION_ALIASES: Mapping[str, str] = _DATA["parser_functions"]
"""Local name of a parser function -> its English name, both in lower case."""
UNSEEN_SENTENCE_MARKS = "\u17d4\u17d5\u0f0d\u0f0e\u0f11"
"""Sentence marks that sentencex does not know: Khmer khan and bariyoosan, Tibetan shad and its kin."""

_ORDINAL_NOUNS = frozenset(_DATA["ordinal_nouns"].split())
_ORDINAL_NOUN_LANGUAGES = frozenset(["de", "als", "bar", "gsw", "lb", "nds"])
_REDIRECT = re.compile(
    "\\s*#\\s*(?:{})\\s*:?\\s*\\[\\[".format("|".join(map(re.escape, _DATA["redirect_words"].split()))), re.I
)
# Any single word before a lone link is a redirect in a language that we have no list for.
_UNKNOWN_REDIRECT = re.compile(
    "\\s*#[^\\W\\d]{3,30}\\s*:?\\s*\\[\\[[^\\[\\]\n]+\\]\\]\\s*(?:\\{\\{[^{}]*\\}\\}\\s*)*$"
)


def is_redirect(wikitext: str) -> bool:
    """Whether a page is a redirect by its own text, in any language's words."""
    if "#" not in wikitext[:200]:
        return False
    return bool(_REDIRECT.match(wikitext) or (len(wikitext) < 2000 and _UNKNOWN_REDIRECT.match(wikitext)))


def variant_order(lang: str) -> tuple[str, ...]:
    """Variants of a wiki where ``-{...}-`` is markup, the one to show first; () elsewhere."""
    return tuple(_DATA["variants"].get(lang, "").split())


@lru_cache(maxsize=512)
def abbreviations(lang: str) -> frozenset[str]:
    """Words of ``lang``, in lower case, whose full stop ends no sentence."""
    lender = _DATA["abbreviation_kin"].get(lang, lang)
    return frozenset(_DATA["abbreviations"].get(lender, "").split())


def splitter_language(lang: str) -> str:
    """The code by which sentencex is asked to split text of ``lang``."""
    code: str = _DATA["splitter"].get(lang, lang)
    return code


def ordinal_nouns(lang: str) -> frozenset[str]:
    """Capitalised nouns that follow an ordinal number and its full stop."""
    return _ORDINAL_NOUNS if lang in _ORDINAL_NOUN_LANGUAGES else frozenset()


def speech_goes_on(lang: str) -> str | None:
    """Regular expression of what follows a closing quotation mark when the sentence goes on, or None."""
    pattern: str | None = _DATA["speech_goes_on"].get(lang.split("-", maxsplit=1)[0])
    return pattern


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


def file_and_category_names(lang: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Local names of the File and of the Category namespace, aliases included; () where unknown."""
    return _namespace_names().get(lang, ((), ()))
