"""Tests that folders of MediaWiki Content File Exports are found, and that incomplete ones are refused."""

import bz2
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pipeline.config import BuildConfig, Extraction, Source
from pipeline.sources.plan import plan_units
from pipeline.sources.reader import read_unit
from pipeline.sources.units import Unit
from schemas.errors import BertmillError, ConfigError, InputError
from tests.pipeline.sources.dumps import FOOT, HEAD, page


def _plan(*paths: Path | str, **fields: Any) -> list[Unit]:
    source = Source(name="wiki", kind="wikimedia", paths=[str(path) for path in paths], **fields)
    config = BuildConfig(output="out", sources=[source], extraction=Extraction(unit_bytes=1 << 16))
    return [file for unit in plan_units(config) for file in unit.ranges]


def write_export(
    root: Path,
    wiki: str = "enwiki",
    date: str = "2026-09-01",
    ranges: tuple[tuple[int, int], ...] = ((1, 9), (10, 19)),
) -> Path:
    """An export with a page for each number, laid out as on Wikimedia's server."""
    folder = root / wiki / date / "xml" / "bzip2"
    folder.mkdir(parents=True)
    lines = []
    head = HEAD.replace("enwiki", wiki).replace('"en"', f'"{wiki.removesuffix("wiki")}"')
    for first, last in ranges:
        text = head + "".join(page(number, f"Text of {date}.") for number in range(first, last + 1)) + FOOT
        path = folder / f"{wiki}-{date}-p{first}p{last}.xml.bz2"
        path.write_bytes(bz2.compress(text.encode()))
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    (folder / "_SUCCESS").touch()
    return folder


def test_a_folder_of_several_wikis_gives_all_files_with_their_hashes(tmp_path: Path) -> None:
    folders = [write_export(tmp_path, "enwiki"), write_export(tmp_path, "fowiki", ranges=((1, 3),))]
    units = _plan(tmp_path)
    assert [(unit.dbname, unit.name.rpartition("/")[2]) for unit in units] == [
        ("enwiki", "enwiki-2026-09-01-p10p19.xml.bz2"),
        ("enwiki", "enwiki-2026-09-01-p1p9.xml.bz2"),
        ("fowiki", "fowiki-2026-09-01-p1p3.xml.bz2"),
    ]
    for unit in units:
        assert unit.sha256 == hashlib.sha256(Path(unit.uri).read_bytes()).hexdigest()
    assert _plan(*(folder / "*.xml.bz2" for folder in folders))[0].sha256
    assert [len(list(read_unit(unit, Extraction()))) for unit in units] == [10, 9, 3]


def test_one_date_of_a_wiki_is_read(tmp_path: Path) -> None:
    write_export(tmp_path, "enwiki", "2026-08-01")
    write_export(tmp_path, "enwiki", "2026-09-01")
    write_export(tmp_path, "fowiki", "2026-08-01")
    newest = write_export(tmp_path, "enwiki", "2026-10-01")

    def dates(**fields: Any) -> set[tuple[str, str]]:
        return {(unit.dbname, unit.uri.split("/")[-4]) for unit in _plan(tmp_path, **fields)}

    with pytest.raises(ConfigError, match=r"enwiki of 3 dates \(2026-08-01, .*\); set `date`"):
        dates()
    assert dates(date="2026-08-01") == {("enwiki", "2026-08-01"), ("fowiki", "2026-08-01")}
    assert dates(date="latest") == {("enwiki", "2026-10-01"), ("fowiki", "2026-08-01")}
    (newest / "SHA256SUMS").unlink()
    assert dates(date="latest") == {("enwiki", "2026-09-01"), ("fowiki", "2026-08-01")}
    assert dates(date="latest", check_hashes=False) == {("enwiki", "2026-10-01"), ("fowiki", "2026-08-01")}
    with pytest.raises(InputError, match="no export of fowiki of 2026-09-01; found 2026-08-01"):
        dates(date="2026-09-01")


def _second_copy(folder: Path) -> None:
    write_export(folder.parents[4] / "copy")


def _older_dump(folder: Path) -> None:
    text = HEAD + page(1) + FOOT
    (folder / "enwiki-20260901-pages-articles-multistream.xml.bz2").write_bytes(bz2.compress(text.encode()))


def _no_checksums(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()


def _no_marker(folder: Path) -> None:
    (folder / "_SUCCESS").unlink()


def _bad_checksums(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text("<html>busy</html>\n")


def _file_not_listed(folder: Path) -> None:
    listed = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text(listed[0])


def _file_not_there(folder: Path) -> None:
    (folder / "enwiki-2026-09-01-p10p19.xml.bz2").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_second_copy, "enwiki of 2026-09-01 is in .* and .*; name only one"),
        (_older_dump, "multistream.xml.bz2 is another dump of enwiki, which has Content File Exports"),
        (_no_checksums, "no SHA256SUMS: the export of enwiki is still being written .*check_hashes: false"),
        (_no_marker, "no _SUCCESS: the export of enwiki is still being written .*check_hashes: false"),
        (_bad_checksums, "SHA256SUMS: line 1: not a SHA-256 and a file name: '<html>busy"),
        (_file_not_listed, r"p10p19\.xml\.bz2: not in .*SHA256SUMS.*check_hashes: false"),
        (_file_not_there, r"p10p19\.xml\.bz2: no such file, but SHA256SUMS lists it.*check_hashes: false"),
    ],
)
def test_an_unclear_or_incomplete_export_is_refused(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    folder = write_export(tmp_path / "exports")
    change(folder)
    with pytest.raises(BertmillError, match=message):
        _plan(tmp_path)
    if "check_hashes" in message:
        assert all(not unit.sha256 for unit in _plan(tmp_path, check_hashes=False))


def test_a_single_file_of_an_export_is_read_alone(tmp_path: Path) -> None:
    folder = write_export(tmp_path)
    (unit,) = _plan(folder / "enwiki-2026-09-01-p1p9.xml.bz2")
    assert unit.sha256
    (folder / "enwiki-2026-09-01-p10p19.xml.bz2").unlink()
    assert _plan(folder / "enwiki-2026-09-01-p1p9.xml.bz2") == [unit]


def test_a_date_without_exports_is_refused(tmp_path: Path) -> None:
    (tmp_path / "enwiki.xml").write_text(HEAD + page(1) + FOOT)
    with pytest.raises(ConfigError, match="date is for Content File Exports"):
        _plan(tmp_path, date="latest")


class _Quiet(SimpleHTTPRequestHandler):
    """A file server without a log."""

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_folder_on_a_web_server_is_listed_by_its_checksums(tmp_path: Path, web: str) -> None:
    folder = write_export(tmp_path)
    uri = f"{web}/{folder.relative_to(tmp_path)}"
    units = _plan(f"{uri}/")
    assert [unit.name for unit in units] == sorted(path.name for path in folder.glob("*.bz2"))
    assert _plan(f"{uri}/enwiki-*p1p*.xml.bz2")[0].name == "enwiki-2026-09-01-p1p9.xml.bz2"
    assert [len(list(read_unit(unit, Extraction()))) for unit in units] == [10, 9]
    with pytest.raises(InputError, match=r"/none: no such file \(the path of a folder .* must end with /\)"):
        _plan(f"{uri}/none")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="no SHA256SUMS, which is needed to list a folder of a web server"):
        _plan(f"{uri}/")
