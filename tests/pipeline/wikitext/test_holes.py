"""Tests templates of unknown text next to endings, prefixes, marks and quotation marks in many languages."""

import pytest

from pipeline.wikitext.plain_text import plain_text
from pipeline.wikitext.site import SiteInfo


def text_of(wikitext: str, lang: str) -> str:
    return "\n".join(plain_text(wikitext, SiteInfo(lang)).paragraphs)


@pytest.mark.parametrize(
    ("lang", "holed", "kept"),
    [
        ("fi", "Hän muutti {{kunta|Espoo}}on vuonna.", "Talo on vanha."),
        ("et", "Sild asub {{koht|Tartu}}s praegu.", "Jõgi on lai."),
        ("hu", "{{személy|Anna}}nak adta a könyvet.", "A ház régi."),
        ("tr", "Kitap {{yer|İzmir}}'de basıldı.", "Ev eskidir."),
        ("fi", "Päätös oli {{järjestö|NATO}}:n oma.", "Talo on vanha."),
        ("ko", "{{사람|김}}은 학교에 갔다.", "다리는 낡았다."),
        ("ka", "{{ადგილი|თბილისი}}ში ცხოვრობს.", "ხიდი ძველია."),
        ("bn", "তিনি {{স্থান|ঢাকা}}য় থাকেন।", "সেতুটি পুরনো।"),
        ("ta", "அவர் {{இடம்|சென்னை}}யில் வாழ்கிறார்.", "பாலம் பழையது."),
        ("ja", "{{人物|田中}}は駅へ行った。", "橋は古い。"),
        ("ja", "名は{{名前|甲}}。", "橋は古い。"),
        ("zh", "它的名字叫{{名|甲}}，很大。", "桥很老。"),
        ("he", "הוא גר ב{{עיר|חיפה}} ושמח.", "הגשר ישן."),
        ("he", "הספר נכתב וב{{עיר|חיפה}}.", "הגשר ישן."),
        ("ar", "سافر إلى المدينة وال{{مكان|قرية}} أمس.", "الجسر قديم."),
        ("fr", "C'est l'{{objet|x}}.", "Le pont est vieux."),
        ("it", "Vive nell’{{luogo|x}} oggi.", "Il ponte è vecchio."),
        ("de", "Man nennt es „{{Ausdruck|x}}“ dort.", "Die Brücke ist alt."),
        ("es", "El lema es: {{lema}}.", "El puente es viejo."),
        ("pl", "Hasło brzmi: „{{hasło}}”.", "Most jest stary."),
        ("en", "The town, {{place name|x}}, is old.", "It is big."),
        ("en", "Its name is {{term|x}}s now.", "It is big."),
        ("zh", "格言是：{{格言}}。", "桥很老。"),
        ("en", "{{person|x}}, it is said, left.", "It is big."),
        ("de", "{{Person|x}}: so heißt er.", "Die Brücke ist alt."),
        ("fr", "{{personne|x}} : il partit.", "Le pont est vieux."),
        ("zh", "{{人物|甲}}，很高。", "桥很老。"),
        ("ar", "{{شخص|س}}، رجل كبير.", "الجسر قديم."),
    ],
)
def test_a_sentence_that_lost_a_word_goes(lang: str, holed: str, kept: str) -> None:
    between = "" if lang in ("ja", "zh") else " "
    assert text_of(f"{kept}{between}{holed}", lang) == kept
    assert text_of(f"{holed}{between}{kept}", lang) == kept


@pytest.mark.parametrize(
    ("lang", "wikitext", "text"),
    [
        ("en", "The {{icon of some kind}}American team won.", "The American team won."),
        (
            "en",
            "A fact{{unknown note}}, then more. More.{{unknown note}} End.",
            "A fact, then more. More. End.",
        ),
        ("ja", "橋は古い。{{未知の注}}川は広い。", "橋は古い。川は広い。"),
        ("ko", "다리는 낡았다.{{모르는 주석}} 강은 넓다.", "다리는 낡았다. 강은 넓다."),
        ("he", "הגשר ישן{{הערה לא ידועה}}.", "הגשר ישן."),
        ("de", "Ein Satz{{Unbekannte Note}}. Und mehr.", "Ein Satz. Und mehr."),
    ],
)
def test_a_note_of_unknown_text_goes_alone(lang: str, wikitext: str, text: str) -> None:
    assert text_of(wikitext, lang) == text


@pytest.mark.parametrize(
    ("lang", "wikitext", "text"),
    [
        ("en", "Bath (pronounced {{IPA|x}} or {{IPA|y}}) is old.", "Bath is old."),
        ("de", "Bath (Aussprache {{IPA|x}}) ist alt.", "Bath ist alt."),
        ("es", "Bath (pronunciado {{IPA|x}}, antes Akeman) es vieja.", "Bath (antes Akeman) es vieja."),
        ("en", "Bath (Aquae {{IPA|x}}) is old.", "Bath (Aquae) is old."),
    ],
)
def test_the_label_of_a_pronunciation_goes_with_it(lang: str, wikitext: str, text: str) -> None:
    assert text_of(wikitext, lang) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "It has 2<sup>64</sup> parts, 10<sup>−9</sup> m, ''x''<sup>2</sup>.",
            "It has 2^64 parts, 10^−9 m, x^2.",
        ),
        ("(a+b)<sup>3</sup> and 2<sup>''n''</sup>", "(a+b)^3 and 2^n"),
        ("5 m<sup>2</sup>, the 1<sup>st</sup>, le 2<sup>e</sup>", "5 m2, the 1st, le 2e"),
        ("10{{sup|9}} and 10{{exp|6}}", "10^9 and 10^6"),
    ],
)
def test_powers_are_written_with_one_sign(wikitext: str, text: str) -> None:
    assert text_of(wikitext, "en") == text


@pytest.mark.parametrize(
    ("lang", "wikitext", "text"),
    [
        ("de", "Er schrieb: {{Zitat|Text=Es steigt.|Autor=R}}", "Er schrieb: Es steigt."),
        ("fr", "Les ''{{langue|de|texte=Autobahnen}}'' sont là.", "Les Autobahnen sont là."),
        ("es", "Dijo: {{cita|Texto=Sube el agua.}}", "Dijo: Sube el agua."),
        ("ru", "Он сказал: {{цитата|текст=Вода поднимается.}}", "Он сказал: Вода поднимается."),
        ("en", "It is {{nowrap|text=five miles}} long.", "It is five miles long."),
        ("en", "It is old. They eat {{nihongo|meaning=bean}} here.", "It is old."),
        (
            "fr",
            "Il arrive au {{2e|tour}} des votes, {{Mme|Curie}} aussi.",
            "Il arrive au 2e tour des votes, Mme Curie aussi.",
        ),
    ],
)
def test_texts_under_other_names_are_shown_or_missed(lang: str, wikitext: str, text: str) -> None:
    assert text_of(wikitext, lang) == text


def test_addresses_with_brackets_go_whole() -> None:
    assert text_of("See http://x.org/a_(b) for more (http://y.org).", "en") == "See for more."
    assert text_of("See http://x.org/a_(b)_(c), too.", "en") == "See, too."
