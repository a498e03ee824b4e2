"""Loads the words and signs of each language for the sentence splitter.

Reviewed lists are in ``data/sentences.toml``. Words that `pipeline.text.sentences.learn_words` learned from
text are in ``data/sentence_words.tsv``. The name of a language is the lowercase code of its wiki.
"""

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any


def _read(name: str) -> str:
    return resources.files("pipeline").joinpath("data", name).read_text("utf-8")


_DATA: dict[str, Any] = tomllib.loads(_read("sentences.toml"))


@dataclass(frozen=True)
class SentenceWords:
    """Words of one language, in lower case, that decide whether a full stop ends a sentence."""

    titles: frozenset[str]
    """Abbreviations before a name, for any next word."""
    abbreviations: frozenset[str]
    """Abbreviations after which the sentence continues unless the next word is a starter."""
    before_numbers: frozenset[str]
    """Abbreviations before a number that are ordinary words elsewhere."""
    after_numbers: frozenset[str]
    """Abbreviations after a number ("1990 r."), which may end a sentence like a unit of measure."""
    starters: frozenset[str]
    """Words that often begin a sentence and rarely have a capital inside one."""


UNITS = frozenset(_DATA["units"].split())
LIST_ENDS = frozenset(_DATA["list_ends"].split())
"""Abbreviations that end a list: "etc"."""
LETTER_NAMES = frozenset(_DATA["initials"]["latin_names"].split())
"""Names of Latin letters in Indic scripts, which are initials before a full stop."""
ORDINAL_NOUNS = frozenset(_DATA["ordinal_nouns"].split())
ORDINAL_ARTICLES = frozenset(_DATA["ordinal_articles"].split())
NOUNS_WITH_CAPITAL = frozenset(["als", "bar", "de", "gsw", "ksh", "lb", "nds", "pdc", "pfl", "stq"])
"""Languages that write every noun with a capital."""


def _languages(key: str) -> frozenset[str]:
    return frozenset(_DATA[key].split())


ORDINAL_STOP_LANGUAGES = _languages("ordinal_stop")
NUMBER_STOP_LANGUAGES = _languages("number_stop")
REGNAL_NUMBER_LANGUAGES = _languages("regnal_number")
YEAR_FIRST_LANGUAGES = _languages("year_first")
QUOTED_SPEECH_LANGUAGES = _languages("quoted_speech")
DANDA_LANGUAGES = _languages("danda")
APOSTROPHE_START_LANGUAGES = _languages("apostrophe_start")


def speech_goes_on(lang: str) -> str | None:
    """Regular expression for text after a closing quotation mark that continues the sentence, or None."""
    pattern: str | None = _DATA["speech_goes_on"].get(lang.split("-", maxsplit=1)[0])
    return pattern


@lru_cache(maxsize=1)
def _learned() -> dict[tuple[str, str], str]:
    """(language, kind) -> words."""
    learned: dict[tuple[str, str], str] = defaultdict(str)
    for line in _read("sentence_words.tsv").splitlines():
        if line and not line.startswith("#"):
            lang, kind, words = line.split("\t")
            learned[lang, kind] = words
    return learned


def listed_abbreviations(lang: str) -> frozenset[str]:
    """The titles and abbreviations that the reviewed lists have for ``lang``."""
    keys = ("all", _DATA["kin"].get(lang, lang), lang)
    texts = (_DATA[kind].get(key, "") for kind in ("titles", "abbreviations") for key in keys)
    return frozenset(" ".join(texts).split())


@lru_cache(maxsize=512)
def sentence_words(lang: str) -> SentenceWords:
    """The words of ``lang``: its own, and those of its base language."""
    lender = _DATA["kin"].get(lang, lang)
    learned = _learned()

    def words(kind: str) -> frozenset[str]:
        listed = _DATA.get(kind, {})
        texts = [listed.get("all", ""), listed.get(lender, ""), listed.get(lang, "")]
        return frozenset(" ".join([*texts, learned[lender, kind], learned[lang, kind]]).split())

    refuted = words("ordinary")
    return SentenceWords(
        titles=words("titles") - refuted,
        abbreviations=words("abbreviations") - refuted,
        before_numbers=words("before_numbers"),
        after_numbers=words("after_numbers"),
        starters=words("starters"),
    )
