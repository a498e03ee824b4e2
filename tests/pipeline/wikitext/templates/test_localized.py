"""Tests numbers, plural forms and dates in the language of a wiki."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.wikitext.plain_text import plain_text
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.templates.localized import format_number


class Texts:
    """The arguments of a call, as texts."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def get(self, name: str) -> str:
        return self.given(name) or ""

    def given(self, name: str) -> str | None:
        place = int(name) - 1
        return self._texts[place] if place < len(self._texts) else None

    def positional(self) -> list[str]:
        return list(self._texts)

    def names(self) -> list[str | None]:
        return [None] * len(self._texts)

    def at(self, place: int) -> str:
        return self._texts[place]


def _shown(lang: str, wikitext: str) -> str:
    return " ".join(plain_text(f"So {wikitext} it is.", SiteInfo(lang)).paragraphs)


@pytest.mark.parametrize(
    ("lang", "call", "text"),
    [
        ("en", "1234567.89", "1,234,567.89"), ("de", "1234567.89", "1.234.567,89"),
        ("ru", "1234567", "1 234 567"), ("ru", "1234", "1234"), ("hi", "1234567", "12,34,567"),
        ("fa", "12345", "۱۲,۳۴۵"), ("en", "-1234", "−1,234"), ("en", "1,234|R", "1234"),
        ("de", "1.234,5|R", "1234.5"), ("en", "12345|NOSEP", "12345"), ("en", "no number", "no number"),
    ],
)  # fmt: skip
def test_numbers_are_grouped(lang: str, call: str, text: str) -> None:
    assert _shown(lang, f"{{{{formatnum:{call}}}}}") == f"So {text} it is."


@pytest.mark.parametrize("lang", ["en", "de", "fr", "ru", "hi", "bn", "gsw", "fa"])
@given(number=st.integers(min_value=0, max_value=10**12))
def test_a_grouped_number_is_read_back(lang: str, number: int) -> None:
    grouped = format_number(Texts(str(number)), lang)
    assert format_number(Texts(grouped, "R"), lang) == str(number)


@pytest.mark.parametrize(
    ("lang", "call", "text"),
    [
        ("en", "1|page|pages", "page"), ("en", "0|page|pages", "pages"), ("fr", "0|page|pages", "page"),
        ("ru", "21|год|года|лет", "год"), ("ru", "12|год|года|лет", "лет"), ("pl", "22|a|b|c", "b"),
        ("cs", "3|a|b|c", "b"), ("ja", "2|頁|頁々", "頁"), ("en", "0|0=none|page|pages", "none"),
    ],
)  # fmt: skip
def test_plural_forms(lang: str, call: str, text: str) -> None:
    assert _shown(lang, f"{{{{plural:{call}}}}}") == f"So {text} it is."


@pytest.mark.parametrize(
    ("lang", "call", "text"),
    [
        ("en", "j F Y|1990-05-02", "2 May 1990"), ("en", "l, M j|May 2, 1990", "Wednesday, May 2"),
        ("de", "j. F Y|2 May 1990", "2. Mai 1990"), ("en", '"in" Y|1990', "in 1990"),
        ("en", r"\Y Y|1990-05-02", "Y 1990"), ("ru", "F|1990-05", "май"),
    ],
)  # fmt: skip
def test_dates_that_are_written_out(lang: str, call: str, text: str) -> None:
    assert _shown(lang, f"{{{{#time:{call}}}}}") == f"So {text} it is."


@pytest.mark.parametrize(
    "call",
    ["{{#time:Y}}", "{{#time:Y|now}}", "{{#time:Y|1990-05-02 +1 day}}", "{{#time:F|1990}}",
     "{{#time:Y|1990-02-31}}", "{{CURRENTYEAR}}", "{{NUMBEROFARTICLES:R}}", "{{grammar:genitive|X}}",
     "{{plural:many|page|pages}}"],
)  # fmt: skip
def test_what_depends_on_the_clock_or_the_wiki_is_a_hole(call: str) -> None:
    clean = plain_text(f"So {call} it is. The next one stays.", SiteInfo("en"))
    assert clean.paragraphs == ["The next one stays."]
    assert clean.dropped_sentences == 1


@pytest.mark.parametrize(
    ("expression", "text"), [("x", "wrong"), ("1/0", "wrong"), ("1+1", "right"), ("", "right")]
)
def test_an_error_of_an_expression_is_known(expression: str, text: str) -> None:
    assert _shown("en", f"{{{{#iferror:{{{{#expr:{expression}}}}}|wrong|right}}}}") == f"So {text} it is."
