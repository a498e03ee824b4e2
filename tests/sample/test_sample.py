"""The bundled sample is what its list says it is, and stays small."""

import csv
import hashlib
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "sample"


def _listed() -> dict[str, dict[str, str]]:
    with (SAMPLE / "SOURCES.tsv").open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def test_three_megabytes_at_most() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) <= 3_000_000


def test_every_file_is_listed_with_source_license_and_checksum() -> None:
    listed = _listed()
    found = {str(path.relative_to(SAMPLE)) for path in SAMPLE.rglob("*") if path.is_file()}
    assert found - {"SOURCES.md", "SOURCES.tsv"} == set(listed)
    for name, row in listed.items():
        assert hashlib.sha256((SAMPLE / name).read_bytes()).hexdigest() == row["sha256"], name
        assert row["source"].startswith("https://")
        assert row["license"]
        assert row["changes"]


def test_names_are_safe_on_every_file_system() -> None:
    for name in _listed():
        assert name.isascii()
        assert not set(name) & set(':*?"<>|\\ ')
