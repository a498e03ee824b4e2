"""Tests what the analysis learns about templates from their wikitext, and pages that use them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.wikitext.plain_text import CleanText, TemplateTable, WikitextOptions, plain_text
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_analysis import Analysis, learn_templates
from pipeline.wikitext.templates.transclusion import included, template_name


def learn(pages: dict[str, str], lang: str = "en") -> Analysis:
    site = SiteInfo(lang)
    found = {template_name(name, site): included(text, site) for name, text in pages.items()}
    return learn_templates(found, dict.fromkeys(found, 1), site)


def clean(wikitext: str, pages: dict[str, str], lang: str = "en", title: str = "") -> CleanText:
    return plain_text(wikitext, SiteInfo(lang), WikitextOptions(), learn(pages, lang).table, title)


@pytest.mark.parametrize(
    ("body", "kind", "arguments"),
    [
        ("''{{{1}}}''", "text", ("1",)),
        ("<blockquote>{{{text|{{{1|}}}}}}</blockquote>", "text", ("1", "text")),
        ("{{{1}}}&nbsp;km", "value", ("1",)),
        ("&nbsp;", "value", ()),
        ("[[File:Flag of {{{1}}}.svg|20px]] [[{{{1}}}]]", "text", ("1",)),
        ("[[File:x.svg|20px]]", "nothing", ()),
        ("[[Category:{{{1}}}]]", "nothing", ()),
        ("<ref>{{{1}}}</ref>", "reference", ()),
        ("{{#tag:ref|{{{1}}}|name=x}}", "reference", ()),
        ("<cite class='citation'>{{{title}}}</cite>", "reference", ()),
        ("[http://x.org/{{{id}}} {{{title}}}] on X", "reference", ()),
        ("<div class='hatnote'>Main article: [[{{{1}}}]]</div>", "navigation", ()),
        (":''Main article: [[{{{1}}}]]''", "navigation", ()),
        ("<div class='navbox'>[[A]] [[B]]</div>", "navigation", ()),
        ("<table class='infobox'><tr><td>{{{a}}}</td></tr></table>", "box", ()),
        ("{|\n| {{{a}}}\n|}", "box", ()),
        ("<sup class='noprint'>[source?]</sup>", "maintenance", ()),
        ("<div>This article about a river is a stub. You can help by adding to it.</div>", "maintenance", ()),
        ("<span class='IPA'>{{{1}}}</span>", "aside", ()),
        ("{{#invoke:Foo|bar}}", "unknown", ()),
        ("{{#invoke:navbox|navbox}}", "nothing", ()),
    ],
)
def test_kinds(body: str, kind: str, arguments: tuple[str, ...]) -> None:
    entry = learn({"x": body}).table.find("x")
    assert entry is not None
    assert (entry.kind, entry.arguments) == (kind, arguments)


@pytest.mark.parametrize(
    ("wikitext", "pages", "text"),
    [
        ("le {{1er|tour}} de", {"1er": "1<sup>er</sup>{{#if:{{{1|}}}|&nbsp;{{{1}}}}}"}, "le 1er tour de"),
        ("$1.5{{Nbs}}billion", {"Nbsp": "&nbsp;", "nbs": "#REDIRECT [[Template:Nbsp]]"}, "$1.5 billion"),
        ("{{a|7}}", {"A": "{{b|{{{1}}}|u=m}}", "B": "{{{1}}} {{{u|km}}}"}, "7 m"),
        ("{{x|fr}} {{x|zz}}", {"x": "{{#switch:{{{1}}}|de|gsw=German|fr=French|#default=?}}"}, "French ?"),
        ("{{x|de}}", {"x": "{{name of {{{1}}}}}", "name of de": "German", "name of fr": "French"}, "German"),
        ("{{x|2}}", {"x": "{{formatnum:{{#switch:{{{1}}}|1=1234|2=5}}}}"}, "5"),
        ("{{x|3}}", {"x": "{{#expr:{{{1}}}*2}} m"}, "6 m"),
        ("{{x|a}}", {"x": "{{#ifeq:{{{1}}}|a|{{lc:{{{2|B}}}}}|c}}"}, "b"),
        ("{{x|1=a|b}}", {"x": "{{{1}}}{{{2|}}}"}, "b"),
        ("A {{x| b }}c", {"x": "{{{1}}}"}, "A b c"),
        ("{{{!}}", {}, ""),
        ("See {{x}}: y", {"x": "<onlyinclude>{{{1|this}}}</onlyinclude>doc"}, "See this: y"),
        ("Old{{x}} town.", {"x": "<sup class='noprint'>[who?]</sup>"}, "Old town."),
        ("{{x}}Text.", {"x": "{{#if:{{{1|}}}||{{{!}} class=y\n{{!}} {{{a}}}\n{{!}}}}}"}, "Text."),
        ("{{q|Es steigt.|R}}Dann.", {"q": "<blockquote>{{{1}}}</blockquote>"}, "Es steigt.\nDann."),
        ("5 {{cvt2|3|m}}", {"cvt2": "{{#invoke:convert|convert}}"}, "5 3 m"),
        ("{{x}}", {"x": "{{#invoke:If empty|main|{{{1|}}}|b}}"}, "b"),
        ("{{Lang2|fr|mot}}", {"Lang2": "#REDIRECT [[Template:Langx]]"}, "mot"),
        ("One. {{t}} Two.", {"t": "{| class=x\n| a\n|}"}, "One.\nTwo."),
        (
            "One.\n{{t|a}}\nTwo.",
            {"t": "<table class=infobox><tr><td>{{{1}}}</td></tr></table>"},
            "One.\nTwo.",
        ),
        ("One.{{t}}\nTwo.", {"t": "<div class=hatnote>See {{{1}}}.</div>"}, "One.\nTwo."),
        ("One {{t|x}} two.", {"t": "<span class=noprint>{{{1}}}</span>"}, "One two."),
        ("It is at {{t|1}}. Old.", {"t": "<span class=geo>{{{1}}}° N</span>"}, "Old."),
        ("{{#titleparts:A/B/C|1|2}} {{#titleparts:A/B/C|-1}} {{#titleparts:A/B||-1}}", {}, "B A/B B"),
        ("A\n\n{{m|x{{=}}1}}\n\nB {{m|y}}.", {"m": '<span class="texhtml">{{{1}}}</span>'}, "A\nB y."),
    ],
)
def test_pages_show_what_their_templates_do(wikitext: str, pages: dict[str, str], text: str) -> None:
    assert "\n".join(clean(wikitext, pages).paragraphs) == text


@pytest.mark.parametrize(
    ("wikitext", "lang", "title", "text"),
    [
        ("'''{{PAGENAME}}''' is a town.", "en", "Bath, Somerset", "Bath, Somerset is a town."),
        ("'''{{SEITENNAME}}''' ist alt.", "de", "Köln", "Köln ist alt."),
        ("{{FULLPAGENAME}} and {{SUBPAGENAME}}", "en", "AC/DC", "AC/DC and AC/DC"),
        ("{{BASEPAGENAME}} of {{NAMESPACE}}x", "en", "AC/DC", "AC/DC of x"),
        ("{{НАЗВАНИЕ СТРАНИЦЫ}} стоит.", "ru", "Мост", "Мост стоит."),
    ],
)
def test_the_page_name_is_the_title(wikitext: str, lang: str, title: str, text: str) -> None:
    assert "\n".join(clean(wikitext, {}, lang, title).paragraphs) == text


def test_without_a_title_the_page_name_is_a_hole() -> None:
    assert clean("{{PAGENAME}} is a town. It is old.", {}).paragraphs == ["It is old."]


@pytest.mark.parametrize(
    "pages",
    [
        {"x": "{{x}}"},
        {"x": "{{x|{{{1}}}{{{1}}}}}"},
        {"x": "{{y}}", "y": "{{z}}", "z": "{{x}}"},
        {"x": "#REDIRECT [[Template:y]]", "y": "#REDIRECT [[Template:x]]"},
        {"x": "{{" * 100_000},
        {"x": "{{a|" * 4_000},
        {"x": "{{{" * 5_000},
        {"x": "a" * 4_000_000},
        {"x": "{{#if:{{{1}}}|" * 1_000},
        {"x": "{{missing template}}"},
        {"x": "{{CURRENTYEAR}}"},
        {"x": "{{#time:Y}}"},
    ],
)
def test_templates_without_a_text_are_holes_and_never_fail(pages: dict[str, str]) -> None:
    found = clean("It has {{x|a}} men. It is old.", pages)
    assert found.paragraphs == ["It is old."]
    assert found == clean("It has {{x|a}} men. It is old.", pages)


def test_an_expansion_that_doubles_at_each_level_is_bounded() -> None:
    pages = {
        f"d{n}": f"{{{{d{n + 1}|{{{{{{1}}}}}}{{{{{{1}}}}}}}}}}{{{{d{n + 1}|{{{{{{1}}}}}}}}}}"
        for n in range(40)
    }
    assert clean("It has {{d0|a}} men. It is old.", pages).paragraphs[-1] == "It is old."


def test_what_was_learned_goes_before_shipped_rules_and_the_users_before_it(tmp_path: Path) -> None:
    table: TemplateTable = learn({"small": "[{{{1}}}]", "Iw": "{{#invoke:x|y}}"}).table
    rules = tmp_path / "rules.yaml"
    rules.write_text('rules: {all: {"<{1}>": small}}\n')
    site, page = SiteInfo("en"), "{{small|a}} {{iw|b|c}} {{nowrap|d}} {{zzz}}"
    first = plain_text(page, site, WikitextOptions(drop_holed_sentences=False), table)
    assert first.paragraphs == ["[a] c d"]
    assert first.decided == {"learned": 1, "built_in": 2, "unknown": 1}
    second = plain_text(page, site, WikitextOptions(template_rules=str(rules)), table)
    assert second.decided["user"] == 1


def test_the_table_does_not_depend_on_the_order_of_pages() -> None:
    pages = {"a": "{{b|{{{1}}}}}", "b": "{{{1}}} {{c}}", "c": "#REDIRECT [[Template:D]]", "d": "km"}
    one, other = learn(pages), learn(dict(reversed(pages.items())))
    assert one.table.entries == other.table.entries
    assert one.table.aliases == other.table.aliases == {"C": "D"}
    assert one.counts == other.counts


def test_only_templates_that_are_used_or_called_are_kept() -> None:
    site = SiteInfo("en")
    pages = {"A": included("{{b}}", site), "B": included("x", site), "C": included("y", site)}
    found = learn_templates(pages, {"A": 3, "Gone": 1}, site)
    assert {name: entry.uses for name, entry in found.table.entries.items()} == {"A": 3, "B": 0}
    assert found.counts["missing"] == 1


def test_explain_takes_templates_and_a_title() -> None:
    records = [
        {
            "id": 1,
            "lang": "en",
            "wikitext": "{{PAGENAME}} {{a|b}}",
            "title": "T",
            "templates": {"A": "<{{{1}}}>"},
        },
        {"id": 2, "lang": "en", "wikitext": "x", "templates": ["a"]},
        {"id": 3, "lang": "en", "wikitext": "x", "title": 3},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bertmill", "explain", "wikitext"],
        input="\n".join(map(json.dumps, records)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first == {"id": 1, "output": "T <b>"}
    assert "templates: expected" in second["error"]
    assert "title: expected" in third["error"]
