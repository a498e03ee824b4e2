"""Text of files that may be compressed."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import PurePosixPath

from cluster import storage
from schemas.errors import InputError

_OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}


def plain_suffix(uri: str) -> str:
    """The suffix in small letters, without that of a compression.

    >>> plain_suffix("data/Train.CSV.gz")
    '.csv'
    """
    name = PurePosixPath(uri.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in _OPENERS else name.suffix


def read_text(uri: str) -> str:
    """The text of a file, decompressed according to its suffix, without a BOM. Raises InputError."""
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    suffix = next((name for name in _OPENERS if uri.endswith(name)), None)
    try:
        text = (_OPENERS[suffix](raw) if suffix else raw).decode("utf-8-sig")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise InputError(f"{uri}: cannot be read as {suffix or 'text'}: {error}") from error
    return text
