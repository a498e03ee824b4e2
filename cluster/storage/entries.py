"""The entry of a listing, the same for every backend."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class FileInfo:
    """One file of a listing."""

    uri: str
    size: int
    """Bytes."""
    modified: float
    """Seconds since 1970, by the clock of the storage."""
