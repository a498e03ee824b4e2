"""Tests that sentences end correctly in many languages, that no text is lost, and that time is linear."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.normalize import normalize_paragraphs
from pipeline.text.sentences.split import MAX_SENTENCE_CHARS, split_paragraphs, split_sentences


@pytest.mark.parametrize(
    ("lang", "sentences"),
    [
        (
            "de",
            ["Im 19. Jahrhundert wurde es gebaut.", "Am 3. Oktober 1990 nicht.", "Er war Nr. 5.", "Es ging."],
        ),
        ("fr", ["M. Dupont est là.", "Il a dit : « Bonjour. »", "Puis il part."]),
        ("ru", ["Родился в 1900 г. в Москве.", "Он жил на ул. Ленина.", "Был дом."]),
        ("pl", ["W 3. rozdziale jest 19. wiek.", "Jest ok. 40 m dł. i wąski."]),
        ("hu", ["A 19. században volt.", "IV. Béla király."]),
        ("tr", ["2. Dünya Savaşı başladı.", "Dr. Ali geldi."]),
        ("pt", ["A Av. Paulista é longa.", "O séc. XX foi longo."]),
        ("id", ["Rapat di PT. Sinar pk. 09.15 pagi.", "Semua hadir."]),
        ("ar", ["قال د. سالم.", "ذهب أ. د. علي."]),
        ("hi", ["डॉ. सिंह आए।", "वह गए।"]),
        ("ka", ["1990 წელს.", "ის ქვისაა."]),
        ("km", ["ស្ពាននេះ។", "វាធ្វើពីថ្ម៕"]),
        ("bo", ["ཟམ་པ་རེད། །", "དེ་རྡོ་ནས་རེད།"]),
        ("no", ["Kl. 5 kom f.eks. Ola.", "Dvs. nei."]),
        ("my", ["ဟုတ်ကဲ့၊ သွားသည်။", "သူ လာသည်။"]),
        ("fr", ["Né en 1900 av. J.-C. à Rome.", "Mort."]),
        ("ko", ["식을 만족한다.", "formula도 그렇다."]),
        ("uk", ["І. Франко писав.", "Це м. Київ."]),
        ("vi", ["TP. Hồ Chí Minh lớn.", "Nó đẹp."]),
        ("hr", ["3. svibnja 1950. došao je.", "To je 38 km."]),
        ("lt", ["1950 m. gegužės 3 d. jis atėjo.", "XIX a. buvo taip."]),
        ("en", ["He paid £3.50 to A. B. Roe (see Fig. 2).", "It was fine."]),
    ],
)
def test_sentences_of_many_languages(lang: str, sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences), lang) == sentences


def test_quotations_that_continue_the_sentence() -> None:
    assert split_sentences("店主は「待て。」と答えた。客は待った。", "ja") == [
        "店主は「待て。」と答えた。",
        "客は待った。",
    ]
    assert split_sentences("“不！”他喊道。灯灭了。", "zh") == ["“不！”他喊道。", "灯灭了。"]
    assert split_sentences("高さは３．５メートルだ。低い。", "ja") == ["高さは３．５メートルだ。", "低い。"]


def test_paragraphs_part_sentences_but_a_line_feed_does_not() -> None:
    assert split_sentences("a\n\n \nb\u2029c\nd", "en") == ["a", "b", "c\nd"]


def test_text_in_lower_case_keeps_its_sentences() -> None:
    assert split_sentences("it rained. we went home.", "en") == ["it rained.", "we went home."]
    assert split_sentences("3 men waited. they left.", "en") == ["3 men waited.", "they left."]


def test_thai_is_cut_at_spaces_between_thai_words_only() -> None:
    clause = "สะพานแคบมากและเก่า"
    sentences = split_sentences(" ".join([clause] * 40) + " ปี 2560 จบ", "th")
    assert len(sentences) > 3
    assert all(len(sentence) < 200 for sentence in sentences)
    assert any("ปี 2560 จบ" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 9000,
        "word " * 3000,
        "“It. " * 3000,
        "\"'(“‘«" * 2000,
        "Mr. " * 3000,
        "क" * 5000 + "\u093f" * 100,
        "1,000" * 2000,
        "… " * 20_000,
        "e.g. " * 20_000,
        '"A. B" c ' * 10_000,
        "(a. b) " * 10_000,
        "." * 100_000,
    ],
)
def test_no_sentence_is_endless_and_nothing_is_lost(text: str) -> None:
    sentences = split_sentences(text, "en")
    assert max(map(len, sentences)) <= MAX_SENTENCE_CHARS
    assert "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2009", "\u3000", "\u1680"])
@pytest.mark.parametrize("lang", ["en", "fr", "ru", "ja"])
def test_a_wide_space_is_a_space(space: str, lang: str) -> None:
    text = f"J{space}.(Mr. Roe) came. He{space}saw J{space}.J. Doe. It rained."
    sentences = split_sentences(text, lang)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert sentences[-1] == "It rained."


@given(
    st.text(
        st.characters() | st.sampled_from(list(".!? \u00a0\u202fJ\n。」』“”Aa1১।។།\u2028")), max_size=300
    ),
    st.sampled_from(["en", "de", "ja", "th", "bo", "ar", "xx-unknown"]),
)
def test_lossless_and_never_empty(text: str, lang: str) -> None:
    sentences = split_sentences(text, lang)
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


_PIECES = st.characters() | st.sampled_from(
    [*".!? J\n。」』“”(Aa1។།¼", "Mr. ", "It rained. ", "1. ", "(Fig. 2) ", "ab " * 900]
)


@given(
    st.lists(st.lists(_PIECES, max_size=60).map("".join), max_size=4),
    st.sampled_from(["en", "de", "ja", "th", "bo", "ar", "km", "xx-unknown"]),
)
def test_paragraphs_of_a_page_have_the_sentences_of_each(texts: list[str], lang: str) -> None:
    paragraphs = normalize_paragraphs(texts, lang)
    assert split_paragraphs(paragraphs, lang) == [split_sentences(text, lang) for text in paragraphs]
