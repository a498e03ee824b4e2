"""Tests the cleaning of real pages, with every dump of the bundled sample."""

import re
from pathlib import Path

import pytest

from benchmarks.real_pages import RealPage, real_pages
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.plain_text import WikitextOptions, plain_text

SAMPLE = Path(__file__).parents[3] / "sample"
MARKUP = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||<ref|</|\|\||'''|__[A-Z]+__|\dpx\||&(?:amp|nbsp|lt);")


@pytest.fixture(scope="module")
def pages() -> list[RealPage]:
    return list(real_pages(SAMPLE))


def test_sample_holds_many_wikis(pages: list[RealPage]) -> None:
    assert len({page.site.lang for page in pages}) > 90
    assert len(pages) > 900


def test_no_markup_is_left_and_few_sentences_are_lost(pages: list[RealPage]) -> None:
    kept = lost = 0
    left: list[str] = []
    for page in pages:
        clean = plain_text(page.wikitext, page.site, WikitextOptions(math="placeholder"))
        sentences = [s for paragraph in clean.paragraphs for s in split_sentences(paragraph, page.site.lang)]
        kept += len(sentences)
        lost += clean.dropped_sentences
        left += [f"{page.site.lang} {page.title}: {s}" for s in sentences if MARKUP.search(s)]
    assert kept > 20_000
    assert len(left) < kept / 1000, left
    assert lost < kept / 100


def test_pages_keep_their_first_words(pages: list[RealPage]) -> None:
    """Most articles begin with their subject in bold. These words must be in the text."""
    found = total = 0
    for page in pages:
        bold = re.search(r"^'''([^'\[\]{}<>|&]{3,60})'''", page.wikitext, re.M)
        if bold:
            total += 1
            found += " ".join(bold.group(1).split()) in "\n".join(
                plain_text(page.wikitext, page.site).paragraphs
            )
    assert total > 400
    assert found > 0.97 * total
