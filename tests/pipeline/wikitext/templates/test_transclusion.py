"""Tests which part of a template's page a call includes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.transclusion import MAX_BODY_CHARS, MAX_PAGE_CHARS, Included, included

SITE = SiteInfo("de", "dewiki", {10: ("Vorlage",)})


@pytest.mark.parametrize(
    ("wikitext", "body"),
    [
        ("a<noinclude>b</noinclude>c<includeonly>d</includeonly>", "acd"),
        ("x<onlyinclude>A</onlyinclude>y<onlyinclude>B</onlyinclude>z", "AB"),
        ("a<!-- <noinclude> -->b<noinclude>never closed", "ab"),
        ("<nowiki><noinclude></nowiki>a", "<nowiki><noinclude></nowiki>a"),
        ("{{ {{{|safesubst:}}}#if:x|y}}<templatestyles src='a.css' />", "{{ #if:x|y}}"),
        ("a<NOINCLUDE >b</NoInclude>c<onlyinclude/>", "ac"),
    ],
)
def test_tags_of_inclusion(wikitext: str, body: str) -> None:
    assert included(wikitext, SITE) == Included(body)


@pytest.mark.parametrize("text", ["#REDIRECT [[Template:a b]]", "#WEITERLEITUNG [[Vorlage:a_b]] {{x}}"])
def test_redirects_name_their_target(text: str) -> None:
    assert included(text, SITE) == Included(redirect="A b")


def test_long_pages_are_bounded() -> None:
    assert included("a" * (MAX_PAGE_CHARS + 1), SITE) == Included(too_long=True)
    long = included("{{" * MAX_BODY_CHARS, SITE)
    assert long.too_long
    assert 0 < len(long.body) < MAX_BODY_CHARS


_TAGS = ["<noinclude>", "</noinclude>", "<includeonly>", "<onlyinclude>", "</onlyinclude>", "<nowiki>",
         "</nowiki>", "<!--", "-->", "{{", "}}", "a", "\n"]  # fmt: skip


@given(st.lists(st.sampled_from(_TAGS), max_size=40).map("".join))
def test_any_page_is_included_in_no_more_than_itself(text: str) -> None:
    found = included(text, SITE)
    assert len(found.body) <= len(text)
    assert found == included(text, SITE)
