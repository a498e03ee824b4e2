"""Cuts boilerplate paragraphs, which occur in many documents, out of all documents.

The comparison of paragraphs ignores case, punctuation and diacritics, like that of documents. Paragraphs with
fewer than five words (headings, names in lists) stay, since they repeat without being boilerplate.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.exact import content_hash
from pipeline.dedup.shingles import SHINGLE_WORDS, hashed_words, powers
from schemas.arrays import I64, U64, Flags
from schemas.randomness import draws

# 0 is the hash of a paragraph that is too short to count.
_TOO_SHORT = 0
_SEED = 0xB011
_BASE = 0xAEF17502108EF2D9
PARAGRAPHS = pa.schema(
    [pa.field("paragraph", pa.uint64(), nullable=False), pa.field("documents", pa.int64(), nullable=False)]
)


def offsets_of(lists: pa.Array) -> I64:
    """[lists + 1] offsets of the lists into the items of all lists."""
    return np.concatenate(([0], np.cumsum(pc.list_value_length(lists).to_numpy(), dtype=np.int64)))


def paragraph_hashes(documents: pa.Table) -> U64:
    """A hash of each paragraph of the documents (columns sentences, paragraph_sentences), 0 if short."""
    sizes = documents["paragraph_sentences"].combine_chunks().flatten().to_numpy()
    sentences = documents["sentences"].combine_chunks().flatten()
    words = hashed_words(sentences, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))
    lengths = np.diff(words.offsets)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    out = np.full(len(lengths), _TOO_SHORT, np.uint64)
    filled = lengths >= SHINGLE_WORDS
    place = np.arange(len(words.hashes)) - np.repeat(words.offsets[:-1], lengths)
    factors = powers(_BASE)
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(
            np.append(words.hashes * factors[place % len(factors)], np.uint64(0)), words.offsets[:-1]
        )
    out[filled] = draws(_SEED, sums[filled]) | np.uint64(1)
    return out


def paragraph_counts(documents: pa.Table) -> pa.Table:
    """PARAGRAPHS: the number of documents that contain each paragraph."""
    hashes = paragraph_hashes(documents)
    bounds = offsets_of(documents["paragraph_sentences"].combine_chunks())
    owners = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    pairs = pa.table({"paragraph": pa.array(hashes), "owner": pa.array(owners)})
    once = (
        pairs.filter(pc.not_equal(pairs["paragraph"], pa.scalar(_TOO_SHORT, pa.uint64())))
        .group_by(["paragraph", "owner"])
        .aggregate([])
    )
    counted = once.group_by("paragraph").aggregate([("owner", "count")])
    return pa.table([counted["paragraph"], counted["owner_count"]], schema=PARAGRAPHS)


def merge_paragraph_counts(counts: pa.Table) -> pa.Table:
    """The sums by paragraph, sorted by paragraph."""
    summed = counts.group_by("paragraph").aggregate([("documents", "sum")])
    merged = pa.table([summed["paragraph"], summed["documents_sum"]], schema=PARAGRAPHS)
    return merged.sort_by("paragraph")


def without_paragraphs(documents: pa.Table, repeated: U64) -> pa.Table:
    """The documents without the sentences of the paragraphs in ``repeated`` (ascending hashes).

    Changes the columns sentences, paragraph_sentences and, if present, spaced, text_bytes and content_hash,
    so that documents with the same remaining text are exact duplicates.
    """
    if not len(repeated) or not documents.num_rows:
        return documents
    hashes = paragraph_hashes(documents)
    places = np.minimum(np.searchsorted(repeated, hashes), len(repeated) - 1)
    stays: Flags = repeated[places] != hashes
    if stays.all():
        return documents
    lists = documents["paragraph_sentences"].combine_chunks()
    sizes = lists.flatten().to_numpy()
    sentences = documents["sentences"].combine_chunks()
    sentence_stays = np.repeat(stays, sizes)
    kept = sentences.flatten().filter(pa.array(sentence_stays))
    columns = {
        "sentences": _lists(kept, sentence_stays, offsets_of(sentences)),
        "paragraph_sentences": _lists(pa.array(sizes[stays], pa.int32()), stays, offsets_of(lists)),
    }
    if "spaced" in documents.column_names:
        spaced = documents["spaced"].combine_chunks().flatten().filter(pa.array(sentence_stays))
        columns["spaced"] = _lists(spaced, sentence_stays, offsets_of(sentences))
    if "text_bytes" in documents.column_names:
        lengths = np.cumsum(np.append(0, pc.binary_length(kept).to_numpy().astype(np.int64)))
        columns["text_bytes"] = pa.array(np.diff(lengths[offsets_of(columns["sentences"])]), pa.int64())
    if "content_hash" in documents.column_names:
        columns["content_hash"] = _hashes(documents["content_hash"], columns["sentences"], sentences)
    for name, column in columns.items():
        documents = documents.set_column(documents.column_names.index(name), name, column)
    return documents


def _hashes(hashes: pa.ChunkedArray, left: pa.Array, before: pa.Array) -> pa.Array:
    """The content hashes, recomputed for documents that lost sentences."""
    out = hashes.to_pylist()
    for row in np.flatnonzero(np.diff(offsets_of(left)) < np.diff(offsets_of(before))).tolist():
        out[row] = content_hash(" ".join(left[row].as_py()).encode())
    return pa.array(out, hashes.type)


def _lists(values: pa.Array, stays: Flags, offsets: I64) -> pa.Array:
    ends = np.concatenate(([0], np.cumsum(stays)))[offsets]
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)
