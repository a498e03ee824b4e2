"""Tests planning of the bundled sample: units, their ids, notes, and errors."""

import gzip
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.documents.extraction import extract_unit
from pipeline.documents.funnel import Funnel
from pipeline.report.tables import plan_table
from pipeline.sources.files import SourceFile
from pipeline.sources.plan import plan_units, source_files
from pipeline.sources.reader import read_unit
from pipeline.sources.text import TextReader
from pipeline.sources.units import Unit
from schemas.errors import ConfigError, InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, SAMPLE, page


def _config(*sources: Source, **extraction: Any) -> BuildConfig:
    return BuildConfig(output="out", sources=list(sources), extraction=Extraction(**extraction))


def _wiki(*paths: str | Path, **fields: Any) -> Source:
    return Source(name="wiki", kind="wikimedia", paths=[str(path) for path in paths], **fields)


def test_the_whole_sample_is_planned_and_read() -> None:
    books = [
        Source(name=f"books-{lang}", kind="bookcorpus", paths=[str(SAMPLE / "books" / lang)], lang=lang)
        for lang in ("el", "en", "ja", "pt", "ru")
    ]
    config = _config(_wiki(SAMPLE / "dumps"), *books, unit_bytes=200_000)
    units = plan_units(config)
    assert len({unit.unit_id for unit in units}) == len(units)
    assert len({unit.lang for unit in units}) > 90
    assert sum(unit.uri.endswith("multistream.xml.bz2") for unit in units) == 4
    assert not any("index" in unit.uri for unit in units)
    assert plan_units(config) == units
    assert all(
        list(read_unit(part, config.extraction))
        for unit in units
        for part in unit.ranges
        if part.lang in ("ltg", "ja", "el")
    )


def test_the_id_of_a_unit_depends_on_all_fields_but_the_notes() -> None:
    for unit in plan_units(_config(_wiki(SAMPLE / "dumps" / "*multistream.xml.bz2"), unit_bytes=1 << 18)):
        assert replace(unit).unit_id == unit.unit_id
        assert replace(unit, notes=("x",)).unit_id == unit.unit_id
        assert replace(unit, size=1).unit_id != unit.unit_id
        assert replace(unit, merged_files=(unit,)).unit_id != unit.unit_id


def test_a_file_that_was_replaced_gives_other_units(tmp_path: Path) -> None:
    path = tmp_path / "enwiki.xml"
    path.write_text(HEAD + page(1, "a" * 200_000) + FOOT)
    before = plan_units(_config(_wiki(path)))
    assert plan_units(_config(_wiki(path))) == before
    path.write_text(HEAD + page(2, "a" * 200_000) + FOOT)
    assert plan_units(_config(_wiki(path)))[0].unit_id != before[0].unit_id


def test_small_files_are_read_together_and_in_order(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"book{number:02}.txt").write_text("A line of the book.\n" * 200)
    source = Source(name="books", kind="bookcorpus", lang="en", paths=[str(tmp_path)])
    units = plan_units(_config(source, unit_bytes=1 << 16))
    assert 1 < len(units) < 10
    assert all(sum(part.size for part in unit.ranges) <= 1 << 16 for unit in units)
    assert [part.name for unit in units for part in unit.ranges] == [f"book{n:02}.txt" for n in range(50)]
    assert not any(part.merged_files for unit in units for part in unit.ranges)
    (tmp_path / "book01.txt").write_text("A line of a tome.\n" * 200)
    changed = plan_units(_config(source, unit_bytes=1 << 16))
    assert [a.unit_id == b.unit_id for a, b in zip(units, changed, strict=True)] == [False] + [True] * (
        len(units) - 1
    )
    funnel, config = Funnel(), _config(source, unit_bytes=1 << 16)
    assert sum(batch.num_rows for unit in changed for batch in extract_unit(unit, config, funnel)) == 50


def test_the_plan_shows_files_bytes_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "enwiki.xml.gz"
    path.write_bytes(gzip.compress((HEAD + page(1, random_text(300_000)) + FOOT).encode()))
    shown = plan_table(plan_units(_config(_wiki(path), unit_bytes=1 << 16)))
    assert f"note: {path}: gz data cannot be split: one unit" in shown
    assert "1 units in 1 files" in shown
    many = plan_table(plan_units(_config(_wiki(SAMPLE / "dumps"))))
    assert "more files have notes" in many


def random_text(size: int) -> str:
    return "".join(random.Random(7).choices("abcdefgh ", k=size))


def test_names_are_relative_to_the_folder_of_the_path(tmp_path: Path) -> None:
    for name in ("a/x.txt", "a/b/x.txt", "a/b/.hidden"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")

    def names(*patterns: str) -> list[str]:
        source = Source(
            name="t", kind="text", lang="en", paths=[str(tmp_path / pattern) for pattern in patterns]
        )
        return [file.name for file in source_files(source)]

    assert names("a") == ["b/x.txt", "x.txt"]
    assert names("a/*.txt") == ["x.txt"]
    assert names("**/*.txt") == ["a/b/x.txt", "a/x.txt"]
    assert names("a/x.txt", "a/*.txt") == ["x.txt"]
    with pytest.raises(ConfigError, match=r"the same name 'x\.txt'"):
        names("a/x.txt", "a/b/x.txt")
    with pytest.raises(InputError, match=r"source t: .*nothing.*: no such file"):
        names("nothing/*.txt")


@pytest.mark.parametrize("kind", ["text", "jsonl", "wikimedia"])
def test_a_file_whose_name_is_not_utf_8_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    path.write_text("Text.")
    for named in (tmp_path, path):
        source = Source(name="a", kind=kind, lang="en", paths=[str(named)])
        with pytest.raises(InputError, match=r"^source a: /.*caf\\udce9\.txt: its name is not UTF-8"):
            plan_units(BuildConfig(output="out", sources=[source]))


def test_two_wikis_of_one_language_do_not_share_a_source(tmp_path: Path) -> None:
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1) + FOOT)
    (tmp_path / "enwiktionary.xml").write_text(HEAD.replace("enwiki", "enwiktionary") + page(1) + FOOT)
    with pytest.raises(ConfigError, match="two wikis of language en; put them into two sources"):
        plan_units(_config(_wiki(tmp_path)))


def test_an_index_is_for_one_file(tmp_path: Path) -> None:
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1) + FOOT)
    (tmp_path / "dewiki.xml").write_text(HEAD + page(1) + FOOT)
    with pytest.raises(ConfigError, match="`index` requires a source with one file, but it has 2"):
        plan_units(_config(_wiki(tmp_path, index="x")))


def test_files_that_accompany_a_dump_are_not_read_as_dumps(tmp_path: Path) -> None:
    (tmp_path / "enwiki-pages-articles.xml").write_text(HEAD + page(1) + FOOT)
    (tmp_path / "enwiki-20260101-md5sums.txt").write_text("x")
    (tmp_path / "dumpstatus.json").write_text('{"jobs": {}}')
    assert [file.name for file in source_files(_wiki(tmp_path))] == ["enwiki-pages-articles.xml"]


def test_a_file_that_disappears_while_the_build_is_planned_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that is being written, where a listed temporary file is renamed."""
    path = tmp_path / "book.txt.tmp"
    path.write_text("Some text.")
    plan_file = TextReader.plan_file

    def renamed_first(reader: TextReader, source: Source, file: SourceFile) -> list[Unit]:
        path.rename(tmp_path / "book.txt")
        return plan_file(reader, source, file)

    monkeypatch.setattr(TextReader, "plan_file", renamed_first)
    source = Source(name="books", kind="text", lang="en", paths=[str(tmp_path)])
    with pytest.raises(InputError, match=r"source books: .*book\.txt\.tmp: deleted or renamed while"):
        plan_units(BuildConfig(output="out", sources=[source]))
