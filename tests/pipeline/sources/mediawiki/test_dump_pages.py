"""Tests the pages of a dump: their text, their revision, and skipped and malformed pages."""

from pathlib import Path

import pytest

from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import read_dump
from schemas.errors import InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.pipeline.sources.mediawiki.reading import kept_pages, plan, read_pages, write


def test_text_is_unescaped_once(tmp_path: Path) -> None:
    text = "&lt;b&gt; &amp;amp; &amp;lt; &quot;q&quot; &#38;lt; &#x41;&#1046; a\r\nb"
    (document,) = kept_pages(write(tmp_path / "enwiki.xml", HEAD + page(1, text, title="A &amp; B") + FOOT))
    assert document.body == '<b> &amp; &lt; "q" &lt; AЖ a\nb'
    assert document.title == "A & B"
    assert (document.page_id, document.revision, document.lang) == ("1", 10, "en")


def test_comments_and_cdata_are_read_as_xml_says(tmp_path: Path) -> None:
    pages = page(1, "<![CDATA[a < b </page> <page> & c]]> d<!-- </page> -->") + "<!-- between -->" + page(2)
    one, two = kept_pages(write(tmp_path / "enwiki.xml", HEAD + pages + FOOT))
    assert one.body == "a < b </page> <page> & c d"
    assert two.page_id == "2"


def test_the_highest_revision_of_a_page_counts(tmp_path: Path) -> None:
    revision = "    <revision><id>{}</id><text>{}</text></revision>\n"
    history = "".join(revision.format(number, f"text {number} " * 50) for number in (5, 900, 17))
    body = f"  <page><title>T</title><ns>0</ns><id>4</id>\n{history}  </page>\n"
    path = write(tmp_path / "enwiki.xml", HEAD + body + FOOT)
    (document,) = kept_pages(path)
    assert (document.page_id, document.revision) == ("4", 900)
    # A history far longer than a page may be is read revision by revision.
    history = "".join(revision.format(number, f"text {number} " * 20_000) for number in range(1, 60))
    body = f"  <page><title>T</title><ns>0</ns><id>4</id>\n{history}  </page>\n"
    (unit,) = plan(write(path, HEAD + body + page(5) + FOOT))
    long, short = read_dump(unit, 300_000)
    assert isinstance(long, RawDocument)
    assert (long.revision, short.page_id) == (59, "5")


def test_a_page_over_the_limit_is_skipped_without_being_held(tmp_path: Path) -> None:
    path = write(tmp_path / "enwiki.xml", HEAD + page(1, "word " * 3_000_000) + page(2) + FOOT)
    (unit,) = plan(path)
    assert next(iter(read_dump(unit, 100_000))) == Skip("1", "Page 1", "en", "too-large")
    assert [item.page_id for item in read_dump(unit, 100_000)] == ["1", "2"]


def test_malformed_pages_are_counted_not_lost(tmp_path: Path) -> None:
    no_id = page(1).replace("<id>1</id>", "")
    bad_bytes = page(2, "caf\udcff").encode("utf-8", "surrogateescape")
    data = HEAD.encode() + no_id.encode() + bad_bytes + page(3).encode() + FOOT.encode()
    seen = read_pages(write(tmp_path / "enwiki.xml", data))
    assert [item.reason for item in seen if isinstance(item, Skip)] == ["malformed", "malformed"]
    assert [item.page_id for item in seen if isinstance(item, RawDocument)] == ["3"]


def test_only_the_main_slot_of_a_revision_is_text(tmp_path: Path) -> None:
    slot = "<content><role>mediainfo</role><model>wikibase-mediainfo</model><text>{}</text></content>"
    text = page(1, "main").replace("<sha1>0</sha1>", "<sha1>0</sha1>" + slot)
    (document,) = kept_pages(write(tmp_path / "enwiki.xml", HEAD + text + FOOT))
    assert document.body == "main"


def test_a_format_tells_the_content_where_no_model_does(tmp_path: Path) -> None:
    old = page(1).replace("      <model>wikitext</model>\n", "")
    style = old.replace("text/x-wiki", "text/css")
    seen = read_pages(write(tmp_path / "enwiki.xml", HEAD + old + style + FOOT))
    assert [type(item) for item in seen] == [RawDocument, Skip]
    assert isinstance(seen[1], Skip)
    assert seen[1].reason == "content-model"


def test_old_schemas_without_namespaces_and_models(tmp_path: Path) -> None:
    old = page(1).replace("    <ns>0</ns>\n", "").replace("      <model>wikitext</model>\n", "")
    talk = old.replace("Page 1", "Talk:Page 1")
    colon = old.replace("Page 1", "Dawn: a walk")
    seen = read_pages(write(tmp_path / "enwiki.xml", HEAD + old + talk + colon + FOOT))
    assert [item.reason if isinstance(item, Skip) else item.title for item in seen] == [
        "Page 1",
        "namespace",
        "Dawn: a walk",
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + HEAD + page(1, "Olá, señor") + FOOT
    (document,) = kept_pages(write(tmp_path / "enwiki.xml", text.encode(encoding)), unit_bytes=100)
    assert document.body == "Olá, señor"


def test_bare_pages_are_read_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "brwiki-test.xml", page(1) + page(2))
    (unit,) = plan(path)
    assert unit.lang == "br"
    assert "bare <page> elements" in unit.notes[0]
    assert len(kept_pages(path)) == 2
    with pytest.raises(InputError, match="does not give its language"):
        plan(write(tmp_path / "pages.xml", page(1)))
    assert plan(tmp_path / "pages.xml", lang="br")[0].lang == "br"
