"""Tests text files: each line has one owner, and documents are files or separated by blank lines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sources.chunks import even_cuts
from pipeline.sources.documents import RawDocument
from pipeline.sources.lines import read_lines
from pipeline.sources.text import is_wrapped, read_blank_line_documents, read_file_document
from pipeline.sources.units import Unit


def _unit(path: Path, **fields: Any) -> Unit:
    size = path.stat().st_size
    unit = Unit(
        source="s", kind="text", uri=str(path), name=path.name, start=0, end=size, size=size, lang="en"
    )
    return replace(unit, **fields)


def _ranges(path: Path, unit_bytes: int) -> list[Unit]:
    return [_unit(path, start=start, end=end) for start, end in even_cuts(path.stat().st_size, unit_bytes)]


texts = st.lists(st.sampled_from(["", " ", "a", "bb cc", "ä€😀", "\r", "x" * 40]), max_size=30).map("\n".join)


@settings(max_examples=150, deadline=None)
@given(texts.filter(bool), st.integers(1, 60), st.integers(3, 50))
def test_ranges_own_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, text: str, unit_bytes: int, max_line: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    path.write_bytes(text.encode())
    whole = list(read_lines(_unit(path)))
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    assert [line.text for line in whole] == (expected if not text.endswith("\n") else expected[:-1])
    assert all(text.encode()[line.offset :].startswith(line.text.encode()) for line in whole)
    assert [line for unit in _ranges(path, unit_bytes) for line in read_lines(unit) if line.owned] == whole
    for line, full in zip(read_lines(_unit(path), max_line), whole, strict=True):
        assert line.offset == full.offset
        assert full.text.startswith(line.text)
        assert len(line.text.encode()) <= max_line


@settings(max_examples=150, deadline=None)
@given(texts.filter(bool), st.integers(1, 60), st.integers(5, 60))
def test_blank_line_documents_do_not_depend_on_the_units(
    tmp_path_factory: pytest.TempPathFactory, text: str, unit_bytes: int, limit: int
) -> None:
    path = tmp_path_factory.mktemp("documents") / "file.txt"
    path.write_bytes(text.encode())
    whole = list(read_blank_line_documents(_unit(path), limit))
    assert [d for unit in _ranges(path, unit_bytes) for d in read_blank_line_documents(unit, limit)] == whole
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    assert [line for document in whole for line in document.body.split("\n")] == lines
    assert len({document.page_id for document in whole}) == len(whole)


def test_bert_format_gives_a_document_for_each_block(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("\ufeffOne.\nTwo.\n\n\nThree.\r\nFour.\r\n", encoding="utf-8")
    documents = list(read_blank_line_documents(_unit(path), 1000))
    assert [document.body for document in documents] == ["One.\nTwo.", "Three.\nFour."]
    assert documents[0] == RawDocument("input.txt:0", 0, "input", "en", "One.\nTwo.", "plain")


FURTHER = """
A further paragraph that takes up more than one of the lines in
this file, so that there is no doubt.
"""
WRAPPED = f"""The first paragraph of a book whose lines were broken at a
column near seventy characters, as plain text editions have
always been, since terminals were narrow and so were the eyes.

"A short line," she said.

The second long paragraph of the book goes on in the same way
until it comes to its end, which is a shorter line that says
goodbye.
{FURTHER * 8}"""


def test_wrapped_lines_become_paragraphs_and_unwrapped_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "my_book.txt"
    path.write_text(WRAPPED)
    (document,) = read_file_document(_unit(path), 10**6)
    paragraphs = document.body.split("\n")
    assert len(paragraphs) == 11
    assert paragraphs[0].startswith("The first paragraph of a book whose lines were broken at a column near")
    assert (document.page_id, document.title) == ("my_book.txt", "my book")
    path.write_text("A long paragraph on one line. " * 20 + "\n\n" + "Another one.\nAnd one more.\n")
    (document,) = read_file_document(_unit(path), 10**6)
    assert document.body.split("\n")[1:] == ["Another one.", "And one more."]
    assert not is_wrapped(["Rose", "is a rose", "", "is a rose"] * 20)


def test_a_long_file_is_cut_between_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    lines = [f"Paragraph number {number}." for number in range(100)]
    path.write_text("\n".join(lines))
    documents = list(read_file_document(_unit(path), 500))
    assert [document.page_id for document in documents[:3]] == ["book.txt", "book.txt#1", "book.txt#2"]
    assert all(len(document.body) <= 500 for document in documents)
    assert "\n".join(document.body for document in documents).split("\n") == lines


@settings(max_examples=150, deadline=None)
@given(texts.filter(bool), st.integers(1, 60), st.integers(5, 50))
def test_long_lines_in_pieces_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, unit_bytes: int, most: int
) -> None:
    path = tmp_path_factory.mktemp("pieces") / "file.txt"
    path.write_bytes(text.encode())
    whole = list(read_lines(_unit(path), most, in_parts=True))
    joined = "".join(line.text + ("\n" if line.ended else "") for line in whole)
    assert joined == text.replace("\r\n", "\n").removesuffix("\r")
    assert all(len(line.text.encode()) <= most and not line.oversize for line in whole)
    assert all(text.encode()[line.offset :].startswith(line.text.encode()) for line in whole)
    pieces = [line for unit in _ranges(path, unit_bytes) for line in read_lines(unit, most, in_parts=True)]
    assert [line for line in pieces if line.owned] == whole


def test_a_file_without_a_line_end_is_read_whole(tmp_path: Path) -> None:
    """Some large text collections are one line. Each document stays within the maximum size."""
    path = tmp_path / "book.txt"
    words = [f"word{number}" for number in range(40_000)]
    path.write_text(" ".join(words))
    for read in (read_file_document, read_blank_line_documents):
        documents = list(read(_unit(path), 70_000))
        assert len(documents) > 4
        assert all(len(document.body) <= 70_000 for document in documents)
        assert [word for document in documents for word in document.body.split()] == words
        assert len({document.page_id for document in documents}) == len(documents)
