"""The dumps of a large build: the same bytes for any number of processes, and pages that share no phrase."""

import bz2
import re
from pathlib import Path

import pytest

from benchmarks.corpus.large import corpus
from benchmarks.corpus.large.corpus import Cut, DumpFile, make, plan_files, wikis, write_file

GIGABYTES = 0.0003
"""Two variants of three small wikis."""


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.process
def test_the_bytes_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FILE_BYTES", 50_000)
    one, three = (make(tmp_path / str(number), GIGABYTES, number, 3) for number in (1, 3))
    assert one == three
    assert one.files > 3
    assert written(tmp_path / "1") == written(tmp_path / "3")


def test_files_cover_every_variant_of_every_wiki_once() -> None:
    bundled = wikis(3)
    files = plan_files(bundled, 1.0)
    for wiki in bundled:
        ranges = sorted((file.number, file.variants) for file in files if file.wiki.name == wiki.name)
        numbers = [variant for _, variants in ranges for variant in variants]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [number for number, _ in ranges] == list(range(len(ranges)))


def test_a_variant_keeps_the_markup_and_has_its_own_titles_and_ids(tmp_path: Path) -> None:
    wiki = wikis(1)[0]
    made = write_file(DumpFile(wiki, 0, range(1, 4), 0), tmp_path)
    (path,) = tmp_path.iterdir()
    xml = bz2.decompress(path.read_bytes()).decode()
    titles = re.findall("<title>(.*?)</title>", xml)
    assert made.pages == len(titles) == len(set(titles)) == 3 * len(wiki.pages) + made.planted
    copies = 3 + made.planted / len(wiki.pages)
    original = "".join(wiki.pages)
    for mark in ("{{", "[[", "&lt;ref"):
        assert abs(xml.count(mark) / original.count(mark) - copies) < 0.3, mark


def test_words_and_numbers_change_and_markup_stays() -> None:
    cut = Cut.of("A 12 Haus {{Haus|name=Haus}} #Haus x")
    text = cut.rewritten({"Haus": "Dach", "name": "other"}, 5)
    assert re.fullmatch(r"A \d\d Dach {{Haus\|name=Dach}} #Haus x", text)
