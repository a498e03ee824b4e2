"""Tests redirects, disambiguations, lists and short pages in many languages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Extraction
from pipeline.documents.skip_rules import document_skip_reason, is_disambiguation, list_share
from pipeline.sources.mediawiki.page import WikiPage
from pipeline.sources.mediawiki.page_filter import page_skip_reason
from pipeline.text.languages import is_redirect
from pipeline.wikitext.site import SiteInfo
from schemas.skip_reasons import REDIRECT


@pytest.mark.parametrize(
    "text",
    [
        "#REDIRECT [[Target]]",
        "  \n# redirect: [[Target#Part]]",
        "#Redirect[[A]]",
        "#WEITERLEITUNG [[Brücke]]",
        "#REDIRECCIÓN [[Puente]]",
        "#перенаправление [[Мост]]",
        "#転送 [[橋]]",
        "#تحويل [[جسر]]",
        "#تغییر_مسیر [[پل]]",
        "#Преусмери [[Мост]]",
        "#YÖNLENDİRME [[Köprü]]",
        "#PATRZ [[Most]]",
        "#DOORVERWIJZING [[Brug]]",
        "#अनुप्रेषित [[पुल]]",
        "#넘겨주기 [[다리]]",
        "#הפניה [[גשר]]",
    ],
)
def test_redirects_in_the_words_of_many_wikis(text: str) -> None:
    assert is_redirect(text)


@pytest.mark.parametrize(
    "text",
    ["#Liste [[Brücke]] und mehr", "#REDIRECT", "Text #REDIRECT [[A]]", "# [[Mosel]]", "#Tamara [[A]]\n#B"],
)
def test_numbered_lists_are_not_redirects(text: str) -> None:
    assert not is_redirect(text)


@given(
    st.lists(
        st.sampled_from(["#", "&#35;", "&#x20;", "&amp;", "&lt;", "\n", " ", "\u3000", "\x1c", "a", "é"])
    ),
    st.sampled_from(["#REDIRECT [[A]]", "&#35;REDIRECT [[A]]", "redirect [[A]]", "#渡[[橋]]"]),
)
def test_reading_only_the_first_byte_misses_no_redirect(start: list[str], text: str) -> None:
    page = WikiPage("1", "A", 0, False, 1, "wikitext", False, ("".join(start) + text).encode())
    reason = page_skip_reason(page, SiteInfo("en", "enwiki", {}), (0,))
    assert (reason == REDIRECT) == is_redirect(page.text)


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Mercury", "'''Mercury''' may be:\n* a planet\n{{disambiguation}}"),
        ("Mercury", "{{ Disambig|geo}}"),
        ("Mercury", "x {{hndis|name=Mercury}}"),
        ("Merkur", "{{Begriffsklärung}}"),
        ("メルクリウス", "{{曖昧さ回避}}"),
        ("Меркурий", "{{неоднозначность\n|тип=имя}}"),
        ("Mercury", "a __DISAMBIG__"),
        ("Mercury (disambiguation)", "* a\n* b"),
    ],
)
def test_disambiguation_by_template_magic_word_or_title(title: str, text: str) -> None:
    assert is_disambiguation(title, text)


def test_ordinary_pages_are_not_disambiguations() -> None:
    assert not is_disambiguation(
        "Mercury (planet)", "{{Infobox planet|name=disambiguation}} [[disambiguation]]"
    )
    assert not is_disambiguation("Disambiguation", "Word-sense {{lang|la|x}}")


def test_share_of_list_items() -> None:
    items = "* one item\n** another item\n# third\n" * 30
    assert list_share(items + "{{Navbox\n|a=b}}\n[[Category:Lists]]\n== Head ==\n| cell\n") == 1
    assert 0.3 < list_share("* four words in here\n" + "Running text that is twice so long.") < 0.4
    assert list_share("") == list_share("Only text.\n\n[[Link]] first.") == 0
    assert list_share("* item\n[[Link]] opens a paragraph of running text.") < 0.2


@pytest.mark.parametrize(
    ("sign", "count", "kept"),
    [
        ("橋", 40, True),
        ("橋", 39, False),
        ("다", 50, True),
        ("다", 49, False),
        ("の", 67, True),
        ("の", 66, False),
        ("a", 99, False),
        ("ส", 99, False),
        ("𠀀", 40, True),
    ],
)
def test_short_pages_are_measured_by_what_their_script_says(sign: str, count: int, kept: bool) -> None:
    paragraphs = [sign * (count // 2), sign * (count - count // 2)]
    assert document_skip_reason(paragraphs, Extraction(min_chars=100)) == (None if kept else "too-short")
    by_character = Extraction(min_chars=100, weigh_scripts=False)
    assert document_skip_reason(paragraphs, by_character) == "too-short"
