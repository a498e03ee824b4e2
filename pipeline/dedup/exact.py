"""Finds exact duplicates: documents with equal text, and pages that were read twice.

Pure functions over small columns. All rows of a duplicate group must be in one table, so the caller first
buckets rows by `hash_bucket` or `page_bucket`. The result depends neither on the order of the rows nor on
the number of buckets.

A row's key identifies it. If the same revision of a page was read from two files, the optional integer
columns ``part`` and ``row`` identify it.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEEPER = "kept_key"
_PLACE = ("part", "row")
_PAGE = ("source", "lang", "page_id")


def content_hash(text: bytes) -> bytes:
    """BLAKE2b-128 (16 bytes) of a document's text: its sentences in UTF-8 with a space between them.

    Normalized sentences have only single spaces, so the hash does not depend on where paragraphs and
    sentences end.
    """
    return hashlib.blake2b(text, digest_size=16).digest()


def hash_bucket(hashes: pa.Array | pa.ChunkedArray, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each content hash in [0, buckets), from its first eight bytes."""
    raw = b"".join(value[:8] for value in hashes.to_pylist())
    return (np.frombuffer(raw, "<u8") % np.uint64(buckets)).astype(np.int64)


def page_bucket(table: pa.Table, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row, from its page: (source, lang, page_id)."""
    pages = zip(*(table[name].to_pylist() for name in _PAGE), strict=True)
    digests = (hashlib.blake2b("\0".join(page).encode(), digest_size=8).digest() for page in pages)
    return (np.frombuffer(b"".join(digests), "<u8") % np.uint64(buckets)).astype(np.int64)


def exact_removals(table: pa.Table) -> pa.Table:
    """The rows to remove because a row with a smaller key has the same ``content_hash``.

    Columns used: key, content_hash, and part and row if present. The result is sorted by hash and key and has
    the column ``kept_key``.
    """
    return all_but_first(table, ["content_hash"], [("key", "ascending")])


def page_removals(table: pa.Table) -> pa.Table:
    """The rows to remove because the same page was also read in a higher revision, or twice.

    Columns used: key, source, lang, page_id, revision, and part and row if present. The result is sorted by
    page and has the column ``kept_key``.
    """
    return all_but_first(table, list(_PAGE), [("revision", "descending"), ("key", "ascending")])


def all_but_first(table: pa.Table, group: list[str], order: list[tuple[str, str]]) -> pa.Table:
    """All rows except the first of each group in the given ``order``, with the column ``kept_key``."""
    places = [(name, "ascending") for name in _PLACE if name in table.column_names]
    table = table.sort_by([*((name, "ascending") for name in group), *order, *places]).combine_chunks()
    if not len(table):
        return table.append_column(KEEPER, pa.array([], pa.string()))
    opens = np.zeros(len(table), bool)
    opens[0] = True
    for name in group:
        column = table[name].combine_chunks()
        opens[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    first_of_group = np.flatnonzero(opens)[np.cumsum(opens) - 1]
    kept = table["key"].take(pa.array(first_of_group))
    return table.append_column(KEEPER, kept).filter(pa.array(~opens))
