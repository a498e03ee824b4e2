"""Stage hashes: compares whole files with their published hashes before any stage reads their pages."""

import hashlib
from dataclasses import dataclass

from cluster import storage
from pipeline.engine.commit import Marker, StageFolder, stable_hash
from pipeline.engine.progress import Progress
from pipeline.engine.ray_data import map_items
from pipeline.sources.units import Unit
from schemas.errors import InputError

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class HashCounts:
    """The counts of one file."""

    bytes: int


def run_hashes(work_uri: str, units: list[Unit]) -> None:
    """Hashes the unchecked files that have a published hash.

    Raises InputError that names a file whose hash differs.
    """
    files = {file.uri: file for unit in units for file in unit.ranges if file.sha256}
    if not files:
        return
    folder = StageFolder.create(work_uri, "hashes", HashCounts, [_identity(file) for file in files.values()])
    finished = folder.finished()
    pending = [file for file in files.values() if _name(file) not in finished]
    progress = Progress("hashes", len(pending), skipped=len(files) - len(pending))

    def work(file: Unit) -> int:
        marker = folder.marker(_name(file)) or check_one(file, folder)
        return marker.counts.bytes

    for read in map_items(pending, work, lambda file: file.size):
        progress.advance(read)


def check_one(file: Unit, folder: StageFolder[HashCounts]) -> Marker[HashCounts]:
    """Hashes one file and commits it. Raises InputError when its hash or size differs."""
    digest, size = hashlib.sha256(), 0
    try:
        with storage.open_stream(file.uri) as stream:
            while data := stream.read(_READ_BYTES):
                digest.update(data)
                size += len(data)
    except FileNotFoundError as error:
        raise InputError(
            f"{error}: existed when the build was planned; check that every node can read it"
        ) from error
    if digest.hexdigest() != file.sha256:
        raise InputError(
            f"{file.uri}: damaged or incomplete: SHA-256 {digest.hexdigest()[:16]}… of {size} bytes, but "
            f"SHA256SUMS lists {file.sha256[:16]}…; fetch it again, or set `check_hashes: false` of the "
            "source"
        )
    return folder.commit(_name(file), [], HashCounts(size))


def _identity(file: Unit) -> list[str | int]:
    return [file.uri, file.size, file.fingerprint, file.sha256]


def _name(file: Unit) -> str:
    return stable_hash(*_identity(file))[:24]
