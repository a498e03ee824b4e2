"""A Parquet file of a build that is read only if it has the hash of its marker."""

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
    """A file that a build has written, and the hash by which damage is noticed."""

    uri: str
    sha256: str

    def open(self) -> pq.ParquetFile:
        """Opens the file. Raises ValueError when it is not the file that the build has written."""
        digest = hashlib.sha256()
        with storage.open_stream(self.uri) as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
        if digest.hexdigest() != self.sha256:
            raise ValueError("damaged: its SHA-256 is not that of the file that was written")
        return storage.parquet_file(self.uri)


@contextmanager
def readable(
    uri: str, owner: str = "previous: ", remedy: str = "restore it, or leave out `previous` and run again"
) -> Iterator[None]:
    """Raises CorpusError in place of any error of reading a file. The defaults fit the earlier build."""
    try:
        yield
    except (OSError, StorageError, pa.ArrowException, ValueError, IndexError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        raise CorpusError(f"{owner}{public_uri(uri)}: {reason}; {remedy}") from error
