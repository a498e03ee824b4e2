"""The work unit: a part of one source file that one task reads, named by a hash of what it says."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

Namespaces = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Unit:
    """A part of one file, with all that its reader needs to know; small and JSON-able.

    ``start`` and ``end`` are bytes of the file as it is stored, or row groups of a Parquet file. A unit
    owns the records (bz2 streams, pages, lines, row groups) that begin in [start, end).
    """

    source: str
    """Name of the source in the config."""
    kind: str
    """Kind of the source, which chooses the reader."""
    uri: str
    name: str
    """Path of the file below the folder that the source names; starts page ids where a file gives none."""
    start: int
    end: int
    size: int
    """Bytes of the whole file."""
    lang: str
    """Language code; empty where every record brings its own."""
    compression: str = ""
    """``bz2``, ``gz``, ``zst``, ``xz``, or empty."""
    fingerprint: str = ""
    """Hash of the beginning and the end of the file: a file that was replaced gives other units."""
    form: str = ""
    """What a document is in this file; see the reader."""
    text_field: str = "text"
    sentences_per_document: int = 0
    """Mean length of the documents that are cut out of rows without boundaries."""
    encoding: str = "utf-8"
    dbname: str = ""
    """Name of the wiki, such as enwiki."""
    site_namespaces: Namespaces = ()
    """Namespace names and aliases of the wiki, from the dump's <siteinfo>."""
    namespaces: tuple[int, ...] = (0,)
    """Namespaces whose pages are read."""
    rooted: bool = True
    """Whether the file has a root element, whose end tag must come last."""
    expected_pages: int | None = None
    """Pages that the multistream index lists for this unit."""
    weight: int = 0
    """Stored bytes of the unit, where start and end do not count bytes."""
    also: tuple["Unit", ...] = ()
    """Small files that are read together with this one, so that a folder of thousands of books makes
    neither thousands of tasks nor of output files."""
    notes: tuple[str, ...] = ()
    """Remarks for the person who reads the plan; no part of the unit's identity."""

    @property
    def ranges(self) -> tuple["Unit", ...]:
        """What is read, in this order: the unit without ``also``, then those in ``also``."""
        return (replace(self, also=()), *self.also)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are read of this file, as they are stored."""
        return self.weight or self.end - self.start

    @property
    def unit_id(self) -> str:
        """Names the unit's output: a hash of everything but the notes."""
        text = json.dumps(_without_notes(self.to_record()), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        record = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        record["site_namespaces"] = [[number, list(names)] for number, names in self.site_namespaces]
        record["namespaces"] = list(self.namespaces)
        record["also"] = [unit.to_record() for unit in self.also]
        record["notes"] = list(self.notes)
        return record

    @staticmethod
    def from_record(record: dict[str, Any]) -> "Unit":
        """The unit that ``to_record`` gave."""
        other = {
            "site_namespaces": tuple(
                (int(number), tuple(names)) for number, names in record["site_namespaces"]
            ),
            "namespaces": tuple(record["namespaces"]),
            "also": tuple(Unit.from_record(unit) for unit in record["also"]),
            "notes": tuple(record["notes"]),
        }
        return Unit(**{**record, **other})


def _without_notes(record: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in record.items() if name != "notes"}
    return {**kept, "also": [_without_notes(unit) for unit in record["also"]]}


def group_small(units: Sequence[Unit], unit_bytes: int) -> list[Unit]:
    """The units with neighbours put together that are whole files of one source and language.

    Together they have at most ``unit_bytes``; the order stays.
    """
    grouped: list[list[Unit]] = []
    total = 0
    for unit in units:
        if grouped and _fit(grouped[-1][0], unit) and total + unit.size <= unit_bytes:
            grouped[-1].append(unit)
            total += unit.size
        else:
            grouped.append([unit])
            total = unit.size
    return [replace(first, also=tuple(rest)) for first, *rest in grouped]


def _fit(one: Unit, other: Unit) -> bool:
    whole = all((unit.start, unit.end, unit.weight) == (0, unit.size, 0) for unit in (one, other))
    return whole and (one.source, one.kind, one.lang) == (other.source, other.kind, other.lang)
