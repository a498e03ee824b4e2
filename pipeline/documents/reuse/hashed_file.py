"""Reads Parquet files of a build only if they have the hash in their marker."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from cluster import storage
from schemas.errors import CorpusError, StorageError
from schemas.redaction import public_uri


@dataclass(frozen=True)
class HashedFile:
    """A file that a build wrote and its hash, which reveals damage."""

    uri: str
    sha256: str

    def open(self) -> pq.ParquetFile:
        """Opens the file. Raises ValueError if it differs from the file that the build wrote."""
        digest = hashlib.sha256()
        with storage.open_stream(self.uri) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
        if digest.hexdigest() != self.sha256:
            raise ValueError("damaged: its SHA-256 differs from that of the original file")
        return storage.parquet_file(self.uri)


@contextmanager
def readable(
    uri: str, owner: str = "previous: ", remedy: str = "restore it, or remove `previous` and run again"
) -> Iterator[None]:
    """Turns any error of reading a file into a CorpusError. The defaults fit the earlier build."""
    try:
        yield
    except (OSError, StorageError, pa.ArrowException, ValueError, IndexError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        raise CorpusError(f"{owner}{public_uri(uri)}: {reason}; {remedy}") from error
