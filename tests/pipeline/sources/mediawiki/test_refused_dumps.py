"""Tests that errors for truncated, malformed, unfinished and stub dumps name the file."""

import bz2
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import BuildConfig, Source
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.multistream_index import read_index
from pipeline.sources.plan import plan_units
from schemas.errors import InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, page, streams
from tests.pipeline.sources.mediawiki.reading import plan, read_pages, write


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
    write(path, streams(*parts) if compressed else "".join(parts))
    with pytest.raises(InputError, match="enwiki"):
        read_pages(path, unit_bytes=unit_bytes)


def test_a_cut_at_any_byte_is_noticed(tmp_path: Path) -> None:
    text = HEAD + page(1) + page(2) + FOOT
    for keep in range(1, len(text.rstrip())):
        with pytest.raises(InputError, match=r"enwiki\.xml"):
            read_pages(write(tmp_path / "enwiki.xml", text[:keep]), unit_bytes=400)


def test_a_cut_between_streams_is_noticed_with_any_units(tmp_path: Path) -> None:
    parts = [HEAD, *(page(number) for number in range(1, 6)), FOOT]
    for unit_bytes in (50, 300, 100_000):
        path = write(tmp_path / "enwiki.xml.bz2", streams(*parts[:-1]))
        with pytest.raises(InputError, match=r"truncated.*</mediawiki>"):
            read_pages(path, unit_bytes=unit_bytes)
        assert len(read_pages(write(path, streams(*parts)), unit_bytes=unit_bytes)) == 5


def test_a_missing_stream_is_noticed_by_the_index(tmp_path: Path) -> None:
    parts = [HEAD, page(1), page(2), page(3), FOOT]
    packed = [streams(part) for part in parts]
    index, offset = "", len(packed[0])
    for number in (1, 2, 3):
        index += f"{offset}:{number}:Page {number}\n"
        offset += len(packed[number])
    path = tmp_path / "enwiki-pages-articles-multistream.xml.bz2"
    (tmp_path / "enwiki-pages-articles-multistream-index.txt.bz2").write_bytes(bz2.compress(index.encode()))
    assert len(read_pages(write(path, b"".join(packed)))) == 3
    with pytest.raises(InputError, match="2 pages, but the index lists 3"):
        read_pages(write(path, b"".join(packed[:2] + packed[3:])))
    with pytest.raises(InputError, match=r"truncated.*index"):
        read_pages(write(path, b"".join(packed[:2])))


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
        read_pages(write(tmp_path / "enwiki.xml", data))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_refused_by_its_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="7z archives are not supported"):
        plan(write(tmp_path / "enwiki.xml.7z", b"7z\xbc\xaf\x27\x1c" + bytes(100)))


def test_a_stub_dump_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a stub dump, which has no text"):
        plan(write(tmp_path / "enwiki-20260101-stub-articles.xml", HEAD + page(1) + FOOT))


def _stub(number: int, attributes: str = 'bytes="10"') -> str:
    """A page with the text element of a stub dump."""
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
    with pytest.raises(InputError, match=r"renamed\.xml.*: a stub dump, which has no text") as caught:
        read_pages(write(tmp_path / f"renamed{suffix}", data), unit_bytes=unit_bytes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("attributes", ['id="7"', 'location="tt:7"', 'bytes="12" id="7"'])
def test_stubs_of_all_exports_are_known(tmp_path: Path, attributes: str) -> None:
    text = page(1).split("<text", 1)[0] + f"<text {attributes} />" + page(1).split("</text>", 1)[1]
    with pytest.raises(InputError, match="a stub dump"):
        read_pages(write(tmp_path / "a.xml", HEAD + text + FOOT))


def test_a_late_unit_of_a_page_without_text_is_skipped(tmp_path: Path) -> None:
    data = streams(HEAD, page(1) + page(2), _stub(3), FOOT)
    items = read_pages(write(tmp_path / "a.xml.bz2", data), unit_bytes=1)
    assert [type(item) for item in items] == [RawDocument, RawDocument, Skip]


def test_a_dump_with_some_pages_without_text_is_not_a_stub_dump(tmp_path: Path) -> None:
    suppressed, nothing = _stub(2, 'deleted="deleted" bytes="10"'), _stub(3, 'bytes="0"')
    mixed = read_pages(write(tmp_path / "a.xml", HEAD + _stub(1) + suppressed + nothing + page(4) + FOOT))
    assert [item.reason for item in mixed if isinstance(item, Skip)] == ["empty", "deleted", "empty"]
    assert [item.page_id for item in mixed if isinstance(item, RawDocument)] == ["4"]
    assert len(read_pages(write(tmp_path / "b.xml", HEAD + suppressed + nothing + FOOT))) == 2


def _status(folder: Path, job: str, about: dict[str, Any]) -> None:
    (folder / "dumpstatus.json").write_text(json.dumps({"version": "0.8", "jobs": {job: about}}))


def test_an_unfinished_dump_is_refused_with_its_date(tmp_path: Path) -> None:
    """Case pipeline-006."""
    path = write(tmp_path / "enwiki-20261101-pages-articles.xml.bz2", streams(HEAD, page(1), FOOT))
    assert len(read_pages(path)) == 1
    _status(tmp_path, "articlesdump", {"status": "waiting"})
    with pytest.raises(InputError, match=r"20261101 is not finished.*'waiting'"):
        plan(path)
    _status(tmp_path, "articlesdump", {"status": "done", "files": {path.name: {"size": 10**9}}})
    with pytest.raises(InputError, match="incomplete"):
        plan(path)
    _status(tmp_path, "articlesdump", {"status": "done", "files": {path.name: {"size": path.stat().st_size}}})
    assert len(read_pages(path)) == 1
    for text in ("<html>", "[]", '{"jobs": [1]}', '{"jobs": {"a": 1}}', '{"jobs": {"a": {"files": ["b"]}}}'):
        (tmp_path / "dumpstatus.json").write_text(text)
        with pytest.raises(InputError, match=r"dumpstatus\.json: not a status file of a dump: [^\n]+$"):
            plan(path)


def test_a_head_that_does_not_end_is_refused_soon(tmp_path: Path) -> None:
    """Otherwise every chunk would search it again, and memory would hold all of it."""
    path = tmp_path / "xxwiki-pages-articles.xml.bz2"
    head = b'<mediawiki xml:lang="en"><siteinfo><sitename>'
    path.write_bytes(bz2.compress(head + b"T" * (40 << 20), 1))
    with pytest.raises(InputError, match="no page within the first 16 MiB"):
        read_pages(path)


def test_a_folder_that_a_fetch_has_not_completed_is_refused(tmp_path: Path) -> None:
    """The state while `bertmill fetch` writes it: the first of two files has arrived."""
    first = tmp_path / "enwiki-20260901-pages-articles-multistream1.xml-p1p99.bz2"
    first.write_bytes(streams(HEAD, page(1), FOOT))
    (tmp_path / "sha1sums.txt").write_text(f"{'0' * 40}  {first.name}\n{'0' * 40}  second.bz2\n")
    source = Source(name="wiki", kind="wikimedia", paths=[str(tmp_path)])
    with pytest.raises(InputError, match=r"no _SUCCESS: `bertmill fetch` has not completed it"):
        plan_units(BuildConfig(output="out", sources=[source]))
    (tmp_path / "_SUCCESS").write_text("{}")
    assert len(plan_units(BuildConfig(output="out", sources=[source]))) == 1


def test_an_index_without_line_ends_is_refused_soon(tmp_path: Path) -> None:
    """A few hundred bytes would expand to fill the memory."""
    index, dump = tmp_path / "index.txt.bz2", tmp_path / "enwiki.xml.bz2"
    index.write_bytes(bz2.compress(b"1" * (64 << 20)))
    with pytest.raises(InputError, match=r"index\.txt\.bz2: not an index .*: a line of more than 1 MiB"):
        read_index(str(index), str(dump), 100)
