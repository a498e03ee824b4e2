"""Tests BookCorpus in its three forms, with the same documents for any units."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import Extraction, Source
from pipeline.sources.bookcorpus import BookCorpusReader
from pipeline.sources.chunks import even_cuts
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.files import SourceFile
from pipeline.sources.plain_plan import group_cuts
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, InputError
from tests.pipeline.sources.dumps import SAMPLE

MEAN = 32


def _source(**fields: Any) -> Source:
    return Source(
        **{
            "name": "books",
            "kind": "bookcorpus",
            "paths": ["x"],
            "lang": "en",
            "sentences_per_document": MEAN,
            **fields,
        }
    )


def _plan(path: Path, unit_bytes: int = 1 << 20, **fields: Any) -> list[Unit]:
    reader = BookCorpusReader(Extraction().model_copy(update={"unit_bytes": unit_bytes}))
    return reader.plan_file(_source(**fields), SourceFile(str(path), path.name))


def _read(units: list[Unit]) -> list[Any]:
    return [document for unit in units for document in BookCorpusReader(Extraction()).read(unit)]


def _sentences() -> list[str]:
    rows = []
    for book in range(6):
        rows += [f"the words of chapter {book} in row {row} say so ." for row in range(400)]
        rows += ["`` yes . ''"] * 20 + ["chapter seven", "prologue"]
    return rows


def test_books_are_a_document_each() -> None:
    path = SAMPLE / "books" / "ru" / "dostoevsky_krotkaya.txt.gz"
    (document,) = _read(_plan(path, lang="ru"))
    assert document.lang == "ru"
    assert document.title == "dostoevsky krotkaya"
    assert len(document.body) > 50_000


def test_sentence_rows_make_documents_that_do_not_depend_on_the_units(tmp_path: Path) -> None:
    rows = _sentences()
    path = tmp_path / "books_large_p1.txt"
    path.write_text("\n".join(rows) + "\n")
    whole = _read(_plan(path, form="sentences"))
    assert [row for document in whole for row in document.body.split("\n")] == rows
    lengths = [len(document.body.split("\n")) for document in whole]
    assert max(lengths) <= 4 * MEAN
    assert MEAN / 2 < sum(lengths) / len(lengths) < 2 * MEAN
    heads = [document.body.split("\n")[0] for document in whole]
    assert heads.count("chapter seven") == heads.count("prologue") == 6
    size = path.stat().st_size
    (unit,) = _plan(path, form="sentences")
    for unit_bytes in (37, 1000, size // 2):
        parts = [replace(unit, start=start, end=end) for start, end in even_cuts(size, unit_bytes)]
        assert _read(parts) == whole
    assert len({document.page_id for document in whole}) == len(whole)


def test_sentence_rows_of_parquet_are_cut_alike_with_any_row_groups(tmp_path: Path) -> None:
    rows = _sentences()
    path = tmp_path / "train-00000-of-00001.parquet"
    bodies = []
    for group in (50, 333, 10_000):
        pq.write_table(pa.table({"text": rows}), path, row_group_size=group)
        units = _plan(path, unit_bytes=1 << 10)
        assert units[0].form == "sentences-parquet"
        groups = -(-len(rows) // group)
        assert [unit.end for unit in units][-1] == groups
        documents = _read(units)
        bodies.append([document.body for document in documents])
        assert len({document.page_id for document in documents}) == len(documents)
    assert bodies[0] == bodies[1] == bodies[2]
    assert [row for body in bodies[0] for row in body.split("\n")] == rows


@pytest.mark.parametrize("parquet", [True, False])
def test_titled_rows_are_a_document_each(tmp_path: Path, parquet: bool) -> None:
    records = [{"title": f"Book {n}", "text": f"Text of book {n}.\nAnd more."} for n in range(20)]
    path = tmp_path / ("books.parquet" if parquet else "books.jsonl")
    if parquet:
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=6)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    units = _plan(path, unit_bytes=200)
    assert len(units) > 2
    documents = _read(units)
    assert [(document.title, document.body) for document in documents] == [
        (r["title"], r["text"]) for r in records
    ]


def test_the_bundled_rows_without_boundaries() -> None:
    documents = _read(_plan(SAMPLE / "bookcorpus_sentences" / "books_en.txt.gz", form="sentences"))
    assert sum(len(document.body.split("\n")) for document in documents) == 1800
    assert len(documents) > 1800 / MEAN / 2


def test_what_does_not_fit_the_form_is_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n')
    text = tmp_path / "book.txt"
    text.write_text("a")
    with pytest.raises(ConfigError, match="form books is for text files"):
        _plan(rows, form="books")
    with pytest.raises(ConfigError, match="is not a file of rows"):
        _plan(text, form="rows")
    with pytest.raises(ConfigError, match="lang is missing"):
        _plan(text, lang=None)
    with pytest.raises(InputError, match=r"rows\.jsonl: byte 0: no text field 'body'"):
        _read(_plan(rows, text_field="body"))


def test_runs_of_row_groups() -> None:
    assert group_cuts([], 10) == []
    assert group_cuts([4, 4, 4, 20, 1], 10) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    for (_, end), (start, _) in pairwise(group_cuts([1] * 100, 7)):
        assert end == start


def test_an_oversize_row_is_a_counted_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sources.rows.MAX_ROW_BYTES", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"title": "a", "text": "x" * 5000}) + "\n" + json.dumps({"title": "b", "text": "y"})
    )
    large, small = BookCorpusReader(Extraction()).read(_plan(path)[0])
    assert isinstance(large, Skip)
    assert large.reason == "too-large"
    assert small.title == "b"


@pytest.mark.parametrize("form", ["sentences", "rows"])
def test_rows_with_null_text_are_counted_as_empty(tmp_path: Path, form: str) -> None:
    path = tmp_path / "books.parquet"
    columns = {"text": ["It rained.", None, "We left."]}
    if form == "rows":
        columns["title"] = ["A", "B", "C"]
    pq.write_table(pa.table(columns), path, row_group_size=1)
    for unit_bytes in (1, 1 << 20):
        read = _read(_plan(path, unit_bytes))
        assert [page.reason for page in read if isinstance(page, Skip)] == ["empty"]
        assert [page.body for page in read if isinstance(page, RawDocument)] == ["It rained.", "We left."]
