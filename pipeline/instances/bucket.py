"""The tokenized documents of one bucket, and the sentences for its sequences.

All code here works on offsets into one flat array of token ids, so memory holds a bucket once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.arrays import I64, Flags, distinct_values
from schemas.errors import CorpusError
from schemas.masking.targets import Ids, Keys, Offsets, offsets_of
from schemas.randomness import draws, key_from_text

# The shuffle moves these columns: a row for each copy of a document.
TOKENIZED = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        # 0 for the first copy of a document in a pass.
        pa.field("copy", pa.int32(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("sentence_lengths", pa.list_(pa.int32()), nullable=False),
    ]
)


def identities(keys: Sequence[str]) -> Keys:
    """[D] 64-bit hashes that identify the documents in every random draw."""
    return np.array([key_from_text(key) for key in keys], dtype=np.uint64)


@dataclass(frozen=True)
class BucketDocuments:
    """Tokenized documents of one bucket, in any order: D documents, S sentences, T tokens."""

    token_ids: Ids
    """[T] subwords of all sentences, without special tokens."""
    sentence_offsets: Offsets
    """[S + 1] into ``token_ids``."""
    document_offsets: Offsets
    """[D + 1] into the sentences."""
    languages: Sequence[str]
    """[D] language code of each document."""
    keys: Sequence[str]
    """[D] document keys. A document that is sampled more than once appears once for each copy."""
    copies: I64
    """[D] number of the copy, starting at 0."""

    @classmethod
    def from_table(cls, table: pa.Table) -> "BucketDocuments":
        """From a table with the columns of `TOKENIZED`. Ignores ``bucket``.

        Raises CorpusError when the sentence lengths of a document do not add up to its tokens.
        """
        ids, token_counts = _flat(table.column("token_ids"))
        lengths, sentence_counts = _flat(table.column("sentence_lengths"))
        sentence_offsets, document_offsets = offsets_of(lengths), offsets_of(sentence_counts)
        if not np.array_equal(sentence_offsets[document_offsets], offsets_of(token_counts)):
            raise CorpusError("tokenized documents: sentence lengths do not add up to the document's tokens")
        return cls(
            token_ids=ids,
            sentence_offsets=sentence_offsets,
            document_offsets=document_offsets,
            languages=table.column("lang").cast(pa.string()).to_pylist(),
            keys=table.column("key").to_pylist(),
            copies=np.asarray(table.column("copy"), dtype=np.int64),
        )


def _flat(column: pa.ChunkedArray) -> tuple[Ids, I64]:
    """A list column as flat values and the length of each list."""
    # Chunk by chunk, because one Arrow list array cannot have more than 2^31 values.
    counts = [np.asarray(chunk.value_lengths(), dtype=np.int64) for chunk in column.chunks]
    values = [np.asarray(chunk.flatten(), dtype=np.int32) for chunk in column.chunks]
    none = np.zeros(0, np.int64)
    return np.concatenate([none.astype(np.int32), *values]), np.concatenate([none, *counts])


@dataclass(frozen=True)
class Sentences:
    """Non-empty sentences, none longer than the limit, by document. D documents, S sentences, T tokens."""

    ids: Ids
    """[T] flat subwords."""
    offsets: Offsets
    """[S + 1] into ``ids``."""
    document: I64
    """[S] document of each sentence."""
    first: I64
    """[D] first sentence of each document."""
    stop: I64
    """[D] one past its last sentence. Equals ``first`` for a document without text."""
    language: I64
    """[D] language as an index into ``languages``."""
    languages: tuple[str, ...]
    """Language codes, sorted."""
    document_key: Keys
    """[D] random key of the document in this pass and length."""
    identity: Keys
    """[D] hash of the document's key. Copies of a document share it."""
    cut: I64
    """[D] sentences that were longer than the limit and were cut into parts."""
    parts: I64
    """[D] parts that they were cut into."""

    @property
    def row_keys(self) -> Keys:
        """[S] random key of a sequence that starts at each sentence, from document key and position."""
        place = np.arange(self.document.size) - self.first[self.document]
        return draws(self.document_key[self.document], place)


def prepare_sentences(
    bucket: BucketDocuments,
    *,
    limit: int,
    part: int,
    continuation: Flags,
    seed: int,
    purpose: tuple[int, ...],
) -> Sentences:
    """The bucket's non-empty sentences. Those over ``limit`` tokens are cut into parts of at most ``part``.

    ``purpose`` (pass, length) is part of the key of every draw, with the seed and the document. Cuts fall
    before a word if one starts within reach. Raises CorpusError for a duplicate document copy.
    """
    identity = identities(bucket.keys)
    document_key = draws(seed, *purpose, identity, bucket.copies)
    if distinct_values(document_key).size != document_key.size:
        raise CorpusError(f"bucket: duplicate document copy: {_repeated(bucket)}")
    offsets, document, cut, parts = _cut_sentences(bucket, limit, part, continuation)
    languages = tuple(sorted(set(bucket.languages)))
    code = {name: number for number, name in enumerate(languages)}
    documents = np.arange(len(bucket.keys))
    return Sentences(
        ids=bucket.token_ids,
        offsets=offsets,
        document=document,
        first=np.searchsorted(document, documents, side="left"),
        stop=np.searchsorted(document, documents, side="right"),
        language=np.array([code[name] for name in bucket.languages], dtype=np.int64),
        languages=languages,
        document_key=document_key,
        identity=identity,
        cut=cut,
        parts=parts,
    )


def _repeated(bucket: BucketDocuments) -> str:
    seen: set[tuple[str, int]] = set()
    for key, copy in zip(bucket.keys, bucket.copies.tolist(), strict=True):
        if (key, copy) in seen:
            return f"{key} copy {copy}"
        seen.add((key, copy))
    return "two keys with the same hash"


def _cut_sentences(
    bucket: BucketDocuments, limit: int, part: int, continuation: Flags
) -> tuple[Offsets, I64, I64, I64]:
    """Offsets and documents of the resulting sentences. Also cut sentences and their parts by document."""
    lengths = np.diff(bucket.sentence_offsets)
    documents = len(bucket.keys)
    document = np.repeat(np.arange(documents), np.diff(bucket.document_offsets))
    long = np.flatnonzero(lengths > limit)
    inner: list[int] = []
    counts: list[int] = []
    for start, stop in zip(bucket.sentence_offsets[long], bucket.sentence_offsets[long + 1], strict=True):
        places = _cut_places(continuation[bucket.token_ids[start:stop]], part)
        inner.extend(int(start) + place for place in places)
        counts.append(len(places))
    ends = np.sort(np.concatenate([bucket.sentence_offsets[1:][lengths > 0], np.array(inner, np.int64)]))
    offsets = np.concatenate([bucket.sentence_offsets[:1], ends])
    document_ends = bucket.sentence_offsets[bucket.document_offsets[1:]]
    cut = np.bincount(document[long], minlength=documents)
    added = np.bincount(document[long], weights=np.array(counts, np.float64), minlength=documents)
    return offsets, np.searchsorted(document_ends, ends, side="left"), cut, cut + added.astype(np.int64)


def _cut_places(continuation: Flags, part: int) -> list[int]:
    """Where to cut a sentence of ``continuation.size`` tokens into parts of at most ``part`` tokens."""
    size = continuation.size
    places = []
    start = 0
    while size - start > part:
        cut = start + part
        while continuation[cut] and cut > start:
            cut -= 1
        start = cut if cut > start else start + part
        places.append(start)
    return places
