"""Finds words to keep beyond a limit so that no letter is lost: one for each letter of only omitted words.

A letter at the start of a word and one inside it are two forms, since a vocabulary has a subword for each.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wordpiece.basic_tokenization import code_points
from pipeline.wordpiece.tie_breaking import order_by_hash
from schemas.arrays import I64, Flags

_CODE_POINTS = 0x110000
# Words per batch, for bounded memory.
_WORDS_AT_ONCE = 100_000


def letters_of(tables: Iterable[pa.Table]) -> Flags:
    """[forms] whether a word of the tables has each form: all starting forms, then all inner forms."""
    covered = np.zeros(2 * _CODE_POINTS, bool)
    for table in tables:
        for forms, _ in _forms(table.select(["word"])):
            covered[forms] = True
    return covered


def letter_carriers(words: pa.Table, covered: Flags) -> I64:
    """The rows of ``words`` (word, count), ascending, that cover its letters missing in ``covered``.

    For each letter this is the most frequent word with it. A hash breaks ties.
    """
    parts = [np.zeros((2, 0), np.int64)]
    for forms, rows in _forms(words.select(["word"])):
        new = ~covered[forms]
        parts.append(np.stack((forms[new], rows[new])))
    form, row = np.concatenate(parts, axis=1)
    rows = np.unique(row)
    hashed = rows[order_by_hash(words.select(["word"]).take(pa.array(rows)))]
    best_first = hashed[np.argsort(-words["count"].to_numpy()[hashed], kind="stable")]
    rank = np.zeros(words.num_rows, np.int64)
    rank[best_first] = np.arange(len(best_first))
    order = np.lexsort((rank[row], form))
    firsts = np.flatnonzero(np.diff(form[order], prepend=-1))
    return np.unique(row[order[firsts]])


def needed_spares(kept: Iterable[pa.Table], spared: pa.Table) -> pa.Table:
    """The rows of ``spared`` (word, count and more) whose words have letters that no kept word has."""
    totals = spared.group_by("word").aggregate([("count", "sum")]).rename_columns(["word", "count"])
    carriers = letter_carriers(totals, letters_of(kept))
    chosen = totals["word"].take(pa.array(carriers)).combine_chunks()
    return spared.filter(pc.is_in(spared["word"], value_set=chosen))


def _forms(words: pa.Table) -> Iterator[tuple[I64, I64]]:
    """The forms of all letters and the row of each, for a batch of words at a time."""
    first = 0
    for batch in words.to_batches(_WORDS_AT_ONCE):
        _, codes, bounds = code_points(batch["word"])
        forms = codes.astype(np.int64) + _CODE_POINTS
        lengths = np.diff(bounds)
        forms[bounds[:-1][lengths > 0]] -= _CODE_POINTS
        yield forms, np.repeat(np.arange(first, first + len(lengths)), lengths)
        first += batch.num_rows
