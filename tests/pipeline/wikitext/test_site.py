"""Tests namespaces, prefixes and redirect words of wikis."""

import pytest

from pipeline.text.languages import is_redirect
from pipeline.wikitext.site import SiteInfo
from schemas.errors import InputError


def test_names_are_compared_without_case_and_underscores() -> None:
    site = SiteInfo.from_names("de", {"6": ["Datei", "Bild"], "3": "Benutzer Diskussion"})
    assert site.namespace_of_title("datei : x.jpg") == 6
    assert site.namespace_of_title("Benutzer_diskussion:Foo") == 3
    assert site.namespace_of_title("Image:x") == 6
    assert site.namespace_of_title("2001: A Space Odyssey") == 0
    assert site.namespace_of_prefix("nothing") is None


def test_interlanguage_prefixes_are_other_wikis_only() -> None:
    site = SiteInfo("de")
    assert site.is_interlanguage("zh-min-nan")
    assert not site.is_interlanguage("de")
    assert not site.is_interlanguage("wikt")


@pytest.mark.parametrize("namespaces", [{"six": ["File"]}, {"6": 3}, {"6": [1]}])
def test_wrong_namespaces_are_named(namespaces: dict[str, object]) -> None:
    with pytest.raises(InputError, match="namespaces"):
        SiteInfo.from_names("en", namespaces)


@pytest.mark.parametrize(
    "wikitext",
    ["#REDIRECT [[A]]", "#redirect: [[A]]", " # WEITERLEITUNG [[A]]", "#перенаправление [[A]]", "#転送[[A]]",
     "#unheardof [[A]]\n{{R from move}}", "#تحويل [[A]]"],
)  # fmt: skip
def test_redirects_in_any_language(wikitext: str) -> None:
    assert is_redirect(wikitext)


@pytest.mark.parametrize(
    "wikitext", ["A [[b]]", "#1 [[b]]", "# one [[b]] and more", "#one [[b]]\n#two [[c]]", "# [[b]]"]
)
def test_lists_are_not_redirects(wikitext: str) -> None:
    assert not is_redirect(wikitext)
