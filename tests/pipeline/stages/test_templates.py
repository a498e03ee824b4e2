"""Tests the stage that learns templates: commits, resuming, its effect on extraction, and its display."""

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest

from bertmill.cli.command import main
from pipeline.config import BuildConfig, Extraction, Source
from pipeline.documents.reuse.previous_pages import PreviousPages
from pipeline.engine.commit import Marker, StageFolder
from pipeline.sources.plan import plan_units
from pipeline.stages.extract import UnitCounts, extract_folder, extract_one, run_extract
from pipeline.stages.templates import PageCopies, ScanCounts, TemplatesResult, run_templates, scan_one
from schemas.errors import CorpusError, InputError
from tests.pipeline.documents.reuse.wikis import articles, config_of, write_wiki
from tests.pipeline.sources.dumps import FOOT, HEAD, page
from tests.support.ray_cluster import RayCluster

PROSE = "The old pier stands {{dist|5}} from the water. It was built of grey stone in the old town. " * 4


def write(folder: Path, body: str) -> BuildConfig:
    folder.mkdir(exist_ok=True)
    template = page(2, body, title="Template:Dist", ns=10)
    (folder / "enwiki.xml").write_text(HEAD + page(1, PROSE) + template + FOOT)
    return BuildConfig(
        output=str(folder),
        sources=[Source(name="wiki", kind="wikimedia", paths=[str(folder / "enwiki.xml")])],
        extraction=Extraction(unit_bytes=1 << 16),
    )


@pytest.mark.ray
def test_tables_are_committed_used_and_shown(
    tmp_path: Path, ray_session: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, "{{{1}}} miles")
    work, units = str(tmp_path / "work"), plan_units(config)
    templates = run_templates(config, work, units)
    extracted = run_extract(config, work, units, templates)
    counts = extracted.funnel.languages["en"].text_counts
    assert counts["calls_learned"] == 4
    assert counts["sentences_dropped"] == 0
    without = run_extract(config, work, units)
    assert without.folder.uri != extracted.folder.uri
    assert without.funnel.languages["en"].text_counts["calls_unknown"] == 4

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("template*/*")}
    assert run_templates(config, work, units) == templates
    assert {path: path.stat().st_mtime_ns for path in written} == written
    table = next(path for path in written if path.parent.name.startswith("template-tables"))
    for path in written:
        if path.parent == table.parent:
            path.unlink()
    assert run_templates(config, work, units).identity() == templates.identity()

    assert main(["templates", str(tmp_path), "enwiki"]) == 0
    assert "Dist [1] {{{1}}} miles" in capsys.readouterr().out
    assert main(["templates", str(tmp_path), "dewiki"]) == 2
    assert "no wiki 'dewiki'; its wikis are enwiki" in capsys.readouterr().err
    assert main(["templates", str(tmp_path / "none"), "enwiki"]) == 2


@pytest.mark.ray
def test_extraction_depends_on_what_was_learned(tmp_path: Path, ray_session: RayCluster) -> None:
    folders = set()
    for body in ("{{{1}}} miles", "{{{1}}} km"):
        config = write(tmp_path, body)
        units = plan_units(config)
        templates = run_templates(config, str(tmp_path / "work"), units)
        # The units differ too, so both builds use the same ones.
        folders.add(extract_folder(config, str(tmp_path / "work"), [], templates).uri)
    assert len(folders) == 2


def test_nothing_is_learned_where_that_is_off_or_no_dump_is_read(tmp_path: Path) -> None:
    config = write(tmp_path, "x")
    off = config.model_copy(update={"extraction": Extraction(learn_templates=False)})
    assert run_templates(off, str(tmp_path), plan_units(config)) == TemplatesResult()
    assert run_templates(config, str(tmp_path), []) == TemplatesResult()


NOTHING = PreviousPages([])


class CopiedUnit:
    """A dump of one unit, whose pages were copied while it was scanned for templates."""

    def __init__(self, folder: Path) -> None:
        self.dump = write_wiki(folder / "dump", articles({1: PROSE, 2: PROSE + "Page 2."}), suffix=".bz2")
        self.config = config_of(self.dump)
        (self.unit,) = plan_units(self.config)
        self.work = folder / "work"
        self.copies = PageCopies.create(self.config, str(self.work), [self.unit])
        self.scanned = StageFolder.create(str(self.work), "templates", ScanCounts)
        scan_one(self.unit, self.scanned, 1 << 22, self.copies)

    @property
    def copied(self) -> list[Path]:
        return sorted(self.work.glob("page-copies-*/*"))

    def extract(self, previous: PreviousPages | None = NOTHING) -> Marker[UnitCounts]:
        folder = extract_folder(self.config, str(self.work), [self.unit])
        return extract_one(self.unit, self.config, folder, previous=previous, copies=self.copies)


def test_pages_that_were_copied_are_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = CopiedUnit(tmp_path)
    plain = copied.extract(previous=None).files

    def refuse(*_: object) -> None:
        raise AssertionError("the dump is decoded")

    monkeypatch.setattr("pipeline.sources.chunks.read_blocks", refuse)
    assert copied.extract().files == plain
    with pytest.raises(AssertionError, match="the dump is decoded"):
        copied.extract(previous=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda dump: dump.write_bytes(dump.read_bytes() + b"x"),
            r"changed: \d+ bytes when .*, \d+ bytes now",
        ),
        (lambda dump: dump.write_bytes(dump.read_bytes()[:-9]), r"changed: \d+ bytes when .*, \d+ bytes now"),
        (Path.unlink, "existed when the build was planned"),
    ],
    ids=["grown", "shrunk", "gone"],
)
def test_a_dump_that_changes_after_its_pages_were_copied_is_refused(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    copied = CopiedUnit(tmp_path)
    change(copied.dump)
    with pytest.raises(InputError, match=rf"enwiki\.xml\.bz2: {message}"):
        copied.extract()
    # The same error as without copies.
    with pytest.raises(InputError, match=rf"enwiki\.xml\.bz2: {message}"):
        copied.extract(previous=None)


def test_a_damaged_dump_leaves_no_copy(tmp_path: Path) -> None:
    copied = CopiedUnit(tmp_path)
    for path in copied.copied:
        path.unlink()
    raw = bytearray(copied.dump.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    copied.dump.write_bytes(raw)
    with pytest.raises(InputError, match=r"enwiki\.xml\.bz2: the bz2 block at byte 4 "):
        scan_one(copied.unit, copied.scanned, 1 << 22, copied.copies)
    assert copied.copied == []


@pytest.mark.parametrize("killed", ["before the copy", "before its marker", "before the marker of the scan"])
def test_a_scan_that_was_killed_makes_the_same_copy(tmp_path: Path, killed: str) -> None:
    copied = CopiedUnit(tmp_path)
    before = {path: path.read_bytes() for path in copied.copied}
    marker, copy = sorted(copied.copied)
    for path in copied.work.glob("templates-*/*.done.json"):
        path.unlink()
    if killed != "before the marker of the scan":
        marker.unlink()
        # What a marker does not name may hold anything.
        copy.write_bytes(b"of a build that was killed")
    if killed == "before the copy":
        copy.unlink()
    scan_one(copied.unit, copied.scanned, 1 << 22, copied.copies)
    assert {path: path.read_bytes() for path in copied.copied} == before


def test_without_a_copy_the_dump_is_read(tmp_path: Path) -> None:
    """As in a build that was stopped after its scan and continues with an earlier build."""
    copied = CopiedUnit(tmp_path)
    files = copied.extract().files
    marker, copy = sorted(copied.copied)
    marker.unlink()
    assert copied.extract().files == files
    copied.copies.remove()
    assert not copy.parent.exists()
    assert copied.extract().files == files


def test_a_damaged_copy_is_one_line_that_tells_what_to_remove(tmp_path: Path) -> None:
    copied = CopiedUnit(tmp_path)
    files = copied.extract().files
    _, copy = sorted(copied.copied)
    copy.write_bytes(copy.read_bytes()[:-50])
    with pytest.raises(CorpusError, match=rf"^{copy}: damaged: .*; remove the folder {copy.parent} and run"):
        copied.extract()
    copied.copies.remove()
    assert copied.extract().files == files


@pytest.mark.ray
def test_copies_are_made_only_with_an_earlier_build_and_are_removed(
    tmp_path: Path, ray_session: RayCluster
) -> None:
    body = "{{{1}}} miles"
    packed = write(tmp_path, body)
    dump = tmp_path / "enwiki.xml"
    (tmp_path / "enwiki.xml.bz2").write_bytes(bz2.compress(dump.read_bytes()))
    source = packed.sources[0].model_copy(update={"paths": (f"{dump}.bz2",)})
    config = packed.model_copy(update={"sources": [source]})
    units = plan_units(config)

    def extracted(work: str, previous: PreviousPages | None) -> dict[str, list[object]]:
        copies = PageCopies.create(config, work, units)
        made = None if previous is None else copies
        templates = run_templates(config, work, units, made)
        folders = list(Path(work).glob("page-copies-*"))
        assert len(folders) == (previous is not None)
        folder = run_extract(config, work, units, templates, previous, copies).folder
        assert list(Path(work).glob("page-copies-*")) == []
        return {unit: list(marker.files) for unit, marker in folder.finished().items()}

    assert extracted(str(tmp_path / "with"), NOTHING) == extracted(str(tmp_path / "without"), None)
