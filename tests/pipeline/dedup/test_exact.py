"""Tests which of equal texts, and which of pages read twice, stays."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dedup.exact import content_hash, exact_removals, hash_bucket, page_bucket, page_removals

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 3)), max_size=60)


def documents(rows: Any) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([f"wiki/en/{page}/{revision}" for page, _, revision in rows], pa.string()),
            "source": pa.array(["wiki"] * len(rows), pa.string()),
            "lang": pa.array(["en"] * len(rows), pa.string()),
            "page_id": pa.array([str(page) for page, _, _ in rows], pa.string()),
            "revision": pa.array([revision for _, _, revision in rows], pa.int64()),
            "content_hash": pa.array([content_hash(b"%d" % text) for _, text, _ in rows], pa.binary(16)),
            "part": pa.array(["u"] * len(rows), pa.string()),
            "row": pa.array(range(len(rows)), pa.int64()),
        }
    )


def rows_of(table: pa.Table) -> list[int]:
    return sorted(table["row"].to_pylist())


@given(ROWS, st.randoms())
def test_exact_duplicates_keep_the_smallest_key(rows: Any, chance: random.Random) -> None:
    table = documents(rows)
    smallest: dict[Any, Any] = {}
    for key, digest, row in zip(
        *(table[name].to_pylist() for name in ("key", "content_hash", "row")), strict=True
    ):
        smallest[digest] = min(smallest.get(digest, (key, row)), (key, row))
    keepers = {row for _, row in smallest.values()}
    removals = exact_removals(table)
    assert rows_of(removals) == [row for row in range(len(rows)) if row not in keepers]
    for digest, kept in zip(
        removals["content_hash"].to_pylist(), removals["kept_key"].to_pylist(), strict=True
    ):
        assert kept == smallest[digest][0]
    order = list(range(len(rows)))
    chance.shuffle(order)
    assert exact_removals(table.take(pa.array(order, pa.int64()))).equals(removals)


@given(ROWS)
def test_page_removals_are_all_but_the_newest_revision_read_first(rows: Any) -> None:
    table = documents(rows)
    newest: dict[Any, Any] = {}
    for row, (page, _, revision) in enumerate(rows):
        if page not in newest or revision > newest[page][0]:
            newest[page] = (revision, row)
    keepers = {row for _, row in newest.values()}
    assert rows_of(page_removals(table)) == [row for row in range(len(rows)) if row not in keepers]


@given(ROWS, st.sampled_from([1, 2, 7, 64]))
def test_the_number_of_buckets_does_not_matter(rows: Any, buckets: int) -> None:
    """Cases pipeline-024 and pipeline-025."""
    table = documents(rows)
    for find, place in (
        (exact_removals, hash_bucket(table["content_hash"], buckets)),
        (page_removals, page_bucket(table, buckets)),
    ):
        parts = [find(table.filter(pa.array(place == bucket))) for bucket in range(buckets)]
        assert rows_of(pa.concat_tables(parts)) == rows_of(find(table))


def test_the_same_text_in_two_files_keeps_one_always_the_same() -> None:
    """Case pipeline-024."""
    table = documents([(7, 1, 0), (3, 1, 0), (3, 2, 0), (9, 1, 0)])
    parts = [table.slice(0, 2), table.slice(2)]
    for _ in range(5):
        random.shuffle(parts)
        removals = exact_removals(pa.concat_tables(parts))
        assert removals["key"].to_pylist() == ["wiki/en/7/0", "wiki/en/9/0"]
        assert removals["kept_key"].to_pylist() == ["wiki/en/3/0"] * 2


def test_other_source_or_language_is_another_page() -> None:
    table = documents([(1, 1, 0), (1, 2, 5), (1, 3, 5)])
    languages = table.set_column(2, "lang", pa.array(["en", "de", "de"]))
    assert page_removals(languages)["row"].to_pylist() == [2]


@pytest.mark.parametrize("find", [exact_removals, page_removals])
def test_an_empty_table_has_no_losers(find: Callable[..., pa.Table]) -> None:
    assert find(documents([])).num_rows == 0
