"""Opens compressed files, and reads small ones whole with a limit on their decompressed size."""

import bz2
import lzma
from typing import IO, cast

import pyarrow as pa

from cluster import storage
from schemas.errors import InputError
from schemas.redaction import public_uri

MOST_BYTES = 256 << 20
"""Maximum decompressed bytes of one file. A few kilobytes can decompress to gigabytes."""
_READ_BYTES = 1 << 20
_ARROW_CODECS = {"gz": "gzip", "zst": "zstd"}
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def open_compressed(file: IO[bytes], compression: str) -> IO[bytes]:
    """All members of the file as one stream. ``compression`` is gz, bz2, xz or zst.

    Reading a damaged or truncated member raises EOFError, OSError or lzma.LZMAError.
    """
    if compression == "bz2":
        return bz2.open(file)
    if compression == "xz":
        return lzma.open(file)
    codec = _ARROW_CODECS[compression]
    return cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec))


def compression_suffix(uri: str) -> str:
    """The suffix of a supported compression, or '' for a plain file.

    >>> compression_suffix("https://host/Dev.jsonl.GZ?signature=ab12")
    '.gz'
    """
    name = public_uri(uri).lower()
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")


def read_decompressed(uri: str) -> bytes:
    """The whole file, decompressed according to its suffix.

    Raises FileNotFoundError, and InputError if the file is damaged or has more than MOST_BYTES.
    """
    suffix = compression_suffix(uri)
    if not suffix:
        return storage.read_bytes(uri)
    pieces, size = [], 0
    with storage.open_stream(uri) as stored:
        try:
            stream = open_compressed(stored, suffix[1:])
            while size <= MOST_BYTES and (data := stream.read(_READ_BYTES)):
                pieces.append(data)
                size += len(data)
        except FileNotFoundError:
            raise
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise InputError(f"{uri}: cannot be read as {suffix}: {error}") from error
    if size > MOST_BYTES:
        raise InputError(
            f"{uri}: decompresses to more than {MOST_BYTES >> 20} MiB, which is too large for such a file; "
            "check its origin, or decompress it first"
        )
    return b"".join(pieces)
