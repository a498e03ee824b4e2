"""``bertmill fetch`` with a server that has Wikimedia's tree and injected faults."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from bertmill.cli import main
from cluster import storage
from cluster.storage import retries
from cluster.storage.http import CONTACT_VARIABLE
from pipeline.config import BuildConfig, Source
from pipeline.sources.plan import plan_units
from schemas.versions import CODE_VERSION
from tests.bertmill.fetching.dump_server import CONTENT, DumpServer, Request
from tests.pipeline.sources.dumps import LTG, LTG_INDEX, SAMPLE

DATE = "2026-09-01"
FO = random.Random(1).randbytes(300_000)
IS = (random.Random(2).randbytes(200_000), random.Random(3).randbytes(100_000))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DumpServer]:
    monkeypatch.setattr(retries, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(retries, "LONGEST_DELAY_SECONDS", 0.01)
    monkeypatch.setenv(CONTACT_VARIABLE, "")  # restored at the end, because the command sets it
    with DumpServer() as server:
        server.add_export("fowiki", "2026-08-01", b"old")
        server.add_export("fowiki", DATE, FO)
        server.add_export("fowiki", "2026-10-01", b"being written", complete=False)
        server.add_export("iswiki", DATE, *IS)
        yield server


def fetch(server: DumpServer, target: object, *words: str, wikis: str = "fo") -> int:
    chosen = () if "--all" in words else ("--wikis", wikis)
    place = ["--to", str(target), "--base-url", server.url, "--contact", "me@example.org"]
    return main(["fetch", *chosen, *place, *words])


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


FO_NAME = f"fowiki-{DATE}-p1p1000.xml.bz2"
FO_FILES = [f"fowiki/{DATE}/{name}" for name in ("SHA256SUMS", "_SUCCESS", FO_NAME)]


def test_the_newest_complete_exports_are_fetched_once(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(server, tmp_path, wikis="fo,iswiki") == 0
    assert [name for name in names(tmp_path) if name.startswith("fo")] == FO_FILES
    assert len(names(tmp_path)) == 7
    assert (tmp_path / FO_FILES[2]).read_bytes() == FO
    success = json.loads((tmp_path / FO_FILES[1]).read_text())
    assert success["files"][FO_NAME] == {
        "bytes": len(FO), "algorithm": "sha256", "digest": hashlib.sha256(FO).hexdigest(),
    }  # fmt: skip
    said = capsys.readouterr().err
    assert f"iswiki {DATE}: 2 files, 0.3 MB, checked: {tmp_path}/iswiki/{DATE}" in said
    assert {r.headers["User-Agent"] for r in server.requests} == {f"bertmill/{CODE_VERSION} (me@example.org)"}
    assert server.most_at_once <= 3
    sent = server.sent
    assert fetch(server, tmp_path, wikis="fo,iswiki") == 0
    assert server.sent == sent
    assert "already complete" in capsys.readouterr().err


def test_a_build_reads_what_was_fetched(server: DumpServer, tmp_path: Path) -> None:
    simple = SAMPLE / "dumps" / "simplewiki-pages-articles.xml.bz2"
    server.add_export("simplewiki", DATE, simple.read_bytes())
    server.add_articles("ltgwiki", "20260901", LTG.read_bytes(), index=LTG_INDEX.read_bytes())
    assert fetch(server, tmp_path, wikis="simple,ltg") == 0
    source = Source(name="wiki", kind="wikimedia", paths=[str(tmp_path)])
    units = plan_units(BuildConfig(output="out", sources=[source]))
    files = [file for unit in units for file in unit.ranges]
    assert [(file.dbname, file.expected_pages) for file in files] == [("ltgwiki", 2004), ("simplewiki", None)]


def test_the_password_of_a_mirror_is_in_no_output(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = server.url.replace("http://", "http://me:passw0rd@")
    assert fetch(server, tmp_path, "--base-url", mirror) == 0
    assert f'"url": "{server.url}/other/' in (tmp_path / FO_FILES[1]).read_text()
    assert fetch(server, tmp_path, "--base-url", mirror, wikis="xx") == 2
    assert "passw0rd" not in capsys.readouterr().err


def test_a_complete_dump_of_a_date_needs_no_server(server: DumpServer, tmp_path: Path) -> None:
    assert fetch(server, tmp_path, "--date", "20260801") == 0
    server.files.clear()
    before = len(server.requests)
    assert fetch(server, tmp_path, "--date", "2026-08-01") == 0
    assert len(server.requests) == before


def test_a_wiki_without_exports_falls_back_to_pages_articles(server: DumpServer, tmp_path: Path) -> None:
    server.add_articles("ltgwiki", "20260820", b"old")
    server.add_articles("ltgwiki", "20260901", FO)
    server.add_articles("ltgwiki", "20260920", b"unfinished", status="in-progress")
    assert fetch(server, tmp_path, wikis="ltg") == 0
    stem = f"ltgwiki/{DATE}/ltgwiki-20260901-pages-articles-multistream"
    assert names(tmp_path) == [
        f"ltgwiki/{DATE}/_SUCCESS",
        f"{stem}-index.txt.bz2",
        f"{stem}.xml.bz2",
        f"ltgwiki/{DATE}/sha1sums.txt",
    ]
    assert (tmp_path / f"{stem}.xml.bz2").read_bytes() == FO


@pytest.mark.parametrize("fault", ["429", "503", "wait0", "cut", "wrong-range", "garbled"])
def test_faults_cost_nothing_but_time(server: DumpServer, tmp_path: Path, fault: str) -> None:
    server.plan = lambda request: fault if request.is_file and request.number == 0 else ""
    assert fetch(server, tmp_path) == 0
    assert names(tmp_path) == FO_FILES
    assert (tmp_path / FO_FILES[2]).read_bytes() == FO
    if fault == "cut":
        assert server.sent == len(FO)  # resumed, not fetched again


def test_listings_and_checksums_are_retried_after_faults(server: DumpServer, tmp_path: Path) -> None:
    server.plan = lambda request: "" if request.number % 2 else "503"
    assert fetch(server, tmp_path) == 0
    assert names(tmp_path) == FO_FILES


def test_retry_after_is_kept(
    server: DumpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("cluster.storage.retries.time.sleep", slept.append)
    server.plan = lambda request: "wait500" if request.is_file and request.number == 0 else ""
    assert fetch(server, tmp_path) == 0
    assert [round(seconds) for seconds in slept] == [500]
    server.plan = lambda request: "wait7200" if request.is_file else ""
    assert fetch(server, tmp_path, wikis="is") == 2
    assert "gave up, because the server requests a wait of 7200 s" in capsys.readouterr().err


def interrupted(server: DumpServer, target: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that gets half of the file and then stops."""
    server.plan = lambda request: ("503" if request.number else "cut") if request.is_file else ""
    with monkeypatch.context() as patch:
        patch.setattr(retries, "BUDGET_SECONDS", 0.05)
        assert fetch(server, target) == 2
    server.plan = lambda _: ""


def test_a_partial_file_is_continued_by_the_next_run(
    server: DumpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(server, tmp_path, monkeypatch)
    assert storage.list_files(str(tmp_path / f"fowiki/{DATE}"))[0].uri.endswith("SHA256SUMS")
    assert server.sent == len(FO) // 2
    assert fetch(server, tmp_path) == 0
    assert server.sent == len(FO)
    assert names(tmp_path) == FO_FILES


def test_ctrl_c_is_one_line_and_the_next_run_resumes(
    server: DumpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertmill.fetching.fetch.wait", interrupt)
        assert fetch(server, tmp_path) == 130
    assert capsys.readouterr().err == "interrupted; the same command resumes\n"
    assert fetch(server, tmp_path) == 0
    assert names(tmp_path) == FO_FILES


def test_a_partial_file_of_another_version_starts_again(
    server: DumpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is that of the new file, which has another ETag."""
    right = dict(server.files)
    wrong = {path: b"v0" + data[2:] for path, data in right.items() if path.endswith(FO_NAME)}
    server.files |= wrong
    interrupted(server, tmp_path, monkeypatch)
    server.files |= right
    assert fetch(server, tmp_path) == 0
    assert server.sent == len(FO) // 2 + len(FO)
    assert (tmp_path / FO_FILES[2]).read_bytes() == FO


@pytest.mark.parametrize("version", [b"\xff\xfe", b"a\nb: c", "ø".encode(), b"x" * 100_000], ids=repr)
def test_a_damaged_version_of_a_partial_file_starts_again(
    server: DumpServer, tmp_path: Path, version: bytes
) -> None:
    folder = tmp_path / "fowiki" / DATE
    folder.mkdir(parents=True)
    part = folder / f".part-{hashlib.sha256(FO).hexdigest()[:16]}-{FO_NAME}"
    part.write_bytes(b"of another file")
    part.with_name(f"{part.name}.version").write_bytes(version)
    assert fetch(server, tmp_path) == 0
    assert names(tmp_path) == FO_FILES
    assert (tmp_path / FO_FILES[2]).read_bytes() == FO


@pytest.mark.parametrize("sums", [b"\xff\xfe\n", b"x  ../../precious\nx  \nx\n\n"], ids=["bytes", "names"])
def test_a_damaged_list_of_checksums_is_replaced(server: DumpServer, tmp_path: Path, sums: bytes) -> None:
    assert fetch(server, tmp_path) == 0
    before = (tmp_path / FO_FILES[0]).read_bytes()
    (tmp_path / FO_FILES[1]).unlink()
    (tmp_path / FO_FILES[0]).write_bytes(sums)
    (tmp_path / "precious").write_text("of the user")
    assert fetch(server, tmp_path) == 0
    assert (tmp_path / FO_FILES[0]).read_bytes() == before
    assert names(tmp_path) == [*FO_FILES, "precious"]


def test_a_folder_in_the_place_of_a_file_is_one_line(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FO_FILES[2]).mkdir(parents=True)
    assert fetch(server, tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{FO_FILES[2]}: write: Is a directory")


@pytest.mark.parametrize(
    "jobs",
    [
        None,
        [1],
        {"articlesmultistreamdump": "done"},
        {"articlesmultistreamdump": {"status": "done", "files": ["a"]}},
        {"articlesmultistreamdump": {"status": "done", "files": {"a": "b"}}},
        {"articlesmultistreamdump": {"status": ["done"]}},
    ],
    ids=json.dumps,
)
def test_a_status_file_of_another_form_is_one_line(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: object
) -> None:
    server.add_articles("dewiki", "20260901", FO)
    server.files["/dewiki/20260901/dumpstatus.json"] = json.dumps({"jobs": jobs}).encode()
    assert fetch(server, tmp_path, wikis="de") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/dewiki/20260901/dumpstatus.json: not a status file of a dump: jobs" in line


def test_an_export_that_the_server_has_not_marked_is_not_fetched(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its copy would get a _SUCCESS that the server never wrote."""
    server.add_export("fowiki", "2026-10-02", b"all files and checksums")
    del server.files[f"{CONTENT}/fowiki/2026-10-02/xml/bzip2/_SUCCESS"]
    assert fetch(server, tmp_path) == 0
    assert names(tmp_path) == FO_FILES
    assert fetch(server, tmp_path, "--date", "2026-10-02") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "fowiki: no complete dump of 2026-10-02" in last
    assert "an export counts only with SHA256SUMS and _SUCCESS" in last
    assert names(tmp_path) == FO_FILES


@pytest.mark.parametrize("moment", ["before the file", "after the file"])
def test_files_that_are_replaced_meanwhile_are_fetched_again(
    server: DumpServer, tmp_path: Path, moment: str
) -> None:
    new = FO[::-1]
    path = next(path for path in server.files if path.endswith(FO_NAME))

    def replace(request: Request) -> str:
        arrived = request.path == path if moment == "before the file" else request.path.endswith("SHA256SUMS")
        if arrived and server.files[path] == FO and (request.path == path or request.number):
            server.add_export("fowiki", DATE, new)
        return ""

    server.plan = replace
    assert fetch(server, tmp_path) == 0
    assert (tmp_path / FO_FILES[2]).read_bytes() == new
    assert names(tmp_path) == FO_FILES


def test_a_file_that_is_never_right_is_refused(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plan = lambda request: "garbled" if request.path.endswith(FO_NAME) else ""
    assert fetch(server, tmp_path, wikis="fo,is") == 2
    said = capsys.readouterr().err
    assert f"{FO_NAME}: the sha256 is" in said.splitlines()[-1]
    assert names(tmp_path / "fowiki") == [f"{DATE}/SHA256SUMS"]
    assert (tmp_path / f"iswiki/{DATE}/_SUCCESS").exists()


@pytest.mark.s3
def test_a_store_as_target(
    server: DumpServer, s3_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    interrupted(server, s3_folder, monkeypatch)
    assert fetch(server, s3_folder) == 0
    assert server.sent == len(FO)
    assert storage.read_bytes(storage.join(s3_folder, FO_FILES[2])) == FO
    assert [info.uri for info in storage.list_files(s3_folder)] == [
        storage.join(s3_folder, name) for name in FO_FILES
    ]
    assert names(tmp_path) == []


TABLE = (
    b"id,lang,prefix,total,good,views\n1,Faroese,fo,30000,14000,0\n2,Icelandic,is,1,60000,0\n3,Old,aa,9,3,0\n"
)


def test_all_wikipedias_of_a_size(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/table.csv"] = TABLE
    table = ("--statistics-url", f"{server.url}/table.csv?action=dump")
    assert fetch(server, tmp_path, "--all", "--min-articles", "20000", *table) == 0
    assert server.fetched() == [f"iswiki-{DATE}-p1001p2000.xml.bz2", f"iswiki-{DATE}-p1p1000.xml.bz2"]
    # A wiki without a dump does not stop the others, but the exit status reports it.
    assert fetch(server, tmp_path, "--all", *table) == 2
    assert capsys.readouterr().err.endswith(f"bertmill: aawiki: no such wiki at {server.url}\n")
    assert (tmp_path / FO_FILES[1]).exists()


MISTAKES: dict[str, tuple[Callable[[DumpServer, Path], int], str]] = {
    "unknown wiki": (lambda s, t: fetch(s, t, wikis="fo,xx"), "xxwiki: no such wiki at http://"),
    "no such date": (
        lambda s, t: fetch(s, t, "--date", "2026-07-01"),
        "fowiki: no complete dump of 2026-07-01",
    ),
    "unfinished date": (
        lambda s, t: fetch(s, t, "--date", "2026-10-01"),
        "it lists 2026-08-01, 2026-09-01, 2026-10-01",
    ),
    "not a date": (lambda s, t: fetch(s, t, "--date", "september"), "must be latest or YYYY-MM-DD"),
    "no contact": (lambda s, t: fetch(s, t, "--contact", ""), "--contact is missing: an e-mail address"),
    "not a contact": (lambda s, t: fetch(s, t, "--contact", "me"), "--contact 'me' is not an e-mail address"),
    "not a wiki": (lambda s, t: fetch(s, t, wikis="../fo"), "must be a language code"),
    "not a store": (lambda s, t: fetch(s, "https://example.org"), "must be a folder or a store"),
    "not a server": (lambda s, t: fetch(s, t, "--base-url", "s3://x"), "must start with https://"),
    "half of --all": (lambda s, t: fetch(s, t, "--min-articles", "5"), "--min-articles is for --all"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line_and_fetch_nothing(
    server: DumpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: str
) -> None:
    run, message = MISTAKES[mistake]
    assert run(server, tmp_path) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("bertmill: ")
    assert said.count("\n") == 1
    assert server.sent == 0
