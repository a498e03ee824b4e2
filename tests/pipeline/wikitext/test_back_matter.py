"""Tests that sections of references, links and books are dropped, but prose under such headings stays."""

import pytest

from pipeline.wikitext.plain_text import CleanText, TemplateTable, WikitextOptions, plain_text
from pipeline.wikitext.site import SiteInfo

LISTED = "* [[A]]\n* [http://x.org B], 1990\n"


def clean(wikitext: str, lang: str = "en", learned: frozenset[str] = frozenset()) -> CleanText:
    return plain_text(wikitext, SiteInfo(lang), WikitextOptions(), TemplateTable(back_matter=learned))


@pytest.mark.parametrize(
    ("lang", "heading"),
    [
        ("en", "References"), ("en", "See also"), ("de", "Weblinks"), ("de", "Literatur"),
        ("fr", "Voir aussi"), ("fr", "Liens externes"), ("es", "Véase también"), ("it", "Voci correlate"),
        ("pt", "Ligações externas"),
        ("nl", "Zie ook"), ("pl", "Przypisy"), ("ru", "См. также"), ("ru", "Литература"), ("uk", "Примітки"),
        ("ja", "関連項目"), ("ja", "外部リンク"), ("zh", "參考文獻"), ("zh", "外部链接"), ("ko", "같이 보기"),
        ("vi", "Liên kết ngoài"), ("ar", "وصلات خارجية"), ("he", "קישורים חיצוניים"), ("hi", "बाहरी कड़ियाँ"),
        ("tr", "Kaynakça"), ("fi", "Lähteet"), ("hu", "Jegyzetek"), ("uk", "Джерела та література"),
        ("de", "Quellen und Weblinks"), ("ja", "注釈および参考文献"),
        ("fr", "Bibliographie et liens externes"),
        ("el", "Παραπομπές"), ("ltg", "Nūruodis"),
    ],
)  # fmt: skip
def test_known_headings(lang: str, heading: str) -> None:
    text = clean(
        f"Text of the page.\n== {heading} ==\n{LISTED}=== Sub ===\n* [[C]]\n== Life ==\nMore text.", lang
    )
    assert text.paragraphs == ["Text of the page.", "More text."]
    assert text.back_matter_sections == 1
    assert text.back_matter_chars > len("ABC")


def test_a_section_ends_at_its_own_level_or_above() -> None:
    text = clean("== Life ==\nOne.\n=== References ===\n* [[A]]\n=== Work ===\nTwo.\n== Notes ==\n* b\n\nC.")
    assert text.paragraphs == ["One.", "Two."]


def test_prose_under_an_unsure_heading_stays() -> None:
    prose = "The poets of the harbour wrote about tides and storms for many years."
    assert clean(f"== Literatur ==\n{prose}\n* [[A]]", "de").paragraphs == [prose, "A"]
    assert clean(f"== Literatur ==\n{LISTED}", "de").paragraphs == []


def test_learned_headings_need_lists() -> None:
    learned = frozenset(["voir là"])
    assert clean(f"One.\n== Voir là ==\n{LISTED}", "fr", learned).paragraphs == ["One."]
    assert clean(f"One.\n== Voir là ==\n{LISTED}", "fr").paragraphs == ["One.", "A", "B, 1990"]
    assert clean(f"One.\n== Voir là et autres ==\n{LISTED}", "fr", learned).paragraphs == ["One."]
    assert clean("== Voir là ==\nOne sentence stands here.", "fr", learned).paragraphs


def test_bold_lines_and_terms_may_be_headings() -> None:
    assert clean(f"One.\n\n'''References'''\n{LISTED}\nTwo.").paragraphs == ["One.", "Two."]
    assert clean(f"One.\n;See also\n{LISTED}").paragraphs == ["One."]
    assert clean("'''Notes''' are written by hand.").paragraphs == ["Notes are written by hand."]


def test_the_option_keeps_all() -> None:
    kept = plain_text(f"One.\n== Notes ==\n{LISTED}", SiteInfo("en"), WikitextOptions(back_matter="keep"))
    assert kept.paragraphs == ["One.", "A", "B, 1990"]
    assert kept.back_matter_sections == 0
