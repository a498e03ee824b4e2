"""Tests the conversion of pages to the text that a reader sees: links, templates, holes, tables, damage."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.wikitext.markup import MARKS
from pipeline.wikitext.plain_text import CleanText, WikitextOptions, plain_text
from pipeline.wikitext.site import SiteInfo
from schemas.errors import ConfigError

EN = SiteInfo("en")


def text_of(wikitext: str, lang: str = "en", **options: str | bool | None) -> str:
    return "\n".join(plain_text(wikitext, SiteInfo(lang), WikitextOptions(**options)).paragraphs)  # type: ignore[arg-type]


# --- links ---


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("[[kite]]s and [[Kite (toy)|toys]]", "kites and toys"),
        ("[[Tide (song)|]] [[Rome, Italy|]] [[Help:Foo (x)|]]", "Tide Rome Foo"),
        ("[[a|b|c]] [[A{{!}}B]] [[Foo|'''x''' {{small|y}}]]z", "b|c B x yz"),
        ("[[Foo|bar] text", "bar text"),
        ("[[Foo text\n\nNext [[b]].", "Foo text\nNext b."),
        ("[[[Harbour]]]", "[Harbour]"),
        ("See [[:fr:Pont|the bridge]] and [[:Category:Boats]].", "See the bridge and Category:Boats."),
        ("[[media:x.ogg|listen]]", "listen"),
        ("A [[unknown:x.jpg|thumb|B]] C", "A C"),
        ("[[File:a.jpg|thumb|one\n\ntwo [[three]]]]C", "C"),
        ("[[File:a.jpg|thumb|never closed\n\nText.", "Text."),
        ("[//x.org text] [mailto:a@b.c Mail] [[http://y.org lab]] [ftp://q]", "text Mail lab"),
        ("See http://x.org/a?b=c, then stop.", "See, then stop."),
        ("A ratio of 3://4", "A ratio of 3://4"),
    ],
)
def test_links_show_their_label(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


def test_namespaces_of_the_dump_are_used_beside_english_and_known_aliases() -> None:
    site = SiteInfo("xyz", "xyzwiki", {6: ("Rasm",), 14: ("Tur",)})
    assert plain_text("A [[Rasm:a|b]][[Tur:c]][[File:d|e]][[Category:f]] z", site).paragraphs == ["A z"]
    assert text_of("A [[Bild:a.jpg|mini|b]] z", "de") == "A z"


# --- templates ---


@pytest.mark.parametrize(
    ("wikitext", "lang", "text"),
    [
        ("{{convert|3|-|5|km|mi}} by {{cvt|6|ft|2|in|m}}", "en", "3–5 km by 6 ft 2 in"),
        ("{{As of|2020|5}} and {{as of|2019|lc=y}}", "en", "As of May 2020 and as of 2019"),
        ("{{harvtxt|Boolos|Jeffrey|1974}} say", "en", "Boolos & Jeffrey (1974) say"),
        ("{{frac|3|1|2}} {{val|3.5|ul=kg}} {{music|flat}}", "en", "3 1/2 3.5 kg ♭"),
        ("au {{s|XIX}}, {{unité|3400|m}} {{Ier}}", "fr", "au XIXe siècle, 3400 m Ier"),
        ("el {{siglo|XIX||s}} y el {{siglo|XX}}", "es", "el siglo XIX y el XX"),
        ('{{"|Es steigt}} auf {{Höhe|512|DE-NN}}', "de", "„Es steigt“ auf 512 m"),
        ("в {{нп5|Титул|титуле|en|Title}}", "ru", "в титуле"),
        ("{{仮リンク|橋|en|Bridge}}と{{ふりがな|山|やま}}", "ja", "橋と山（やま）"),
        ("{{#if:|a|b}}{{#ifeq:x|x|y|n}}{{#switch:b|a=1|b|c=2}}{{lc:AB}}", "en", "by2ab"),
        ("{{#ifexpr:2>1|yes|no}} {{#expr:7/2}}", "en", "yes 3.5"),
        ("{{{1|default}}}{{{2}}}", "en", "default"),
        ("{{hlist|a|b|''c''}}", "en", "a, b, c"),
        ("x{{ndash}}y{{nbsp}}z", "en", "x–y z"),
        ("Isles: {{plainlist|\n* Skye\n* Mull}}", "en", "Isles:\nSkye\nMull"),
        ("{{circa}} 1500, {{circa|1510|1520}}", "en", "c. 1500, c. 1510 – 1520"),
        ("3{{e|5}} kg or {{val|1.5|e=3|u=m}}", "en", "3×10^5 kg or 1.5×10^3 m"),
        ("{{OldStyleDate|6 June|1799|26 May}}", "en", "6 June [O.S. 26 May] 1799"),
        ("{{OldStyleDate|6 июня|1799|26 мая}}", "ru", "26 мая [6 июня] 1799"),
        ("{{s-|I|er}}, {{s2-|XII|e|XIII|e}}", "fr", "Ier siècle, XIIe et XIIIe siècles"),
        ("{{-s|II|e}}, {{sp-|VII|e|au|IX|e}}", "fr", "IIe siècle av. J.-C., VIIe au IXe siècles"),
        ("{{lang|en|Word}} {{n°}} 7, {{tmp|20}}, {{tmp|70|°F}}", "fr", "Word no 7, 20 °C, 70 °F"),
        ("{{unité|3,5|hab./km|2}} le {{date|4|5|1970}}", "fr", "3,5 hab./km2 le 4 mai 1970"),
        ("{{fecha|4|5|1970}}", "es", "4 de mayo de 1970"),
        ("{{تحويل|5|كم|ميل}} سنة 1200 {{هـ}}", "ar", "5 كم سنة 1200 هـ"),
        ("{{Template:small|x}} {{subst:small|y}} {{ SMALL_ | 1=z}}", "en", "x y z"),
    ],
)
def test_templates_with_a_rule_show_their_text(wikitext: str, lang: str, text: str) -> None:
    assert text_of(wikitext, lang) == text


@pytest.mark.parametrize(
    ("wikitext", "lang", "kept", "dropped"),
    [
        ("It has {{pop|x}} people. It is old.", "en", "It is old.", 1),
        ("{{Pop|x}} people live here. It is old.", "en", "It is old.", 1),
        ("人口は{{人口|x}}人である。川は近い。", "ja", "川は近い。", 1),
        ("It costs €{{price|x}} now. It is old.", "en", "It is old.", 1),
        ("A fact{{note of some kind}} stays. {{Note}} So does this.", "en", "A fact stays. So does this.", 0),
        ("{{Infobox}}\n{{Banner}}\nThe text.", "en", "The text.", 0),
        ("Bob ({{birthplace|x}} in Rome) left.", "en", "Bob left.", 0),
        ("* {{flag icon of}} Name {{mark}}", "en", "Name", 0),
    ],
)
def test_a_sentence_with_a_hole_is_dropped_and_counted(
    wikitext: str, lang: str, kept: str, dropped: int
) -> None:
    assert plain_text(wikitext, SiteInfo(lang)) == CleanText([kept], dropped)


def test_holed_sentences_may_be_kept() -> None:
    clean = plain_text("It has {{pop|x}} people.", EN, WikitextOptions(drop_holed_sentences=False))
    assert clean == CleanText(["It has people."], 0)


def test_users_rules_are_laid_over_the_built_in_ones(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        'families:\n  mine: en de\nrules:\n  mine:\n    "<{1}>": small\n    "{2}[ of {1}]": pop\n'
    )
    assert text_of("{{small|a}} has {{pop|b|7}} men", template_rules=str(rules)) == "<a> has 7 of b men"
    assert text_of("{{small|a}}", "fr", template_rules=str(rules)) == "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rules: [", "not YAML"),
        ("rulez: {}", "expected the keys"),
        ('rules:\n  all:\n    "{1": a', "do not match"),
        ('rules:\n  all:\n    "[{1}": a', "without"),
        ('rules:\n  all:\n    "function nope": a', "no function 'nope'"),
        ("rules:\n  all:\n    - a", "expected a mapping"),
    ],
)
def test_wrong_rules_are_refused_by_file_and_place(tmp_path: Path, content: str, message: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        text_of("x", template_rules=str(rules))
    assert "rules.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_rule_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no-such\.yaml: no such file"):
        text_of("x", template_rules="/no-such.yaml")


# --- what stays of gaps ---


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("Rome ({{IPA|x}}, {{lang-it|Roma}}; {{IPA|y}}) is old.", "Rome (Roma) is old."),
        ("Ann (Welsh: {{IPA|x}}) ({{IPA|y}} – {{IPA|z}}) left.", "Ann left."),
        ("Word {{sfn|a}} , next {{cn}}. End <ref>x</ref>.", "Word, next. End."),
        ("X «{{IPA|z}}» y.", "X y."),
        ("A book. {{ISBN|1}}. More.", "A book. More."),
        ("main() and f ( ) stay", "main() and f stay"),
        ("青石（{{IPA|x}}、青石）山。", "青石（青石）山。"),
    ],
)
def test_brackets_and_marks_close_over_a_gap(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


# --- tags ---


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("F.<ref>a\n\nN.<ref>b</ref> M.", "F.\nN. M."),
        ('F.<ref name="x"/ > G.<REF>h</REF > I.<references>\n<ref>l</ref></references>', "F. G. I."),
        ("A<table><tr><td>x<table>y</table></td></tr></table>B", "A\nB"),
        ('<span style="display:none">h</span>s <div style="display: none">a<div>b</div>c</div>t', "s\nt"),
        ("<ruby>山<rp>(</rp><rt>やま</rt><rp>)</rp></ruby>と<ruby>川<rt>かわ</ruby>", "山と川"),
        ("a<br\n/>b</br>c<p>d</p>lo<wbr>ng", "a\nb\nc\nd\nlong"),
        ("<pre>a  [[b]]\nc</pre>d <nowiki>''e''</nowiki>", "a [[b]]\nc\nd ''e''"),
        ("<poem>one\ntwo</poem>", "one\ntwo"),
        ("x <syntaxhighlight lang=py>y=1</syntaxhighlight> z", "x y=1 z"),
        ("A.<syntaxhighlight>\nb\nc\n</syntaxhighlight>", "A."),
        ("a <!-- b --> c --> d <!-- e\n\nf", "a c --> d\nf"),
        ("see http://x.y/z--> <!--c--> d", "see --> d"),
        ('A<ref name="x"Text\n\nB.<ref>c</ref d<br< e <small f', "A\nB. d\n< e f"),
        ("1 <x> 2 vector<int> a < b > c", "1 <x> 2 vector<int> a < b > c"),
        ("<noinclude>a</noinclude><includeonly>b</includeonly>c", "ac"),
    ],
)
def test_tags(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


def test_math_as_tex_or_placeholder() -> None:
    wikitext = "Area <math display=block>\\pi\n r^2</math> and <chem>H2O</chem>."
    assert text_of(wikitext) == "Area \\pi r^2 and H2O."
    assert text_of(wikitext, math="placeholder") == "Area [formula] and H2O."


@pytest.mark.parametrize(
    "formula",
    [
        "<math>E = mc^2</math>",
        ":<math display=block>x</math>,",
        "* <math>a</math>; <math>b</math> {{math|''c''}}.",
        ":: <math>p_1</math> (Eq. 3a)",
        "<ce>2 H2 + O2 -> 2 H2O</ce>",
    ],
)
def test_a_paragraph_of_nothing_but_formulas_is_dropped_and_counted(formula: str) -> None:
    wikitext = f"Mass is <math>m</math>, so\n\n{formula}\n\nwhere {{{{mvar|c}}}} is light."
    clean = plain_text(wikitext, SiteInfo("en"))
    assert clean.paragraphs == ["Mass is m, so", "where c is light."]
    assert clean.formula_paragraphs == 1
    assert clean.formula_chars > 0
    kept = plain_text(wikitext, SiteInfo("en"), WikitextOptions(math="tex"))
    assert len(kept.paragraphs) == 3
    assert kept.formula_paragraphs == 0


# --- lines ---


def test_headings_and_lists_by_option() -> None:
    wikitext = "== A ==\nText\n=== B === <!-- c -->\n* x\n*# y\n; T : d\n:: in\nend"
    assert text_of(wikitext) == "Text\nx\ny\nT\nd\nin\nend"
    assert text_of(wikitext, headings="keep", lists="drop") == "A\nText\nB\nin\nend"


def test_a_line_that_only_begins_like_a_heading_is_text() -> None:
    assert text_of("= 5 apples\n\nmore") == "= 5 apples\nmore"


def test_tables_are_dropped_and_unclosed_ones_end_with_their_paragraph() -> None:
    assert text_of("A\n:{| class=x\n| {{b|\n| c}}\n|}\ntail\nB") == "A\ntail B"
    assert text_of("A\n{|\n| a || b\n\nText.\n{|\n|c\n|}\nEnd.") == "A\nText.\nEnd."
    assert text_of("{{Box|\n{|\n| a\n|}}}B") == "B"
    assert text_of("{{Box\n| a\n|}}B") == "B"


def test_unclosed_templates_end_at_the_first_line_that_is_not_an_argument() -> None:
    assert text_of("{{Infobox\n|a=1\n|b={{c|d}}\nThe lead.\n\nMore.") == "The lead.\nMore."
    assert text_of("{{Infobox|a=1}\n\nText {{small|x}}.") == "Text x."


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("l'''Iliade''", "l'Iliade"),
        ("'''''a''' b'' ''''c'''", "a b 'c"),
        ("rock 'n' roll", "rock 'n' roll"),
    ],
)
def test_apostrophes(wikitext: str, text: str) -> None:
    assert text_of(wikitext) == text


def test_entities_are_decoded_once_and_only_known_ones() -> None:
    assert text_of("&amp;lt; &#x4E2D; &notit; &copy &nbsp;&#8212;") == "&lt; 中 &notit; &copy —"


def test_behaviour_switches_of_any_script() -> None:
    assert text_of("__NOTOC__ __विषय_सूची_नहीं__ __БЕЗ_ОГЛ__ __init__ x") == "__init__ x"


def test_variants() -> None:
    assert text_of("-{A|zh-hans:甲;zh-hant:乙}-丙-{H|x}--{R|丁}-", "zh") == "甲丙丁"
    assert text_of("x-{y}-z") == "x-{y}-z"


# --- any input ---

_PIECES = st.sampled_from(
    [
        *"{{ }} {{{ }}} [[ ]] [ ] | {| |} |- <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> <math>".split(),
        *"</math> <table> </table> <rt> <poem> </poem>".split(),
        *"-{ }- '' ''' ''''' &amp; &#1; http://a :// __X__ File: {{x".split(),
        *"{{small| {{#if: {{#switch: {{lang|en| = ; : ( ) « » . , a B 1 \x01 \x02 山 。".split(),
        *["\n", "\n\n", "\n* ", "\n== ", "\x0b", "<div style='display:none'>", "</div>"],
        *["{{small|\n* a}}", "{{#if:x|\n; a : b}}", "[[x|\n# a]]", "{{citation|\n: a}}", "'''\n* a'''"],
    ]
)


@given(
    st.lists(_PIECES, max_size=60).map(" ".join) | st.lists(_PIECES, max_size=60).map("".join),
    st.sampled_from(["en", "fr", "zh"]),
)
def test_any_input_gives_paragraphs_without_marks_of_ours(wikitext: str, lang: str) -> None:
    clean = plain_text(wikitext, SiteInfo(lang))
    assert clean == plain_text(wikitext, SiteInfo(lang))
    for paragraph in clean.paragraphs:
        assert paragraph == " ".join(paragraph.split())
        assert paragraph
        assert not set(paragraph) & set(MARKS)


@pytest.mark.parametrize(
    "unit", ["{{a|", "[[", "\n{|\n|", "<ref>", "<!--", "<div style='display:none'>", "({{x}}", "“{{x}} "]
)
def test_a_construct_repeated_without_end_costs_no_more_per_character(unit: str) -> None:
    # Count steps instead of seconds: the Python calls for one and for four times the input.
    def calls(count: int) -> int:
        import sys

        made = 0

        def count_call(frame: object, event: str, _: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count_call)
        try:
            plain_text("Text. " + unit * count, EN)
        finally:
            sys.setprofile(None)
        return made

    calls(10)
    assert calls(4000) < 6 * calls(1000) + 2000


@pytest.mark.parametrize(
    ("lang", "wikitext", "kept", "dropped"),
    [
        ("en", "It lies at {{coord|1|N|2|E}}. It is old.", ["It is old."], 1),
        ("en", "It lies at {{coord|1|N|2|E}}<ref>a</ref>. It is old.", ["It is old."], 1),
        ("en", "It lies at {{coord|1|2}}, near Bath. It is old.", ["It is old."], 1),
        ("en", "The tower at {{coord|1|2|display=inline,title}} is high. Yes.", ["Yes."], 1),
        ("de", "Der Turm steht bei {{Coordinate|NS=1|EW=2}}. Er ist alt.", ["Er ist alt."], 1),
        ("ru", "Маяк находится в точке {{coord|1|2}}. Он стар.", ["Он стар."], 1),
        ("ja", "塔は{{coord|1|2}}にある。橋は古い。", ["橋は古い。"], 1),
        ("en", "It is pronounced {{IPA|en|x}}. It is old.", ["It is old."], 1),
        ("en", "It is written <hiero>A1</hiero>. It is old.", ["It is old."], 1),
        ("en", "It lies at <maplink zoom=3>{}</maplink>. It is old.", ["It is old."], 1),
        ("en", "* Tower at {{coord|1|2}}\n* The bridge {{coord|1|2}}", ["The bridge"], 1),
        ("en", "Bath {{coord|1|2}} is a city.{{coord|1|2}} Old. {{coord|1|2}}", ["Bath is a city. Old."], 0),
        (
            "en",
            "A town in France {{coord|1|2|display=title}}. It is old.",
            ["A town in France. It is old."],
            0,
        ),
        ("en", "Bath ({{IPA|en|x}}; {{coord|1|2}}) is a city.", ["Bath is a city."], 0),
        ("en", "{{coord|1|2}}\n\nBath {{IPA|en|x}} is a city.", ["Bath is a city."], 0),
    ],
)
def test_a_sentence_that_ends_in_coordinates_has_a_hole(
    lang: str, wikitext: str, kept: list[str], dropped: int
) -> None:
    text = plain_text(wikitext, SiteInfo(lang, f"{lang}wiki", {}))
    assert (text.paragraphs, text.dropped_sentences) == (kept, dropped)
