"""Tests what Unicode cleaning removes and keeps, and that a second pass changes nothing."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.normalize import is_visible, normalize_paragraphs, normalize_text, to_nfc


@pytest.mark.parametrize(
    ("lang", "text", "clean"),
    [
        ("en", "  a\u00a0\u2003b\u3000\nc\u2028d\x85e ", "a b c d e"),
        ("de", "Bru\u0308\u00adcke\u200b\u2060\ufeff!", "Brücke!"),
        ("fa", "می\u200cلرزد \u200fو\u200c ه\u200d", "می\u200cلرزد و ه\u200d"),
        ("ckb", "ه\u200c\u200c کوردە\u200c", "ه\u200c کوردە"),
        ("mn", "ᠰᠠᠷ\u180eᠠ a\u180eb", "ᠰᠠᠷ\u180eᠠ ab"),
        ("en", "Auf\u200clage x\u200dy", "Auflage xy"),
        ("hi", "क्\u200dष क्\u200cष", "क्\u200dष क्\u200cष"),
        ("km", "ស្ពាន\u200bចាស់ A\u200bB", "ស្ពាន ចាស់ A B"),
        ("en", "ស្ពាន\u200bចាស់ A\u200bB", "ស្ពាន ចាស់ AB"),
        (
            "en",
            "👩\u200d🚀 🏴\U000e0067\U000e0062\U000e007f x\U000e0041",
            "👩\u200d🚀 🏴\U000e0067\U000e0062\U000e007f x",
        ),
        ("en", "a\ud83d\ude00b\ud800c\ufffdd\ufffe", "a😀bcd"),
        ("en", "a\x1b[31mb\x00c\x7f", "abc"),
        ("en", "q\u0307\u0323 10² ﬁ", "q\u0323\u0307 10² ﬁ"),
    ],
)
def test_normalize(lang: str, text: str, clean: str) -> None:
    assert normalize_text(text, lang) == clean


@given(
    st.text(
        st.characters() | st.sampled_from("\u200b\u200c\u200d\u200e\u0301म्ب \ud800\U000e0067🏴"), max_size=60
    ),
    st.sampled_from(["en", "fa", "km"]),
)
def test_cleaning_is_stable_nfc_storable_and_keeps_letters(text: str, lang: str) -> None:
    clean = normalize_text(text, lang)
    assert normalize_text(clean, lang) == clean
    assert unicodedata.is_normalized("NFC", clean)
    clean.encode("utf-8")

    def letters(value: str) -> list[str]:
        return [c for c in unicodedata.normalize("NFC", value) if unicodedata.category(c)[0] in "LNM"]

    # Dropping a character may let the marks around it compose, so compare without it.
    bare = "".join(c for c in text if unicodedata.category(c)[0] in "LNM" or c.isspace())
    assert sorted(letters(clean)) == sorted(letters(" ".join(bare.split())))


@given(
    st.lists(
        st.text(
            st.characters() | st.sampled_from("\u00ad\u200b\u200d\u200e\u0301म्ab\ufffd \ud800"), max_size=9
        )
    )
)
def test_of_visible_text_only_spaces_and_the_form_change(paragraphs: list[str]) -> None:
    expected = [normalize_text(paragraph, "en") for paragraph in paragraphs]
    for paragraph, clean in zip(paragraphs, expected, strict=True):
        assert not is_visible(paragraph) or clean == " ".join(to_nfc(paragraph).split())
    assert normalize_paragraphs(paragraphs, "en") == [clean for clean in expected if clean]


def test_of_every_visible_character_normalizing_leaves_the_normal_form() -> None:
    """Ignores a space at either end, because paragraphs of a page have none there."""
    for code in range(0x110000):
        text = chr(code)
        assert not is_visible(text) or text == " " or normalize_text(text, "en") == to_nfc(text)
