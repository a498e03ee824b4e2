"""The work unit: a part of one source file that one task reads, named by a hash of what it says."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
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
    notes: tuple[str, ...] = field(default=())
    """Remarks for the person who reads the plan; no part of the unit's identity."""

    @property
    def unit_id(self) -> str:
        """Names the unit's output: a hash of everything but the notes."""
        record = self.to_record()
        del record["notes"]
        text = json.dumps(record, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        record = asdict(self)
        record["site_namespaces"] = [[number, list(names)] for number, names in self.site_namespaces]
        record["namespaces"] = list(self.namespaces)
        record["notes"] = list(self.notes)
        return record

    @staticmethod
    def from_record(record: dict[str, Any]) -> "Unit":
        """The unit that ``to_record`` gave."""
        names = tuple((int(number), tuple(names)) for number, names in record["site_namespaces"])
        other = {"namespaces": tuple(record["namespaces"]), "notes": tuple(record["notes"])}
        return Unit(**{**record, "site_namespaces": names, **other})
