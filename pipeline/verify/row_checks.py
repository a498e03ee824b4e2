"""Checks the rules for every row of a shard, on whole row groups at a time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.arrays import I64, Flags
from schemas.labels import LABEL_CONVENTIONS, NO_LABEL
from schemas.masking import selection
from schemas.masking.targets import (
    Ids,
    MaskingRule,
    MaskingVocabulary,
    Offsets,
    Segmenter,
    offsets_of,
    unmask_rows,
)
from schemas.tallies import add_fields
from schemas.vocabulary import CLS, MASK, PAD, SEP

Finding = tuple[Flags, str]
"""[rows] which rows are wrong, and the problem."""


@dataclass(frozen=True)
class RowRules:
    """The manifest's statements about the rows of one set."""

    objective: str
    max_seq_length: int
    masking: MaskingRule
    vocabulary: MaskingVocabulary
    special: Mapping[str, int]
    languages: frozenset[str]
    segmenter: Segmenter | None = None

    @property
    def vocab_size(self) -> int:
        """Number of subwords in the vocabulary."""
        return self.vocabulary.blocked.size


@dataclass(frozen=True)
class RowColumns:
    """A table of n rows as flat arrays."""

    ids: Ids
    offsets: Offsets
    positions: Ids
    position_offsets: Offsets
    labels: Ids
    a_length: I64
    length: I64
    next_label: I64
    languages: pa.Array
    keys: pa.Array

    @classmethod
    def of(cls, table: pa.Table) -> "RowColumns":
        """The columns of a table with the schema of a shard."""
        ids, offsets = _flat(table, "input_ids")
        positions, position_offsets = _flat(table, "masked_positions")
        labels, label_offsets = _flat(table, "masked_ids")
        if not np.array_equal(position_offsets, label_offsets):
            # `_shape` compares the sizes and reports this.
            labels = labels[:0]
        return cls(
            ids=ids,
            offsets=offsets,
            positions=positions,
            position_offsets=position_offsets,
            labels=labels,
            a_length=_numbers(table, "segment_a_length"),
            length=_numbers(table, "length"),
            next_label=_numbers(table, "next_sentence_label"),
            languages=table.column("lang").combine_chunks(),
            keys=table.column("document_key").combine_chunks(),
        )

    @property
    def sizes(self) -> I64:
        """[n] ids in each row."""
        return np.diff(self.offsets)

    @property
    def target_row(self) -> I64:
        """Row of each target."""
        counts = np.diff(self.position_offsets)
        return np.repeat(np.arange(counts.size), counts)

    def any_of(self, flags: Flags) -> Flags:
        """[n] whether one of the row's ids is flagged."""
        return selection.row_sums(flags, self.offsets) > 0

    def any_target(self, flags: Flags) -> Flags:
        """[n] whether one of the row's targets is flagged."""
        return selection.row_sums(flags, self.position_offsets) > 0

    def originals(self) -> Ids:
        """Flat ids with the labels written back."""
        return unmask_rows(self.ids, self.offsets, self.positions, self.position_offsets, self.labels)


def _flat(table: pa.Table, name: str) -> tuple[Ids, Offsets]:
    column = table.column(name).combine_chunks()
    lists = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    counts = np.asarray(pc.fill_null(lists.value_lengths(), 0), dtype=np.int64)
    return np.asarray(pc.fill_null(lists.flatten(), -1), dtype=np.int32), offsets_of(counts)


def _numbers(table: pa.Table, name: str) -> I64:
    return np.asarray(pc.fill_null(table.column(name), -9), dtype=np.int64)


@dataclass
class RowTally:
    """Counts of rows, which must equal the manifest's counts (schemas.instance_counts)."""

    sequences: int = 0
    sequence_tokens: int = 0
    masked: int = 0
    masked_by_mask: int = 0
    masked_unchanged: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)

    def add(self, other: "RowTally") -> None:
        """Adds the counts of other rows."""
        add_fields(self, other)


def tally(rows: RowColumns, rules: RowRules) -> RowTally:
    """Counts of valid rows."""
    replacements = rows.ids[rows.offsets[rows.target_row] + rows.positions]
    names = rows.languages.cast(pa.string()).value_counts().to_pylist()
    return RowTally(
        sequences=rows.length.size,
        sequence_tokens=int(rows.length.sum()),
        masked=rows.labels.size,
        masked_by_mask=int((replacements == rules.special[MASK]).sum()),
        masked_unchanged=int((replacements == rows.labels).sum()),
        labels=Counter(str(label) for label in rows.next_label.tolist()),
        languages=Counter({each["values"]: each["counts"] for each in names}),
    )


def check_rows(rows: RowColumns, rules: RowRules) -> Iterator[Finding]:
    """Every rule that a row breaks. If a row has the wrong shape, checks only shapes."""
    broken = False
    for wrong, text in _shape(rows, rules):
        if wrong.any():
            broken = True
            yield wrong, text
    if not broken:
        yield from ((wrong, text) for wrong, text in _content(rows, rules) if wrong.any())


def _shape(rows: RowColumns, rules: RowRules) -> Iterator[Finding]:
    sizes, counts = rows.sizes, np.diff(rows.position_offsets)
    yield rows.length != sizes, "length is not the number of input_ids"
    yield sizes > rules.max_seq_length, f"longer than {rules.max_seq_length}"
    yield sizes < 3, "shorter than [CLS] x [SEP]"
    yield rows.any_of((rows.ids < 0) | (rows.ids >= rules.vocab_size)), "an id outside the vocabulary"
    if rows.labels.size != rows.positions.size:
        yield np.ones(sizes.size, np.bool_), "masked_ids and masked_positions differ in number"
        return
    yield (
        rows.any_target((rows.labels < 0) | (rows.labels >= rules.vocab_size)),
        "a label outside the vocabulary",
    )
    yield counts < 1, "no token is masked"
    limit = rules.masking.max_predictions
    yield counts > limit, f"more than max_predictions {limit} masked"
    target_row = rows.target_row
    outside = (rows.positions < 0) | (rows.positions >= sizes[target_row])
    yield rows.any_target(outside), "a masked position outside the row"
    same_row = target_row[1:] == target_row[:-1]
    falling = np.concatenate([[False], same_row & (rows.positions[1:] <= rows.positions[:-1])])
    yield rows.any_target(falling), "masked positions are not ascending"


def _content(rows: RowColumns, rules: RowRules) -> Iterator[Finding]:
    original = rows.originals()
    yield from _frame(rows, original, rules)
    yield from _targets(rows, original, rules)
    yield ~np.isin(rows.next_label, _labels(rules.objective)), f"a label that {rules.objective} does not have"
    known = pc.is_in(rows.languages.cast(pa.string()), pa.array(sorted(rules.languages), pa.string()))
    yield ~np.asarray(known), "a language that the manifest does not name"
    yield np.asarray(pc.equal(pc.fill_null(rows.keys, ""), "")), "no document key"


def _labels(objective: str) -> list[int]:
    return [int(label) for label in LABEL_CONVENTIONS[objective]] or [NO_LABEL]


def _frame(rows: RowColumns, original: Ids, rules: RowRules) -> Iterator[Finding]:
    special = rules.special
    first, last = rows.offsets[:-1], rows.offsets[1:] - 1
    separators = selection.row_sums(original == special[SEP], rows.offsets)
    starts = selection.row_sums(original == special[CLS], rows.offsets)
    yield (original[first] != special[CLS]) | (starts != 1), "[CLS] is not at the start, or not only there"
    yield original[last] != special[SEP], "[SEP] is not at the end"
    yield rows.any_of(original == special[PAD]), "[PAD] in a row"
    yield rows.any_of(original == special[MASK]), "[MASK] at a position that is not a target"
    if rules.objective == "none":
        yield rows.a_length != rows.sizes, "a second segment, though the objective has none"
        return
    inside = (rows.a_length >= 3) & (rows.a_length <= rows.sizes - 2)
    yield ~inside, "segment A or B is empty"
    at = first + np.where(inside, rows.a_length - 1, 0)
    yield (
        (original[at] != special[SEP]) | (separators != 2),
        "[SEP] is not between A and B, or not only there",
    )


def _targets(rows: RowColumns, original: Ids, rules: RowRules) -> Iterator[Finding]:
    vocabulary = rules.vocabulary
    yield rows.any_target(vocabulary.blocked[rows.labels]), "a special token is a target"
    replacements = rows.ids[rows.offsets[rows.target_row] + rows.positions]
    drawn = np.zeros(rules.vocab_size, np.bool_)
    drawn[vocabulary.replacements] = True
    drawn[rules.special[MASK]] = True
    yield (
        rows.any_target(~drawn[replacements] & (replacements != rows.labels)),
        "a target is replaced by a special token",
    )
    candidate = ~vocabulary.blocked[original]
    budget = np.rint(rows.sizes * rules.masking.probability).astype(np.int64)
    budget = np.minimum(
        np.clip(budget, 1, rules.masking.max_predictions), selection.row_sums(candidate, rows.offsets)
    )
    counts = np.diff(rows.position_offsets)
    if rules.masking.unit == "token":
        yield counts != budget, "not the number of targets that the masking rule gives"
        return
    masked = np.zeros(original.size, np.bool_)
    masked[rows.offsets[rows.target_row] + rows.positions] = True
    if rules.segmenter is None:
        joins = vocabulary.continuation[original]
    else:
        joins = rules.segmenter(original, rows.offsets)
    words = selection.find_words(candidate, joins, rows.offsets)
    before = np.concatenate([[0], np.cumsum(masked)])
    hit = before[words.start + words.size] - before[words.start]
    row = words.row
    touched = np.bincount(row[hit > 0], minlength=counts.size)
    partial = np.bincount(row[(hit > 0) & (hit < words.size)], minlength=counts.size)
    single = (touched == 1) & (counts <= rules.masking.max_predictions)
    yield (counts > budget) & ~single, "more targets than the masking rule gives"
    yield (partial > 0) & ~(single & (counts == rules.masking.max_predictions)), "a word is masked in part"
