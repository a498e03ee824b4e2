"""The work unit, a part of one source file that one task reads. Its name is a hash of its fields."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.config import Source
from pipeline.sources.chunks import probe
from schemas.redaction import public_uri

Namespaces = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Unit:
    """A part of one file with everything that its reader needs. Small and JSON-serializable.

    ``start`` and ``end`` are bytes of the stored file, or row groups of a Parquet file. A unit owns the
    records (bz2 streams, pages, lines, row groups) that start in [start, end).
    """

    source: str
    """Name of the source in the config."""
    kind: str
    """Kind of the source, which selects the reader."""
    uri: str
    """Where the reader finds the file, credentials included."""
    name: str
    """Path of the file below the source's folder. Page ids start with it when the file has no ids."""
    start: int
    end: int
    size: int
    """Bytes of the whole file."""
    lang: str
    """Language code, or empty if every record has its own."""
    compression: str = ""
    """``bz2``, ``gz``, ``zst``, ``xz``, or empty."""
    sha256: str = ""
    """The published hash of the whole file, which the build checks, or empty."""
    fingerprint: str = ""
    """Hash of the start and the end of the file, so that a replaced file gives other units."""
    form: str = ""
    """The form of the documents in this file, as the reader defines it."""
    text_field: str = "text"
    sentences_per_document: int = 0
    """Mean length of the documents that rows without boundaries are cut into."""
    encoding: str = "utf-8"
    dbname: str = ""
    """Name of the wiki, such as enwiki."""
    site_namespaces: Namespaces = ()
    """Namespace names and aliases of the wiki, from the dump's <siteinfo>."""
    namespaces: tuple[int, ...] = (0,)
    """Namespaces whose pages are read."""
    rooted: bool = True
    """Whether the file has a root element, whose end tag must come last."""
    page_prefix: str = ""
    """URL of the wiki's pages up to their title, or empty if the dump does not give it."""
    expected_pages: int | None = None
    """Pages that the multistream index lists for this unit."""
    weight: int = 0
    """Stored bytes of the unit, if start and end do not count bytes."""
    options: str = ""
    """Anything else that a custom reader needs, as text."""
    merged_files: tuple["Unit", ...] = ()
    """Small files to read together with this one, so that a folder of thousands of books does not cause
    thousands of tasks and output files."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader of the plan. They are not part of the unit's identity."""

    @staticmethod
    def of_file(source: Source, uri: str, **fields: Any) -> "Unit":
        """A whole file as one unit. Raises InputError if it is empty, FileNotFoundError if it is missing."""
        probed = probe(uri)
        unit = Unit(
            source=source.name,
            kind=source.kind,
            uri=uri,
            name=public_uri(uri).rpartition("/")[2],
            start=0,
            end=probed.size,
            size=probed.size,
            lang=source.lang or "",
            fingerprint=probed.fingerprint,
        )
        return replace(unit, **fields)

    @property
    def ranges(self) -> tuple["Unit", ...]:
        """The files to read, in order: the unit without ``merged_files``, then each of ``merged_files``."""
        return (replace(self, merged_files=()), *self.merged_files)

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of this file that the unit reads."""
        return self.weight or self.end - self.start

    @property
    def unit_id(self) -> str:
        """The name of the unit's output: a hash of all fields except the notes."""
        text = json.dumps(self.to_record(), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """All fields except the notes, for hashing. A new signature in the URI makes no difference."""
        record = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "notes"}
        merged = [unit.to_record() for unit in self.merged_files]
        return {**record, "uri": public_uri(self.uri), "merged_files": merged}


def group_small(units: Sequence[Unit], unit_bytes: int) -> list[Unit]:
    """Merges neighboring units that are whole files of one source and language, up to ``unit_bytes`` each.

    Keeps the order.
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
    return [replace(first, merged_files=tuple(rest)) for first, *rest in grouped]


def _fit(first: Unit, unit: Unit) -> bool:
    whole = all((file.start, file.end, file.weight) == (0, file.size, 0) for file in (first, unit))
    return whole and (first.source, first.kind, first.lang) == (unit.source, unit.kind, unit.lang)
