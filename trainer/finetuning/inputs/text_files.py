"""Text of files that may be compressed."""

from pathlib import PurePosixPath

from cluster.compressed import compression_suffix, read_decompressed
from schemas.errors import InputError


def plain_suffix(uri: str) -> str:
    """The suffix in small letters, without that of a compression.

    >>> plain_suffix("data/Train.CSV.gz")
    '.csv'
    """
    name = PurePosixPath(uri.lower())
    return PurePosixPath(name.stem).suffix if compression_suffix(uri) else name.suffix


def read_text(uri: str) -> str:
    """The text of a file, decompressed according to its suffix, without a BOM. Raises InputError."""
    try:
        # Files that were put together have several BOMs.
        return read_decompressed(uri).decode("utf-8-sig").lstrip("\ufeff")
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{uri}: cannot be read as text: {error}") from error
