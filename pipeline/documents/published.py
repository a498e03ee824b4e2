"""Plans and fills the files of the dataset of kept documents."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.documents.part import Part
from pipeline.documents.removals import Removals
from pipeline.documents.selection import read_kept
from pipeline.documents.split import Split
from schemas.columns.published_documents import PUBLISHED_DOCUMENTS

Side = Literal["train", "validation"]
SIDES: tuple[Side, ...] = ("train", "validation")

SHARD_BYTES = 256 << 20
"""Bytes of text after which the next file of a language starts."""

_ROW_GROUP_ROWS = 1024
_COLUMNS = (
    "key", "lang", "revision", "title", "source_id", "timestamp", "url", "sentences", "paragraph_sentences",
    "spaced", "content_hash",
)  # fmt: skip


@dataclass(frozen=True, order=True)
class PartCount:
    """The documents of one language and one side of the split in one documents part."""

    lang: str
    side: Side
    part: int
    """Ordinal of the part."""
    documents: int
    text_bytes: int


@dataclass(frozen=True)
class DocumentShard:
    """One file of the dataset."""

    lang: str
    side: Side
    number: int
    of: int
    """Number of files of this language and side."""
    parts: list[int]
    """Ordinals of its documents parts, ascending."""
    text_bytes: int

    @property
    def unit_id(self) -> str:
        """The name of the unit that writes the file."""
        return f"{self.lang}-{self.side}-{self.number:05d}"

    @property
    def path(self) -> str:
        """The file below the output, named as ``datasets`` and the Hub name shards."""
        return f"documents/{self.lang}/{self.side}-{self.number:05d}-of-{self.of:05d}.parquet"


def plan_shards(counts: Iterable[PartCount], shard_bytes: int = SHARD_BYTES) -> list[DocumentShard]:
    """The files by language and side.

    A file contains the documents of whole parts, in order, and ends when it reaches ``shard_bytes``.
    """
    shards: list[DocumentShard] = []
    ordered = sorted(count for count in counts if count.documents)
    for (lang, side), group in groupby(ordered, lambda count: (count.lang, count.side)):
        files: list[tuple[list[int], int]] = []
        for count in group:
            if not files or files[-1][1] >= shard_bytes:
                files.append(([], 0))
            parts, size = files[-1]
            files[-1] = ([*parts, count.part], size + count.text_bytes)
        shards += [
            DocumentShard(lang, side, number, len(files), parts, size)
            for number, (parts, size) in enumerate(files)
        ]
    return shards


def shard_tables(
    shard: DocumentShard, parts: Iterable[Part], removals: Removals, split: Split
) -> Iterator[pa.Table]:
    """PUBLISHED_DOCUMENTS of the shard in the order of its parts, about a thousand rows at a time."""
    buffered: list[pa.Table] = []
    rows = 0
    for part in parts:
        for table in read_kept(part, removals, list(_COLUMNS)):
            held_out = split.is_validation(table["content_hash"].to_pylist())
            chosen = np.asarray(pc.equal(table["lang"], shard.lang)) & (
                held_out == (shard.side == "validation")
            )
            buffered.append(_published(table.filter(pa.array(chosen))))
            rows += buffered[-1].num_rows
            if rows >= _ROW_GROUP_ROWS:
                yield pa.concat_tables(buffered)
                buffered, rows = [], 0
    if rows:
        yield pa.concat_tables(buffered)


def _published(documents: pa.Table) -> pa.Table:
    texts = [
        document_text(*columns)
        for columns in zip(
            documents["sentences"].to_pylist(),
            documents["paragraph_sentences"].to_pylist(),
            documents["spaced"].to_pylist(),
            strict=True,
        )
    ]
    columns = {
        "id": documents["source_id"],
        "revision": _null_if(documents["revision"], 0),
        "timestamp": documents["timestamp"],
        "url": documents["url"],
        "title": _null_if(documents["title"], ""),
        "lang": documents["lang"],
        "text": pa.array(texts, pa.string()),
        "key": documents["key"],
    }
    return pa.table(columns, schema=PUBLISHED_DOCUMENTS)


def _null_if(column: pa.ChunkedArray, value: object) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(column, value), pa.scalar(None, column.type), column)


def document_text(sentences: list[str], paragraph_sentences: list[int], spaced: list[bool]) -> str:
    r"""The text of a document: its cleaned paragraphs, with a blank line between them.

    >>> document_text(["One.", "Two.", "三。"], [2, 1], [False, True, False])
    'One. Two.\n\n三。'
    """
    pieces = [f" {text}" if space else text for text, space in zip(sentences, spaced, strict=True)]
    bounds = [0, *np.cumsum(paragraph_sentences).tolist()]
    return "\n\n".join("".join(pieces[start:end]) for start, end in pairwise(bounds))
