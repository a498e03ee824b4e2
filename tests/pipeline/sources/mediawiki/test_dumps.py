"""Tests that all forms of a dump give the same pages for any division into units."""

import bz2
import gzip
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
from pipeline.sources.mediawiki.dumps import read_dump
from pipeline.sources.units import Unit
from tests.pipeline.sources.bzip2_blocks import one_stream
from tests.pipeline.sources.dumps import FOOT, HEAD, LTG, LTG_INDEX, SAMPLE, page
from tests.pipeline.sources.mediawiki.reading import LIMIT, kept_pages, plan, read_pages, write


@pytest.fixture(scope="module")
def ltg_pages() -> list[RawDocument | Skip]:
    return read_pages(LTG)


def test_a_real_multistream_dump_is_read_whole(ltg_pages: Any) -> None:
    assert len(ltg_pages) == 2004
    unit = plan(LTG)[0]
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
    units = plan(path, unit_bytes=65536)
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
    path = write(tmp_path / f"ltgwiki.xml{suffix}", pack[suffix](text))
    units = plan(path, unit_bytes=65536)
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
    # As with pbzip2 and bzip2, streams and blocks end in the middle of pages, tags and characters.
    parts = [text[a:b] for a, b in pairwise(places)]
    name = "enwiki.xml" if form == "plain" else "enwiki.xml.bz2"
    path = tmp_path_factory.mktemp("cut") / name
    data = {"plain": text, "streams": b"".join(map(bz2.compress, parts)), "blocks": one_stream(parts)}
    write(path, data[form])
    seen = read_pages(path, unit_bytes=unit_bytes)
    kept = [item for item in seen if isinstance(item, RawDocument)]
    assert [(item.page_id, item.body) for item in kept] == [
        (str(number), "é語" * (size // 2)) for number, size in enumerate(sizes, 1) if size > 1
    ]
    assert len(seen) == len(sizes)


def test_a_block_may_end_at_any_byte_between_two_pages(tmp_path: Path) -> None:
    text = (HEAD + page(1, "語") + page(2, "é") + FOOT).encode()
    for border in range(text.index("語".encode()), text.index(b"<title>Page 2") + 3):
        path = write(tmp_path / "enwiki.xml.bz2", one_stream([text[:border], text[border:]]))
        (whole,) = plan(path)
        # The second block, and with it the pages of the second unit, begins somewhere here.
        for cut in (40, whole.size // 2, whole.size - 20):
            units = [replace(whole, end=cut), replace(whole, start=cut)]
            assert [item.page_id for unit in units for item in read_dump(unit, LIMIT)] == ["1", "2"]


def test_one_stream_gives_the_documents_of_the_multistream_dump(tmp_path: Path) -> None:
    """Compares the rows of documents byte by byte."""

    def rows(units: list[Unit]) -> list[dict[str, object]]:
        config = BuildConfig(output="out", sources=[Source(name="wiki", kind="wikimedia", paths=["x"])])
        funnel = Funnel()
        return [
            row for unit in units for batch in extract_unit(unit, config, funnel) for row in batch.to_pylist()
        ]

    whole = bz2.compress(bz2.decompress(LTG.read_bytes()), 1)
    path = write(tmp_path / "ltgwiki-2026-09-01-p1p9999.xml.bz2", whole)
    units = plan(path, unit_bytes=65536)
    assert len(units) > 10
    assert rows(units) == rows(plan(LTG, unit_bytes=1 << 30))


def test_a_name_wins_over_the_siteinfo_of_another_wiki() -> None:
    for code in ("ja", "he", "hy", "my", "hi"):
        path = SAMPLE / "dumps" / f"{code}wiki-minidump-pages-articles.xml.bz2"
        (unit,) = plan(path)
        assert (unit.lang, unit.dbname, unit.site_namespaces) == (code, f"{code}wiki", ())
        assert f"named {code}wiki, but its siteinfo is that of enwiki" in unit.notes[0]
        assert kept_pages(path)[0].lang == code
    assert plan(LTG)[0].notes == ()
