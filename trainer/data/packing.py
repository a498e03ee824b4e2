"""Gathers rows from row groups, and packs them into micro-batches."""

from dataclasses import dataclass

import numpy as np
import torch

from schemas.arrays import I32, I64
from schemas.labels import NO_LABEL
from trainer.data.order import Places
from trainer.data.row_groups import RowGroup
from trainer.data.rows import ShardRows
from trainer.model.microbatch import NO_SAMPLE, MicroBatch

# Tokens of a filler sequence: [CLS] and [SEP] in a real one, here two [PAD].
_FILLER_TOKENS = 2


@dataclass(frozen=True)
class RowTable:
    """Rows of several row groups: row i is input_ids[starts[i] : starts[i] + lengths[i]], and so on."""

    input_ids: I32
    starts: I64
    lengths: I64
    segment_a: I64
    masked_positions: I32
    masked_ids: I32
    masked_starts: I64
    masked_sizes: I64
    labels: I64
    lang_ids: I64
    row_ids: I64
    epochs: I64


def row_lengths(places: Places, rows: ShardRows, *, read_groups: bool) -> I64:
    """The length of each row in ``places``. ``read_groups`` reads all columns, for later use."""
    lengths = np.empty(len(places.row), dtype=np.int64)
    for key, chosen in _by_group(places):
        of_group = rows.group(*key).lengths if read_groups else rows.lengths(*key)
        lengths[chosen] = of_group[places.row[chosen]]
    return lengths


def row_languages(places: Places, rows: ShardRows, *, read_groups: bool) -> I64:
    """The language of each row in ``places``, as an index into the manifest's sorted languages."""
    languages = np.empty(len(places.row), dtype=np.int64)
    for key, chosen in _by_group(places):
        of_group = rows.group(*key).lang_ids if read_groups else rows.languages(*key)
        languages[chosen] = of_group[places.row[chosen]]
    return languages


def gather_rows(places: Places, own: slice, rows: ShardRows) -> RowTable:
    """The rows at ``places[own]``, in that order."""
    part = places.take(own)
    size = len(part.row)
    names = ("starts", "lengths", "segment_a", "masked_starts", "masked_sizes", "labels", "lang_ids")
    columns = {name: np.zeros(size, dtype=np.int64) for name in names}
    groups: list[RowGroup] = []
    tokens = masked = 0
    for key, chosen in _by_group(part):
        group, row = rows.group(*key), part.row[chosen]
        columns["starts"][chosen] = group.token_starts[row] + tokens
        columns["lengths"][chosen] = group.token_starts[row + 1] - group.token_starts[row]
        columns["segment_a"][chosen] = group.segment_a_length[row]
        columns["masked_starts"][chosen] = group.masked_starts[row] + masked
        columns["masked_sizes"][chosen] = group.masked_starts[row + 1] - group.masked_starts[row]
        columns["labels"][chosen] = group.labels[row]
        columns["lang_ids"][chosen] = group.lang_ids[row]
        tokens += group.input_ids.size
        masked += group.masked_ids.size
        groups.append(group)
    return RowTable(
        input_ids=_joined([group.input_ids for group in groups]),
        masked_positions=_joined([group.masked_positions for group in groups]),
        masked_ids=_joined([group.masked_ids for group in groups]),
        row_ids=part.row_id,
        epochs=part.epoch,
        **columns,
    )


def pack(table: RowTable, chosen: I64, max_seq_length: int) -> MicroBatch:
    """The rows ``chosen`` of ``table`` as one micro-batch, or a filler when there are none."""
    if not chosen.size:
        return filler(max_seq_length)
    lengths, sizes = table.lengths[chosen], table.masked_sizes[chosen]
    ends = np.cumsum(lengths)
    first = ends - lengths
    ids = table.input_ids[ragged(table.starts[chosen], lengths)]
    position = ragged(np.zeros_like(first), lengths)
    mask = ragged(table.masked_starts[chosen], sizes)
    return MicroBatch(
        input_ids=torch.from_numpy(ids.astype(np.int64)),
        token_type_ids=torch.from_numpy(
            (position >= np.repeat(table.segment_a[chosen], lengths)).astype(np.int64)
        ),
        position_ids=torch.from_numpy(position),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        max_seqlen=max_seq_length,
        masked_index=torch.from_numpy(table.masked_positions[mask] + np.repeat(first, sizes)),
        masked_ids=torch.from_numpy(table.masked_ids[mask].astype(np.int64)),
        next_sentence_labels=torch.from_numpy(table.labels[chosen]),
        sample_ids=torch.from_numpy(table.row_ids[chosen]),
        lang_ids=torch.from_numpy(table.lang_ids[chosen]),
    )


def ragged(starts: I64, sizes: I64) -> I64:
    """The indices starts[0], starts[0] + 1, ... (sizes[0] of them), then those from starts[1], and so on."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    indices: I64 = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - sizes), sizes)
    return indices


def filler(max_seq_length: int) -> MicroBatch:
    """A micro-batch without any target, for a rank without a row."""
    none = torch.zeros(0, dtype=torch.int64)
    return MicroBatch(
        input_ids=torch.zeros(_FILLER_TOKENS, dtype=torch.int64),
        token_type_ids=torch.zeros(_FILLER_TOKENS, dtype=torch.int64),
        position_ids=torch.arange(_FILLER_TOKENS),
        cu_seqlens=torch.tensor([0, _FILLER_TOKENS], dtype=torch.int32),
        max_seqlen=max_seq_length,
        masked_index=none,
        masked_ids=none,
        next_sentence_labels=torch.tensor([NO_LABEL]),
        sample_ids=torch.tensor([NO_SAMPLE]),
        lang_ids=torch.tensor([-1]),
    )


def _by_group(places: Places) -> list[tuple[tuple[int, int, int], I64]]:
    """((pass, shard, row group), indices into places) for each row group, in order of first use."""
    groups = int(places.row_group.max(initial=0)) + 1
    shards = int(places.shard.max(initial=0)) + 1
    keys = (places.corpus_pass * shards + places.shard) * groups + places.row_group
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    by_key = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
    by_group = []
    for number in np.argsort(first):
        rest, group = divmod(int(unique[number]), groups)
        by_group.append(((*divmod(rest, shards), group), by_key[number]))
    return by_group


def _joined(arrays: list[I32]) -> I32:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
