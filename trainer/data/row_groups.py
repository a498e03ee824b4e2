"""The rows of a row group as flat arrays, checked against the limits of manifest and config."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.arrays import I32, I64
from schemas.columns.shards import SHARD
from schemas.errors import CorpusError
from schemas.labels import NO_LABEL

# document_key is for users. The trainer never reads it.
COLUMNS = [name for name in SHARD.names if name != "document_key"]


@dataclass(frozen=True)
class RowLimits:
    """The limits that rows must keep. ``never_masked`` are token ids that may not be masked."""

    vocab_size: int
    max_seq_length: int
    pairs: bool
    languages: tuple[str, ...]
    never_masked: tuple[int, ...]


@dataclass(frozen=True)
class RowGroup:
    """The rows of a row group. Row ``i`` has input_ids[token_starts[i] : token_starts[i + 1]]."""

    input_ids: I32
    token_starts: I64
    segment_a_length: I32
    masked_positions: I32
    masked_ids: I32
    masked_starts: I64
    labels: npt.NDArray[np.int8]
    lang_ids: I32

    @property
    def lengths(self) -> I64:
        """Tokens of each row."""
        return np.diff(self.token_starts)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in vars(self).values())


def decode(table: pa.Table, limits: RowLimits, origin: str) -> RowGroup:
    """The rows of ``table`` as arrays. Raises CorpusError that names ``origin``, the row and the problem."""
    for name in COLUMNS:
        if table[name].null_count:
            row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
            raise CorpusError(f"{origin} row {row}: {name} is null")
    input_ids, token_starts = _flat(table["input_ids"])
    masked_positions, masked_starts = _flat(table["masked_positions"])
    masked_ids, id_starts = _flat(table["masked_ids"])
    lengths, counts = np.diff(token_starts), np.diff(masked_starts)
    group = RowGroup(
        input_ids=input_ids,
        token_starts=token_starts,
        segment_a_length=table["segment_a_length"].to_numpy(),
        masked_positions=masked_positions,
        masked_ids=masked_ids,
        masked_starts=masked_starts,
        labels=table["next_sentence_label"].to_numpy(),
        lang_ids=language_ids(table["lang"], limits.languages, origin),
    )
    _refuse(origin, "length", table["length"].to_numpy() != lengths, "is not the number of input_ids")
    _refuse(origin, "length", lengths < 1, "is 0")
    too_long = lengths > limits.max_seq_length
    _refuse(origin, "length", too_long, f"is above max_seq_length {limits.max_seq_length}", values=lengths)
    _refuse(origin, "masked_ids", np.diff(id_starts) != counts, "differ in number from masked_positions")
    _check_tokens(group, limits, origin)
    _check_segments(group, limits, origin)
    return group


def _check_tokens(group: RowGroup, limits: RowLimits, origin: str) -> None:
    lengths, counts = group.lengths, np.diff(group.masked_starts)
    rows = np.arange(lengths.size)
    beyond = f"is outside the vocabulary of {limits.vocab_size}"
    for name, ids, sizes in (
        ("input_ids", group.input_ids, lengths),
        ("masked_ids", group.masked_ids, counts),
    ):
        bad = (ids < 0) | (ids >= limits.vocab_size)
        if bad.any():
            _refuse(origin, name, bad, beyond, values=ids, rows=np.repeat(rows, sizes))
    row_of_mask = np.repeat(rows, counts)
    positions = group.masked_positions
    outside = (positions < 0) | (positions >= lengths[row_of_mask])
    _refuse(origin, "masked_positions", outside, "is outside the row", values=positions, rows=row_of_mask)
    steps = (np.diff(positions) <= 0) & (np.diff(row_of_mask) == 0)
    _refuse(
        origin,
        "masked_positions",
        steps,
        "is followed by one that is not larger",
        values=positions[:-1],
        rows=row_of_mask[:-1],
    )
    special = np.isin(group.masked_ids, np.array(limits.never_masked, dtype=np.int32))
    _refuse(origin, "masked_ids", special, "is a special token", values=group.masked_ids, rows=row_of_mask)


def _check_segments(group: RowGroup, limits: RowLimits, origin: str) -> None:
    first, lengths, labels = group.segment_a_length, group.lengths, group.labels
    _refuse(origin, "segment_a_length", (first < 1) | (first > lengths), "is outside the row", values=first)
    if limits.pairs:
        problem = "leaves no second segment, which the objective needs"
        _refuse(origin, "segment_a_length", first == lengths, problem, values=first)
        bad, problem = (labels != 0) & (labels != 1), "is neither 0 nor 1"
    else:
        bad, problem = labels != NO_LABEL, "must be -1 without a sentence-pair objective"
    _refuse(origin, "next_sentence_label", bad, problem, values=labels)


def _refuse(
    origin: str,
    column: str,
    bad: npt.NDArray[np.bool_],
    problem: str,
    *,
    values: npt.NDArray[Any] | None = None,
    rows: I64 | None = None,
) -> None:
    """Raises CorpusError for the first true element of ``bad``. ``rows`` gives the row of each."""
    places = np.flatnonzero(bad)
    if places.size:
        place = int(places[0])
        row = place if rows is None else int(rows[place])
        value = "" if values is None else f" {int(values[place])}"
        raise CorpusError(f"{origin} row {row}: {column}{value} {problem}")


def _flat(column: pa.ChunkedArray) -> tuple[I32, I64]:
    """Values and starts of a list column. A row group holds far fewer than 2^31 values."""
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    sizes = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    flat = np.concatenate(values) if values else np.zeros(0, dtype=np.int32)
    starts = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *sizes]))
    return flat.astype(np.int32, copy=False), starts.astype(np.int64, copy=False)


def language_ids(column: pa.ChunkedArray, languages: tuple[str, ...], origin: str) -> I32:
    """Of each row the index of its language in ``languages``. Raises CorpusError for another language."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    parts = []
    for chunk in column.chunks:
        known = pc.index_in(chunk.dictionary, value_set=pa.array(languages, pa.string()))
        codes = known.fill_null(-1).to_numpy(zero_copy_only=False)
        parts.append(codes[chunk.indices.to_numpy(zero_copy_only=False)])
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    unknown = np.flatnonzero(ids < 0)
    if unknown.size:
        row = int(unknown[0])
        raise CorpusError(f"{origin} row {row}: lang {column[row].as_py()!r} is not in the manifest")
    return ids.astype(np.int32, copy=False)
