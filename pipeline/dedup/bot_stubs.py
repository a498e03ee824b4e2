"""Finds pages that bots wrote from one sentence pattern with different names and numbers.

Some Wikipedias consist mostly of such pages. They share a skeleton, the text without the parts that vary:
words with a capital letter or a digit, and words of the title. Ordinary pages do not share skeletons.
"""

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dedup.paragraphs import offsets_of

# Longer pages are not stubs.
MAX_CHARS = 3000
_LONG = 0
_SLOT = "\0"


def skeleton(title: str, paragraphs: Sequence[str]) -> bytes:
    """Hash of the text without names, numbers and words of the title."""
    names = {word.strip("().,;:!?").casefold() for word in title.split()}
    kept: list[str] = []
    last = ""
    for paragraph in paragraphs:
        for token in paragraph.split():
            # Most words have only letters, so they need no stripping and have no digits.
            if token.isalpha():
                word, varies = token, token[0].isupper()
            else:
                word = token.strip("().,;:!?\"'«»„“”")
                varies = word[:1].isupper() or (not word.isalpha() and any(map(str.isdigit, word)))
            if not varies and word.casefold() not in names:
                kept.append(last := word)
            elif last != _SLOT:
                kept.append(last := _SLOT)
        kept.append(last := "\n")
    return hashlib.blake2b(" ".join(kept).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def skeletons(documents: pa.Table) -> npt.NDArray[np.uint64]:
    """The skeleton of each document, 0 for a long one. Columns: title, sentences, paragraph_sentences."""
    out = np.full(documents.num_rows, _LONG, np.uint64)
    lists = documents["sentences"].combine_chunks()
    ends = np.cumsum(np.append(0, pc.utf8_length(lists.flatten()).to_numpy()))
    short = np.flatnonzero(np.diff(ends[offsets_of(lists)]) <= MAX_CHARS)
    chosen = documents.select(["title", "sentences", "paragraph_sentences"]).take(pa.array(short))
    columns = (column.to_pylist() for column in chosen.columns)
    for row, title, sentences, sizes in zip(short.tolist(), *columns, strict=True):
        stops = list(itertools.accumulate(sizes))
        paragraphs = [" ".join(sentences[end - size : end]) for size, end in zip(sizes, stops, strict=True)]
        out[row] = int.from_bytes(skeleton(title, paragraphs), "little") | 1
    return out


def stub_removals(table: pa.Table, limit: int) -> pa.Table:
    """The rows beyond the ``limit`` smallest keys of each (lang, skeleton), with ``kept_key``.

    All rows of a skeleton must be in one table. The order of the rows does not matter.
    """
    group = ["lang", "skeleton"]
    order = [(name, "ascending") for name in (*group, "key", "part", "row")]
    table = table.sort_by(order).combine_chunks()
    opens = np.ones(len(table), bool)
    opens[1:] = False
    for name in group:
        column = table[name].combine_chunks()
        opens[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    first = np.flatnonzero(opens)[np.cumsum(opens) - 1] if len(table) else np.zeros(0, np.int64)
    beyond = np.arange(len(table)) - first >= limit
    kept = table["key"].take(pa.array(first))
    return table.append_column("kept_key", kept).filter(pa.array(beyond))
