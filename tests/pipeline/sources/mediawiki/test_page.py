"""Compares the fast parser of pages with a real XML parser."""

import random
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sources.mediawiki.page import MalformedPageError, parse_page, unescape
from pipeline.sources.mediawiki.xml_pages import plain_page
from tests.pipeline.sources.dumps import page

# Characters that XML 1.0 permits, with a higher share of special ones.
_CHARACTERS = st.one_of(
    st.sampled_from("&<>\"'#;x0\n\t ltgamp]-!"),
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
)
texts = st.text(_CHARACTERS, max_size=60)


def _escaped(text: str, seed: int) -> str:
    """``text`` as XML, every character in one of its possible forms."""
    draw = random.Random(seed)
    forms = {"&": ["&amp;"], "<": ["&lt;"], ">": ["&gt;"], '"': ['"', "&quot;"], "'": ["'", "&apos;"]}
    out = []
    for character in text:
        form = draw.choice(forms.get(character, [character]))
        if draw.random() < 0.1:
            form = draw.choice([f"&#{ord(character)};", f"&#x{ord(character):x};"])
        out.append(form)
    return "".join(out)


@settings(max_examples=100, deadline=None)
@given(texts, texts.map(str.strip).filter(bool), st.integers(0, 10**6))
def test_title_and_text_are_those_that_a_parser_reads(text: str, title: str, seed: int) -> None:
    title = " ".join(title.split())
    raw = page(1, _escaped(text, seed), title=_escaped(title, seed + 1)).strip()
    root = ElementTree.fromstring(raw)
    read = parse_page(raw.encode())
    assert read.text == (root.findtext("revision/text") or "")
    assert read.title == (root.findtext("title") or "").strip() == title.strip()
    assert read.text == text
    assert (read.page_id, read.revision, read.namespace, read.model) == ("1", 10, 0, "wikitext")


def test_the_time_is_that_of_the_revision_that_is_read() -> None:
    raw = page(1).replace("<contributor>", "<timestamp>2026-08-31T23:59:59Z</timestamp><contributor>")
    assert parse_page(raw.encode()).timestamp == "2026-08-31T23:59:59Z"
    older = "<revision><id>9</id><timestamp>2001-01-01T00:00:00Z</timestamp><text>Old</text></revision>"
    assert parse_page(raw.replace("</page>", f"{older}</page>").encode()).timestamp == "2026-08-31T23:59:59Z"
    assert parse_page(page(1).encode()).timestamp == ""


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(texts, st.sampled_from(["text", "cdata", "comment"])), max_size=5))
def test_comments_and_cdata_are_resolved_as_a_parser_does(parts: list[tuple[str, str]]) -> None:
    body = ""
    for text, form in parts:
        if form == "cdata":
            body += f"<![CDATA[{text.replace(']]>', '')}]]>"
        elif form == "comment":
            body += f"<!--{text.replace('-', '')}-->"
        else:
            body += _escaped(text, 0)
    raw = page(1, body).strip()
    root = ElementTree.fromstring(raw)
    assert parse_page(plain_page(raw.encode())).text == (root.findtext("revision/text") or "")


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("&amp;amp;", "&amp;"),
        ("&#38;amp;", "&amp;"),
        ("&&#97;mp;lt;", "&amp;lt;"),
        ("&#x26;#60;", "&#60;"),
        ("&unknown; & &", "&unknown; & &"),
        ("&#0;&#xD800;&#x110000;", "\0\ufffd\ufffd"),
    ],
)
def test_entities_are_resolved_once(escaped: str, text: str) -> None:
    assert unescape(escaped) == text


@pytest.mark.parametrize(
    "raw",
    [
        "<page><title>A</title><ns>0</ns></page>",
        "<page><title>A</title><ns>0</ns><id>x</id></page>",
        "<page><title>A</title><ns>zero</ns><id>1</id></page>",
        f"<page><title>A</title><ns>0</ns><id>{2**63}</id></page>",
        f"<page><title>A</title><ns>0</ns><id>1</id><revision><id>{2**63}</id></revision></page>",
        f"<page><title>A</title><ns>0</ns><id>{'9' * 5000}</id></page>",
    ],
)
def test_a_page_without_its_numbers_is_malformed(raw: str) -> None:
    with pytest.raises(MalformedPageError):
        parse_page(raw.encode())


def test_damaged_xml_in_a_page_with_comments_is_refused() -> None:
    for raw in (b"<page><!-- x --><title>A</page>", b"<page><!-- x --><title>&a;</title></page>"):
        with pytest.raises(ValueError, match=r"mismatched|undefined|entity"):
            plain_page(raw)
