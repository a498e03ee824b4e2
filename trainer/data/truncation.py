"""Truncates rows to a length, as if the corpus had been built with it. Segments and separators stay."""

from dataclasses import replace

import numpy as np

from trainer.data.packing import RowTable, ragged


def truncate_rows(table: RowTable, longest: int) -> RowTable:
    """The rows with at most ``longest`` tokens (at least 5). Drops the masks in the parts that are cut off.

    Of a pair the longer segment is cut first, at its end (google-research/bert, truncate_seq_pair, which
    cuts either end).
    """
    if not table.lengths.size or int(table.lengths.max()) <= longest:
        return table
    pair = table.lengths > table.segment_a
    a = np.where(pair, table.segment_a, table.lengths) - 2
    b = np.where(pair, table.lengths - table.segment_a - 1, 0)
    room = longest - np.where(pair, 3, 2)
    half = np.where(pair, room // 2, room)
    new_a = np.minimum(a, np.maximum(room - b, half))
    new_b = np.minimum(b, room - new_a)
    lengths = new_a + 2 + np.where(pair, new_b + 1, 0)

    place = ragged(np.zeros_like(lengths), lengths)
    old_a, kept_a, kept_b = (np.repeat(values, lengths) for values in (a, new_a, new_b))
    # [CLS] A, its [SEP], B, its [SEP].
    old = np.where(place <= kept_a, place, place + old_a - kept_a)
    old = np.where(place == kept_a + kept_b + 2, np.repeat(table.lengths - 1, lengths), old)
    ids = table.input_ids[np.repeat(table.starts, lengths) + old]

    masks = ragged(table.masked_starts, table.masked_sizes)
    row = np.repeat(np.arange(lengths.size), table.masked_sizes)
    position = table.masked_positions[masks].astype(np.int64)
    in_a = position <= new_a[row]
    in_b = (position >= a[row] + 2) & (position < a[row] + 2 + new_b[row])
    kept = in_a | in_b
    moved = np.where(in_a, position, position - (a - new_a)[row])
    sizes = np.bincount(row[kept], minlength=lengths.size).astype(np.int64)
    return replace(
        table,
        input_ids=ids,
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        segment_a=np.where(pair, new_a + 2, lengths),
        masked_positions=moved[kept].astype(np.int32),
        masked_ids=table.masked_ids[masks][kept],
        masked_starts=np.cumsum(sizes) - sizes,
        masked_sizes=sizes,
    )
