"""The copy of a unit's pages is read as the dump itself is, or refused in one line."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.documents.reuse.hashed_file import HashedFile
from pipeline.documents.reuse.page_copy import PAGE_COPY, PageCopy, PageCopyWriter, is_worth_a_copy
from pipeline.documents.templates.scan import scan_unit
from pipeline.sources.documents import Skip
from pipeline.sources.mediawiki.dumps import StoredPage, read_stored_pages
from pipeline.sources.units import Unit
from schemas.errors import CorpusError
from schemas.skip_reasons import NAMESPACE, REDIRECT, TOO_LARGE
from tests.pipeline.sources.dumps import CASES, FOOT, HEAD, LTG, SAMPLE, page
from tests.pipeline.sources.mediawiki.reading import LIMIT, plan, write

Pages = list[StoredPage | Skip]


def copy_of(unit: Unit, path: Path, limit: int = LIMIT) -> HashedFile:
    """The copy that the scan of the unit's templates makes."""
    with pq.ParquetWriter(path, PAGE_COPY, compression="zstd") as parquet:
        writer = PageCopyWriter(parquet.write_batch)
        for _ in scan_unit(unit, limit, Counter(), writer):
            pass
        writer.flush()
    return HashedFile(str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def copied(unit: Unit, folder: Path, limit: int = LIMIT) -> list[Pages]:
    """The pages of each file of the unit, from its copy."""
    copy = PageCopy(copy_of(unit, folder / "copy.parquet", limit))
    return [list(copy.pages(number, file)) for number, file in enumerate(unit.ranges)]


def read(unit: Unit, limit: int = LIMIT) -> list[Pages]:
    return [list(read_stored_pages(file, limit)) for file in unit.ranges]


def test_real_dumps_are_copied_exactly(tmp_path: Path) -> None:
    dumps = [LTG, *sorted(SAMPLE.glob("dumps/?[rns]wiki-minidump-*")), CASES / "all-reasons.xml.bz2"]
    units = [unit for dump in dumps for unit in plan(dump, unit_bytes=1 << 17)]
    assert len(units) > len(dumps)
    reasons: Counter[str] = Counter()
    for unit in units:
        (pages,) = read(unit)
        assert copied(unit, tmp_path) == [pages]
        reasons.update(one.reason if isinstance(one, Skip) else "" for one in pages)
    assert reasons[""] > 900
    assert {NAMESPACE, REDIRECT} < set(reasons)


_TEXT = st.text(
    st.one_of(st.sampled_from("ab\n\t #=é漢😀\0"), st.characters(exclude_categories=["Cs"])), max_size=80
).map(lambda text: text.replace("&", "&amp;").replace("<", "&lt;"))
_PAGE = st.builds(
    lambda number, text, ns, extra: page(number, text, ns=ns, extra=extra),
    st.integers(0, 2**63 // 10 - 1),
    st.one_of(_TEXT, st.just("long " * 100)),
    st.sampled_from([0, 0, 1, 10]),
    st.sampled_from(["", "", '<redirect title="A" />', "<id>x</id>"]),
)


@settings(max_examples=100, deadline=None)
@given(files=st.lists(st.lists(_PAGE, max_size=6), min_size=1, max_size=3), rows=st.integers(1, 5))
def test_any_pages_of_merged_files_are_copied_exactly(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]], rows: int
) -> None:
    """With pages that are cut at the limit, and batches of few rows."""
    folder = tmp_path_factory.mktemp("dumps")
    units = [
        plan(write(folder / f"enwiki-{number}.xml", HEAD + "".join(pages) + FOOT))[0]
        for number, pages in enumerate(files)
    ]
    unit = replace(units[0], merged_files=tuple(units[1:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.documents.reuse.page_copy._BATCH_ROWS", rows)
        assert copied(unit, folder, limit=50) == read(unit, limit=50)


def test_a_page_that_is_cut_is_too_large_in_the_copy_too(tmp_path: Path) -> None:
    (unit,) = plan(write(tmp_path / "enwiki.xml", HEAD + page(1, "word " * 500_000) + page(2) + FOOT))
    first, second = copied(unit, tmp_path, limit=1000)[0]
    assert isinstance(first, Skip)
    assert first.reason == TOO_LARGE
    assert isinstance(second, StoredPage)


def test_only_slow_compressions_are_worth_a_copy() -> None:
    unit = Unit("s", "wikimedia", "a.xml", "a.xml", 0, 1, 1, "en")
    packed = replace(unit, compression="bz2")
    assert [is_worth_a_copy(replace(unit, compression=name)) for name in ("", "gz", "zst", "bz2", "xz")] == [
        False, False, False, True, True
    ]  # fmt: skip
    assert is_worth_a_copy(replace(unit, merged_files=(packed,)))
    assert not is_worth_a_copy(replace(packed, kind="jsonl"))


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_copy_is_one_line(tmp_path: Path, damage: str) -> None:
    (unit,) = plan(write(tmp_path / "enwiki.xml", HEAD + page(1) + page(2) + FOOT))
    copy = copy_of(unit, tmp_path / "copy.parquet")
    path, raw = Path(copy.uri), bytearray(Path(copy.uri).read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        raw[len(raw) // 3] ^= 1
        path.write_bytes(raw)
    with pytest.raises(CorpusError, match=r"^/.*copy\.parquet: .*; remove the folder .* and run") as error:
        PageCopy(copy)
    assert "\n" not in str(error.value)
