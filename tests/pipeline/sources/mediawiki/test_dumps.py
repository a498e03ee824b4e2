"""Real and made dumps: the same pages for any cut, and every truncation noticed."""

import bz2
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import BuildConfig, Source
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import plan_dump, read_dump
from pipeline.sources.mediawiki.multistream_index import read_index
from pipeline.sources.plan import plan_units
from pipeline.sources.units import Unit
from schemas.errors import InputError
from tests.pipeline.sources.bzip2_blocks import one_stream
from tests.pipeline.sources.dumps import FOOT, HEAD, LTG, LTG_INDEX, SAMPLE, page, streams

LIMIT = 4_000_000


def _plan(path: Path, **options: Any) -> list[Unit]:
    return plan_dump(source="wiki", uri=str(path), name=path.name, **options)


def _read(path: Path, **options: Any) -> list[RawDocument | Skip]:
    return [item for unit in _plan(path, **options) for item in read_dump(unit, LIMIT)]


def _kept(path: Path, **options: Any) -> list[RawDocument]:
    return [item for item in _read(path, **options) if isinstance(item, RawDocument)]


def _write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.fixture(scope="module")
def ltg_pages() -> list[RawDocument | Skip]:
    return _read(LTG)


def test_a_real_multistream_dump_is_read_whole(ltg_pages: Any) -> None:
    assert len(ltg_pages) == 2004
    unit = _plan(LTG)[0]
    assert (unit.lang, unit.dbname, unit.expected_pages) == ("ltg", "ltgwiki", 2004)
    assert dict(unit.site_namespaces)[14] == ("Kategoreja",)
    kept = [item for item in ltg_pages if isinstance(item, RawDocument)]
    assert len({document.page_id for document in kept}) == len(kept)
    assert all(document.body for document in kept)


@pytest.mark.parametrize("with_index", [True, False])
def test_units_of_one_file_give_the_same_pages_in_the_same_order(
    ltg_pages: Any, tmp_path: Path, with_index: bool
) -> None:
    path = tmp_path / LTG.name
    path.symlink_to(LTG)
    if with_index:
        (tmp_path / LTG_INDEX.name).symlink_to(LTG_INDEX)
    units = _plan(path, unit_bytes=65536)
    assert len(units) > 8
    assert (units[0].start, units[-1].end) == (0, path.stat().st_size)
    assert all((unit.expected_pages is not None) == with_index for unit in units)
    assert [item for unit in units for item in read_dump(unit, LIMIT)] == ltg_pages


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2"])
def test_every_form_of_one_dump_gives_the_same_pages(ltg_pages: Any, tmp_path: Path, suffix: str) -> None:
    text = bz2.decompress(LTG.read_bytes())
    pack: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": gzip.compress,
        ".zst": zstandard.ZstdCompressor().compress,
        ".bz2": bz2.compress,
    }
    path = _write(tmp_path / f"ltgwiki.xml{suffix}", pack[suffix](text))
    units = _plan(path, unit_bytes=65536)
    if suffix in ("", ".bz2"):
        assert len(units) == -(-path.stat().st_size // 65536)
    else:
        assert len(units) == 1
        assert "one unit" in units[0].notes[0]
    assert [item for unit in units for item in read_dump(unit, LIMIT)] == ltg_pages


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
    unit_bytes=st.integers(20, 4000),
    form=st.sampled_from(["plain", "streams", "blocks"]),
)
def test_no_cut_of_a_file_loses_or_doubles_a_page(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int], unit_bytes: int, form: str
) -> None:
    pages = "".join(page(number, "é語" * (size // 2)) for number, size in enumerate(sizes, 1))
    text = (HEAD + pages + FOOT).encode()
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    # Streams and blocks that end in the middle of pages, tags and characters, as pbzip2 and bzip2 make them.
    parts = [text[a:b] for a, b in pairwise(places)]
    name = "enwiki.xml" if form == "plain" else "enwiki.xml.bz2"
    path = tmp_path_factory.mktemp("cut") / name
    data = {"plain": text, "streams": b"".join(map(bz2.compress, parts)), "blocks": one_stream(parts)}
    _write(path, data[form])
    seen = _read(path, unit_bytes=unit_bytes)
    kept = [item for item in seen if isinstance(item, RawDocument)]
    assert [(item.page_id, item.body) for item in kept] == [
        (str(number), "é語" * (size // 2)) for number, size in enumerate(sizes, 1) if size > 1
    ]
    assert len(seen) == len(sizes)


def test_a_block_may_end_at_any_byte_between_two_pages(tmp_path: Path) -> None:
    text = (HEAD + page(1, "語") + page(2, "é") + FOOT).encode()
    for border in range(text.index("語".encode()), text.index(b"<title>Page 2") + 3):
        path = _write(tmp_path / "enwiki.xml.bz2", one_stream([text[:border], text[border:]]))
        (whole,) = _plan(path)
        # The second block begins somewhere here, and with it the pages of the second unit.
        for cut in (40, whole.size // 2, whole.size - 20):
            units = [replace(whole, end=cut), replace(whole, start=cut)]
            assert [item.page_id for unit in units for item in read_dump(unit, LIMIT)] == ["1", "2"]


def test_one_stream_gives_the_documents_of_the_multistream_dump(tmp_path: Path) -> None:
    """Rows of documents, to the byte."""

    def rows(units: list[Unit]) -> list[dict[str, object]]:
        config = BuildConfig(output="out", sources=[Source(name="wiki", kind="wikimedia", paths=["x"])])
        funnel = Funnel()
        return [
            row for unit in units for batch in extract_unit(unit, config, funnel) for row in batch.to_pylist()
        ]

    whole = bz2.compress(bz2.decompress(LTG.read_bytes()), 1)
    path = _write(tmp_path / "ltgwiki-2026-09-01-p1p9999.xml.bz2", whole)
    units = _plan(path, unit_bytes=65536)
    assert len(units) > 10
    assert rows(units) == rows(_plan(LTG, unit_bytes=1 << 30))


@settings(max_examples=100, deadline=None)
@given(
    pages=st.integers(0, 5),
    cuts=st.lists(st.integers(0, 10_000), min_size=1, max_size=8),
    keep=st.integers(0, 8),
    unit_bytes=st.integers(20, 4000),
    compressed=st.booleans(),
)
def test_a_file_that_ends_at_any_cut_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    pages: int,
    cuts: list[int],
    keep: int,
    unit_bytes: int,
    compressed: bool,
) -> None:
    text = (HEAD + "".join(page(number) for number in range(pages)) + FOOT).rstrip()
    places = sorted({0, *(cut % len(text) for cut in cuts)})[: keep + 2]
    parts = [text[a:b] for a, b in pairwise(places)]
    path = tmp_path_factory.mktemp("cut") / ("enwiki.xml.bz2" if compressed else "enwiki.xml")
    _write(path, streams(*parts) if compressed else "".join(parts))
    with pytest.raises(InputError, match="enwiki"):
        _read(path, unit_bytes=unit_bytes)


def test_a_cut_at_any_byte_is_noticed(tmp_path: Path) -> None:
    text = HEAD + page(1) + page(2) + FOOT
    for keep in range(1, len(text.rstrip())):
        with pytest.raises(InputError, match=r"enwiki\.xml"):
            _read(_write(tmp_path / "enwiki.xml", text[:keep]), unit_bytes=400)


def test_a_cut_between_streams_is_noticed_whatever_the_units(tmp_path: Path) -> None:
    parts = [HEAD, *(page(number) for number in range(1, 6)), FOOT]
    for unit_bytes in (50, 300, 100_000):
        path = _write(tmp_path / "enwiki.xml.bz2", streams(*parts[:-1]))
        with pytest.raises(InputError, match=r"truncated.*</mediawiki>"):
            _read(path, unit_bytes=unit_bytes)
        assert len(_read(_write(path, streams(*parts)), unit_bytes=unit_bytes)) == 5


def test_a_missing_stream_is_noticed_by_the_index(tmp_path: Path) -> None:
    parts = [HEAD, page(1), page(2), page(3), FOOT]
    packed = [streams(part) for part in parts]
    index, offset = "", len(packed[0])
    for number in (1, 2, 3):
        index += f"{offset}:{number}:Page {number}\n"
        offset += len(packed[number])
    path = tmp_path / "enwiki-pages-articles-multistream.xml.bz2"
    (tmp_path / "enwiki-pages-articles-multistream-index.txt.bz2").write_bytes(bz2.compress(index.encode()))
    assert len(_read(_write(path, b"".join(packed)))) == 3
    with pytest.raises(InputError, match="2 pages, but the index lists 3"):
        _read(_write(path, b"".join(packed[:2] + packed[3:])))
    with pytest.raises(InputError, match=r"truncated.*index"):
        _read(_write(path, b"".join(packed[:2])))


def test_text_is_unescaped_once(tmp_path: Path) -> None:
    text = "&lt;b&gt; &amp;amp; &amp;lt; &quot;q&quot; &#38;lt; &#x41;&#1046; a\r\nb"
    (document,) = _kept(_write(tmp_path / "enwiki.xml", HEAD + page(1, text, title="A &amp; B") + FOOT))
    assert document.body == '<b> &amp; &lt; "q" &lt; AЖ a\nb'
    assert document.title == "A & B"
    assert (document.page_id, document.revision, document.lang) == ("1", 10, "en")


def test_comments_and_cdata_are_read_as_xml_says(tmp_path: Path) -> None:
    pages = page(1, "<![CDATA[a < b </page> <page> & c]]> d<!-- </page> -->") + "<!-- between -->" + page(2)
    one, two = _kept(_write(tmp_path / "enwiki.xml", HEAD + pages + FOOT))
    assert one.body == "a < b </page> <page> & c d"
    assert two.page_id == "2"


def test_the_highest_revision_of_a_page_counts(tmp_path: Path) -> None:
    revision = "    <revision><id>{}</id><text>{}</text></revision>\n"
    history = "".join(revision.format(number, f"text {number} " * 50) for number in (5, 900, 17))
    body = f"  <page><title>T</title><ns>0</ns><id>4</id>\n{history}  </page>\n"
    path = _write(tmp_path / "enwiki.xml", HEAD + body + FOOT)
    (document,) = _kept(path)
    assert (document.page_id, document.revision) == ("4", 900)
    # A history far longer than a page may be is read revision by revision.
    history = "".join(revision.format(number, f"text {number} " * 20_000) for number in range(1, 60))
    body = f"  <page><title>T</title><ns>0</ns><id>4</id>\n{history}  </page>\n"
    (unit,) = _plan(_write(path, HEAD + body + page(5) + FOOT))
    long, short = read_dump(unit, 300_000)
    assert isinstance(long, RawDocument)
    assert (long.revision, short.page_id) == (59, "5")


def test_a_page_over_the_limit_is_skipped_without_being_held(tmp_path: Path) -> None:
    path = _write(tmp_path / "enwiki.xml", HEAD + page(1, "word " * 3_000_000) + page(2) + FOOT)
    (unit,) = _plan(path)
    assert next(iter(read_dump(unit, 100_000))) == Skip("1", "Page 1", "en", "too-large")
    assert [item.page_id for item in read_dump(unit, 100_000)] == ["1", "2"]


def test_malformed_pages_are_counted_not_lost(tmp_path: Path) -> None:
    no_id = page(1).replace("<id>1</id>", "")
    bad_bytes = page(2, "caf\udcff").encode("utf-8", "surrogateescape")
    data = HEAD.encode() + no_id.encode() + bad_bytes + page(3).encode() + FOOT.encode()
    seen = _read(_write(tmp_path / "enwiki.xml", data))
    assert [item.reason for item in seen if isinstance(item, Skip)] == ["malformed", "malformed"]
    assert [item.page_id for item in seen if isinstance(item, RawDocument)] == ["3"]


def test_only_the_main_slot_of_a_revision_is_text(tmp_path: Path) -> None:
    slot = "<content><role>mediainfo</role><model>wikibase-mediainfo</model><text>{}</text></content>"
    text = page(1, "main").replace("<sha1>0</sha1>", "<sha1>0</sha1>" + slot)
    (document,) = _kept(_write(tmp_path / "enwiki.xml", HEAD + text + FOOT))
    assert document.body == "main"


def test_a_format_tells_the_content_where_no_model_does(tmp_path: Path) -> None:
    old = page(1).replace("      <model>wikitext</model>\n", "")
    style = old.replace("text/x-wiki", "text/css")
    seen = _read(_write(tmp_path / "enwiki.xml", HEAD + old + style + FOOT))
    assert [type(item) for item in seen] == [RawDocument, Skip]
    assert isinstance(seen[1], Skip)
    assert seen[1].reason == "content-model"


def test_old_schemas_without_namespaces_and_models(tmp_path: Path) -> None:
    old = page(1).replace("    <ns>0</ns>\n", "").replace("      <model>wikitext</model>\n", "")
    talk = old.replace("Page 1", "Talk:Page 1")
    colon = old.replace("Page 1", "Dawn: a walk")
    seen = _read(_write(tmp_path / "enwiki.xml", HEAD + old + talk + colon + FOOT))
    assert [item.reason if isinstance(item, Skip) else item.title for item in seen] == [
        "Page 1",
        "namespace",
        "Dawn: a walk",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "empty file"),
        ("   \n", "empty file"),
        ("<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
        ('<!DOCTYPE mediawiki [<!ENTITY a "b">]>' + HEAD + FOOT, "DOCTYPE"),
        ("<?xml version='1.0'?><!-- x --><!DOCTYPE m SYSTEM 'http://x'>" + HEAD + FOOT, "DOCTYPE"),
        ('{"error": "no"}', "not a MediaWiki dump"),
        ("<rss><channel/></rss>", "not a MediaWiki dump"),
        (
            HEAD + page(1) + "junk" + page(2) + FOOT,
            f"byte {len(HEAD + page(1)) - 1}: unexpected data between pages: 'junk'",
        ),
        (HEAD + page(1).replace("<page>", "<page x='1'>") + page(2) + FOOT, "between pages: \"<page x='1'>"),
        (HEAD + page(1).replace("<page>", "<page >") + FOOT, "unexpected data around </mediawiki>: '<page >"),
        (HEAD + "<pages/>" + page(1) + FOOT, "unexpected data between pages: '<pages/>'"),
        (HEAD + page(1) + FOOT + "junk", "unexpected data around </mediawiki>"),
        (HEAD + page(1) + FOOT + page(2) + FOOT, "unexpected data"),
        (HEAD + page(1).replace("</page>", "") + page(2) + FOOT, "starts inside page 'Page 1'"),
        ('<?xml version="1.0" encoding="koi8-r"?>' + HEAD + FOOT, "encoding 'koi8-r' is not supported"),
    ],
)
def test_a_malformed_dump_is_reported_by_name(tmp_path: Path, data: str, message: str) -> None:
    with pytest.raises(InputError, match=r"enwiki\.xml") as caught:
        _read(_write(tmp_path / "enwiki.xml", data))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n' + HEAD + page(1, "Olá, señor") + FOOT
    (document,) = _kept(_write(tmp_path / "enwiki.xml", text.encode(encoding)), unit_bytes=100)
    assert document.body == "Olá, señor"


def test_bare_pages_are_read_with_a_note(tmp_path: Path) -> None:
    path = _write(tmp_path / "brwiki-test.xml", page(1) + page(2))
    (unit,) = _plan(path)
    assert unit.lang == "br"
    assert "bare <page> elements" in unit.notes[0]
    assert len(_kept(path)) == 2
    with pytest.raises(InputError, match="does not give its language"):
        _plan(_write(tmp_path / "pages.xml", page(1)))
    assert _plan(tmp_path / "pages.xml", lang="br")[0].lang == "br"


def test_an_archive_is_refused_by_its_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="7z archives are not supported"):
        _plan(_write(tmp_path / "enwiki.xml.7z", b"7z\xbc\xaf\x27\x1c" + bytes(100)))


def test_a_stub_dump_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a stub dump, which has no text"):
        _plan(_write(tmp_path / "enwiki-20260101-stub-articles.xml", HEAD + page(1) + FOOT))


def _stub(number: int, attributes: str = 'bytes="10"') -> str:
    """A page with the element of its text as stub dumps write it."""
    start, end = page(number).split("<text", 1)[0], page(number).split("</text>", 1)[1]
    return f'{start}<text {attributes} sha1="0" location="tt:1" id="1" xml:space="preserve" />{end}'


@pytest.mark.parametrize(
    ("suffix", "pages", "unit_bytes"),
    [(".xml", 1, 1 << 20), (".xml.bz2", 1, 1 << 20), (".xml.bz2", 120, 1)],
)
def test_a_stub_dump_is_refused_by_its_content(
    tmp_path: Path, suffix: str, pages: int, unit_bytes: int
) -> None:
    stubs = "".join(map(_stub, range(3, pages + 3)))
    parts = [HEAD, _stub(1, 'deleted="deleted" bytes="10"') + _stub(2) + stubs, FOOT]
    data = "".join(parts).encode() if suffix == ".xml" else streams(*parts)
    with pytest.raises(InputError, match=r"renamed\.xml.*: a stub dump: its pages have sizes") as caught:
        _read(_write(tmp_path / f"renamed{suffix}", data), unit_bytes=unit_bytes)
    assert "\n" not in str(caught.value)


def test_a_late_unit_of_a_page_without_text_is_skipped(tmp_path: Path) -> None:
    data = streams(HEAD, page(1) + page(2), _stub(3), FOOT)
    items = _read(_write(tmp_path / "a.xml.bz2", data), unit_bytes=1)
    assert [type(item) for item in items] == [RawDocument, RawDocument, Skip]


def test_a_dump_with_some_pages_without_text_is_not_a_stub_dump(tmp_path: Path) -> None:
    suppressed, nothing = _stub(2, 'deleted="deleted" bytes="10"'), _stub(3, 'bytes="0"')
    mixed = _read(_write(tmp_path / "a.xml", HEAD + _stub(1) + suppressed + nothing + page(4) + FOOT))
    assert [item.reason for item in mixed if isinstance(item, Skip)] == ["empty", "deleted", "empty"]
    assert [item.page_id for item in mixed if isinstance(item, RawDocument)] == ["4"]
    assert len(_read(_write(tmp_path / "b.xml", HEAD + suppressed + nothing + FOOT))) == 2


def _status(folder: Path, job: str, about: dict[str, Any]) -> None:
    (folder / "dumpstatus.json").write_text(json.dumps({"version": "0.8", "jobs": {job: about}}))


def test_an_unfinished_dump_is_refused_with_its_date(tmp_path: Path) -> None:
    """Case pipeline-006."""
    path = _write(tmp_path / "enwiki-20261101-pages-articles.xml.bz2", streams(HEAD, page(1), FOOT))
    assert len(_read(path)) == 1
    _status(tmp_path, "articlesdump", {"status": "waiting"})
    with pytest.raises(InputError, match=r"20261101 is not finished.*'waiting'"):
        _plan(path)
    _status(tmp_path, "articlesdump", {"status": "done", "files": {path.name: {"size": 10**9}}})
    with pytest.raises(InputError, match="incomplete"):
        _plan(path)
    _status(tmp_path, "articlesdump", {"status": "done", "files": {path.name: {"size": path.stat().st_size}}})
    assert len(_read(path)) == 1
    (tmp_path / "dumpstatus.json").write_text("<html>")
    with pytest.raises(InputError, match=r"dumpstatus\.json: not a status file"):
        _plan(path)


def test_a_name_wins_over_the_siteinfo_of_another_wiki() -> None:
    for code in ("ja", "he", "hy", "my", "hi"):
        path = SAMPLE / "dumps" / f"{code}wiki-minidump-pages-articles.xml.bz2"
        (unit,) = _plan(path)
        assert (unit.lang, unit.dbname, unit.site_namespaces) == (code, f"{code}wiki", ())
        assert f"named {code}wiki, but its siteinfo is that of enwiki" in unit.notes[0]
        assert _kept(path)[0].lang == code
    assert _plan(LTG)[0].notes == ()


def test_a_head_that_does_not_end_is_refused_soon(tmp_path: Path) -> None:
    """Every chunk would search it again, and memory would hold all of it."""
    path = tmp_path / "xxwiki-pages-articles.xml.bz2"
    head = b'<mediawiki xml:lang="en"><siteinfo><sitename>'
    path.write_bytes(bz2.compress(head + b"T" * (40 << 20), 1))
    with pytest.raises(InputError, match="no page within the first 16 MiB"):
        _read(path)


def test_a_folder_that_a_fetch_has_not_completed_is_refused(tmp_path: Path) -> None:
    """As while `bertmill fetch` writes it: the first of two files has arrived."""
    first = tmp_path / "enwiki-20260901-pages-articles-multistream1.xml-p1p99.bz2"
    first.write_bytes(streams(HEAD, page(1), FOOT))
    (tmp_path / "sha1sums.txt").write_text(f"{'0' * 40}  {first.name}\n{'0' * 40}  second.bz2\n")
    source = Source(name="wiki", kind="wikimedia", paths=[str(tmp_path)])
    with pytest.raises(InputError, match=r"no _SUCCESS: `bertmill fetch` has not completed it"):
        plan_units(BuildConfig(output="out", sources=[source]))
    (tmp_path / "_SUCCESS").write_text("{}")
    assert len(plan_units(BuildConfig(output="out", sources=[source]))) == 1


def test_an_index_without_line_ends_is_refused_soon(tmp_path: Path) -> None:
    """A few hundred bytes that would expand to as much memory."""
    index, dump = tmp_path / "index.txt.bz2", tmp_path / "enwiki.xml.bz2"
    index.write_bytes(bz2.compress(b"1" * (64 << 20)))
    with pytest.raises(InputError, match=r"index\.txt\.bz2: not an index .*: a line of more than 1 MiB"):
        read_index(str(index), str(dump), 100)
