"""Skips pages because of their text: disambiguation pages, lists, and pages that are too short."""

import re
from collections.abc import Sequence
from functools import lru_cache

from pipeline.config import Extraction
from pipeline.text.languages import DISAMBIGUATION_TEMPLATES
from schemas.skip_reasons import TOO_SHORT

_TEMPLATE_NAME = re.compile(r"\{\{\s*([^{}|\n<]{1,60})(?=[|}\n<])")
_LIST_MARKS = frozenset("*#:;")
_MARKUP_LINE = frozenset(("", *"|!{}=<"))
_PREFIXED_LINK = re.compile(r"\[\[[^\]|]{1,30}:")
# Added to the 1 that every character counts.
_DENSE = (
    (1.5, re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")),
    (1.0, re.compile("[\uac00-\ud7a3]")),
    (0.5, re.compile("[\u3040-\u30ff\u31f0-\u31ff]")),
)
_SEPARATORS = re.compile(r"[\s_-]+")


def is_disambiguation(title: str, wikitext: str) -> bool:
    """Whether the page is a disambiguation page, by its templates, its magic word or its title."""
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
    """The reason to skip a cleaned document, or None to keep it."""
    length: float = sum(map(len, paragraphs))
    if length < settings.min_chars and settings.weigh_scripts:
        length = sum(map(weighted_length, paragraphs))
    return TOO_SHORT if length < settings.min_chars else None


def weighted_length(text: str) -> float:
    """Counts characters, with those of East Asian scripts weighted by the length of equivalent English text.

    A Chinese character counts 2.5, a Hangul syllable 2, kana 1.5. Source: NTREX-128 (parallel news in 128
    languages), without white space, has 207,700 characters in English, 83,500 in Chinese (ratio 2.5),
    104,700 in Korean (2.0) and 110,800 in Japanese (1.9, a mix of ideographs and kana).
    """
    return len(text) + sum(more * len(signs.findall(text)) for more, signs in _DENSE)


def list_share(wikitext: str) -> float:
    """Share of list items among the lines that are list items or running text. 0 for a page without either.

    Lines of tables, templates, headings, files and tags are not counted.
    """
    items = running = 0
    for line in wikitext.split("\n"):
        first = line[:1]
        if first in _LIST_MARKS:
            items += len(line)
        elif first not in _MARKUP_LINE and not (first == "[" and _PREFIXED_LINK.match(line)):
            running += len(line)
    return items / (items + running) if items else 0.0
