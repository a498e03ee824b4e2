"""Which pages are left out by what their text is: disambiguations, lists, and what is too short."""

import re
from collections.abc import Sequence
from functools import lru_cache

from pipeline.config import Extraction
from pipeline.languages import DISAMBIGUATION_TEMPLATES
from pipeline.skip_reasons import TOO_SHORT

_TEMPLATE_NAME = re.compile(r"\{\{\s*([^{}|\n<]{1,60})(?=[|}\n<])")
_LIST_MARKS = frozenset("*#:;")
_MARKUP_LINE = frozenset(("", *"|!{}=<"))
_PREFIXED_LINK = re.compile(r"\[\[[^\]|]{1,30}:")
# What a character counts above one.
_DENSE = (
    (1.5, re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")),
    (1.0, re.compile("[\uac00-\ud7a3]")),
    (0.5, re.compile("[\u3040-\u30ff\u31f0-\u31ff]")),
)
_SEPARATORS = re.compile(r"[\s_-]+")


def is_disambiguation(title: str, wikitext: str) -> bool:
    """Whether a page only lists what its title may mean: by its templates or magic word, or its title."""
    if "__DISAMBIG__" in wikitext:
        return True
    for name in set(_TEMPLATE_NAME.findall(wikitext)):
        if _fold(name) in _folded_templates():
            return True
    suffix = re.search(r"\(([^()]+)\)$", title)
    return suffix is not None and _fold(suffix[1]) in _folded_templates()


@lru_cache(maxsize=1)
def _folded_templates() -> frozenset[str]:
    return frozenset(_fold(name) for name in DISAMBIGUATION_TEMPLATES)


@lru_cache(maxsize=4096)
def _fold(name: str) -> str:
    return _SEPARATORS.sub(" ", name).strip().casefold()


def document_skip_reason(paragraphs: Sequence[str], settings: Extraction) -> str | None:
    """Why a cleaned document is left out; None for one that is kept."""
    length: float = sum(map(len, paragraphs))
    if length < settings.min_chars and settings.weigh_scripts:
        length = sum(map(weighted_length, paragraphs))
    return TOO_SHORT if length < settings.min_chars else None


def weighted_length(text: str) -> float:
    """Characters, those of East Asian scripts by how much of an English text they say.

    A Chinese character counts 2.5, a Hangul syllable 2, kana 1.5. Source: the 128 languages of NTREX-128
    (parallel news) have 207,700 characters in English, 83,500 in Chinese (2.5 fewer), 104,700 in Korean
    (2.0) and 110,800 in Japanese (1.9, of ideographs and kana), white space left out.
    """
    return len(text) + sum(more * len(signs.findall(text)) for more, signs in _DENSE)


def list_share(wikitext: str) -> float:
    """Share of the text that stands in list items, by lines: items against lines of running text.

    Lines of tables, templates, headings, files and tags count for neither. 0 for a page without lines.
    """
    items = running = 0
    for line in wikitext.split("\n"):
        first = line[:1]
        if first in _LIST_MARKS:
            items += len(line)
        elif first not in _MARKUP_LINE and not (first == "[" and _PREFIXED_LINK.match(line)):
            running += len(line)
    return items / (items + running) if items else 0.0
