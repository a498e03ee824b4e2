"""Masked-LM targets for batches of rows: which positions are predicted and what replaces them.

The pipeline calls this once for each pass (static masks), the trainer in every epoch (dynamic masks), so
both use the same rule. Sources of the rules: google-research/bert create_pretraining_data (token,
whole_word, 80/10/10), SpanBERT (span), ALBERT (ngram).

Intended differences from them:

- A random replacement is never a special token and never an [unusedN] slot. [UNK] is not a target by
  default.
- A word ends at a separator, so the first piece of B never joins the last word of A.
- In scripts without spaces between words each piece is a separate word, unless a segmenter (word_list.py)
  finds longer ones. There a run of ``##`` pieces is a sentence, which exceeds any budget.
- Every row that has a piece to predict gets a target. When no word fits the row's budget, the first word in
  random order with at most ``max_predictions`` pieces is masked whole. Without such a word, the first
  ``max_predictions`` pieces of the first word are masked.
- A span consists of whole words and stops before the word that exceeds the budget.
- All draws come from the row's key and the position, so a row's masks do not depend on its batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from schemas.arrays import I32, I64, U64, Flags
from schemas.errors import CorpusError
from schemas.masking import selection
from schemas.randomness import draws, stream, unit_interval
from schemas.scripts import lacks_spaces
from schemas.vocabulary import CONTINUATION, MASK, SPECIAL_TOKENS, UNK

MaskUnit = Literal["token", "whole_word", "span", "ngram"]
Ids = I32
Offsets = I64
Keys = U64
# Takes the flat ids and the row offsets. True where a piece belongs to the word of the previous piece.
Segmenter = Callable[[Ids, Offsets], Flags]

# The purpose of a draw: the second part of its key.
_SELECTION, _LENGTH, _REPLACEMENT, _PIECE = 1, 2, 3, 4
# Elements of the matrix (rows x longest row) in one step. This size stays in the CPU's cache.
_BLOCK_CELLS = 1 << 18
# Each step adds only one group to a row, so it needs more rows to outweigh the overhead of its calls.
_BLOCK_CELLS_OF_GROUPS = 1 << 20


@dataclass(frozen=True)
class MaskingRule:
    """How much is masked, in which units, and what replaces it."""

    unit: MaskUnit = "whole_word"
    """token (single pieces), whole_word, span (1-10 words, geometric), or ngram (1-3 words, p(n) ~ 1/n)."""
    probability: float = 0.15
    """Share of a row's tokens, special tokens included, that become targets."""
    max_predictions: int = 20
    """Maximum number of targets of a row."""
    mask_share: float = 0.8
    """Share of the targets that become [MASK]."""
    random_share: float = 0.1
    """Share of the targets that become a random piece. The rest stays unchanged."""
    span_probability: float = 0.2
    """Parameter of the geometric distribution of span lengths (SpanBERT's published command)."""
    max_span: int = 10
    """Maximum number of words in a span. The geometric distribution is cut there and renormalized."""
    max_ngram: int = 3
    """Maximum number of words in an n-gram."""


@dataclass(frozen=True)
class MaskingVocabulary:
    """The properties of the V pieces that masking needs."""

    blocked: Flags
    """[V] special tokens: never targets, and they end a word."""
    continuation: Flags
    """[V] pieces that continue a word: those with ``##``, except in scripts without spaces."""
    replacements: Ids
    """Ids that random replacements are drawn from."""
    mask_id: int

    @classmethod
    def from_pieces(cls, pieces: Sequence[str], predict_unknown: bool = False) -> "MaskingVocabulary":
        """From the pieces in the order of their ids.

        Raises CorpusError when a special token is missing or no other piece exists.
        """
        missing = [token for token in SPECIAL_TOKENS if token not in pieces]
        if missing:
            raise CorpusError(f"vocabulary: {missing[0]} is missing")
        special = np.array([piece in SPECIAL_TOKENS for piece in pieces])
        unused = np.array([_is_unused(piece) for piece in pieces])
        continuation = np.array([_continues(piece) for piece in pieces])
        replacements = np.flatnonzero(~special & ~unused).astype(np.int32)
        if replacements.size == 0:
            raise CorpusError("vocabulary: contains only special tokens")
        blocked = special.copy()
        if predict_unknown:
            blocked[pieces.index(UNK)] = False
        return cls(blocked, continuation, replacements, pieces.index(MASK))


def _continues(piece: str) -> bool:
    # In a script without spaces a run of ## pieces may be a whole sentence.
    return piece.startswith(CONTINUATION) and len(piece) > 2 and not lacks_spaces(piece[2:])


def _is_unused(piece: str) -> bool:
    return piece.startswith("[unused") and piece.endswith("]") and piece[7:-1].isdecimal()


@dataclass(frozen=True)
class Rows:
    """n rows to mask."""

    ids: Ids
    """Flat unmasked ids, special tokens included."""
    offsets: Offsets
    """[n + 1] start of each row in ``ids``."""
    keys: Keys
    """[n] random keys. Equal rows with equal keys get equal masks."""


@dataclass(frozen=True)
class MaskedRows:
    """Rows with their targets replaced."""

    input_ids: Ids
    """Flat ids after replacement, with the offsets of the input rows."""
    positions: Ids
    """Flat target positions, counted from the start of their row, ascending in each row."""
    position_offsets: Offsets
    """[n + 1] start of each row's targets in ``positions``."""
    labels: Ids
    """Original ids at the targets."""


def mask_rows(
    rows: Rows, rule: MaskingRule, vocabulary: MaskingVocabulary, segmenter: Segmenter | None = None
) -> MaskedRows:
    """Selects and replaces targets in every row. A row without a piece to predict gets no target."""
    cells = _BLOCK_CELLS_OF_GROUPS if rule.unit in ("span", "ngram") else _BLOCK_CELLS
    parts = [_mask_block(block, rule, vocabulary, segmenter) for block in _blocks(rows, cells)]
    if not parts:
        empty = np.zeros(0, np.int32)
        return MaskedRows(rows.ids.copy(), empty, np.zeros(1, np.int64), empty)
    counts = np.concatenate([np.diff(part.position_offsets) for part in parts])
    return MaskedRows(
        input_ids=np.concatenate([part.input_ids for part in parts]),
        positions=np.concatenate([part.positions for part in parts]),
        position_offsets=offsets_of(counts),
        labels=np.concatenate([part.labels for part in parts]),
    )


def unmask_rows(
    input_ids: Ids, offsets: Offsets, positions: Ids, position_offsets: Offsets, labels: Ids
) -> Ids:
    """The original flat ids of masked rows, with the labels written back."""
    original = input_ids.copy()
    starts = np.repeat(offsets[:-1], np.diff(position_offsets))
    original[starts + positions] = labels
    return original


def sample_keys(seed: int, epoch: int, samples: npt.NDArray[np.integer]) -> Keys:
    """[n] keys for dynamic masks, which depend only on the seed, the epoch and the sample's number."""
    return draws(seed, epoch, samples)


def offsets_of(lengths: npt.NDArray[np.integer]) -> Offsets:
    """[n + 1] offsets of items with these lengths in a flat array.

    >>> offsets_of(np.array([2, 3])).tolist()
    [0, 2, 5]
    """
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _blocks(rows: Rows, cells: int) -> Iterator[Rows]:
    count = rows.keys.size
    if count == 0:
        return
    offsets = rows.offsets
    step = max(1, cells // max(1, int(np.diff(offsets).max())))
    for start in range(0, count, step):
        stop = min(start + step, count)
        ids = rows.ids[offsets[start] : offsets[stop]]
        yield Rows(ids, offsets[start : stop + 1] - offsets[start], rows.keys[start:stop])


def _mask_block(
    rows: Rows, rule: MaskingRule, vocabulary: MaskingVocabulary, segmenter: Segmenter | None
) -> MaskedRows:
    targets = _select(rows, rule, vocabulary, segmenter)
    flat = rows.offsets[targets.row] + targets.position
    labels = rows.ids[flat]
    masked = rows.ids.copy()
    masked[flat] = _replace(labels, rows.keys, targets, rule, vocabulary)
    counts = np.bincount(targets.row, minlength=rows.keys.size)
    return MaskedRows(masked, targets.position.astype(np.int32), offsets_of(counts), labels)


def _select(
    rows: Rows, rule: MaskingRule, vocabulary: MaskingVocabulary, segmenter: Segmenter | None
) -> selection.Targets:
    candidate = ~vocabulary.blocked[rows.ids]
    budget = _budgets(candidate, rows.offsets, rule)
    keys = draws(rows.keys, _SELECTION)
    if rule.unit == "token":
        return selection.pick_tokens(candidate, rows.offsets, budget, keys)
    joins = vocabulary.continuation[rows.ids] if segmenter is None else segmenter(rows.ids, rows.offsets)
    words = selection.find_words(candidate, joins, rows.offsets)
    chosen = selection.pick_words(
        words, budget=budget, keys=keys, groups=_groups(rows, rule), max_predictions=rule.max_predictions
    )
    return selection.expand_words(words, chosen, rule.max_predictions)


def _groups(rows: Rows, rule: MaskingRule) -> selection.GroupLengths | None:
    if rule.unit == "whole_word":
        return None
    keys = draws(rows.keys, _LENGTH)
    if rule.unit == "span":
        # Use products, because the last bit of a power may differ between machines.
        weights = np.cumprod(
            np.array([1.0] + [1 - rule.span_probability] * (rule.max_span - 1)), dtype=np.float64
        )
        return selection.GroupLengths(weights, keys, all_or_nothing=False)
    weights = 1.0 / np.arange(1, rule.max_ngram + 1)
    return selection.GroupLengths(weights, keys, all_or_nothing=True)


def _budgets(candidate: Flags, offsets: Offsets, rule: MaskingRule) -> npt.NDArray[np.int64]:
    """[n] number of targets: the rule's share of the length, half to even, at most the candidates."""
    share = np.rint(np.diff(offsets) * rule.probability).astype(np.int64)
    share = np.clip(share, 1, rule.max_predictions)
    available = np.diff(offsets) - selection.row_sums(~candidate, offsets)
    return np.minimum(share, available)


def _replace(
    labels: Ids,
    keys: Keys,
    targets: selection.Targets,
    rule: MaskingRule,
    vocabulary: MaskingVocabulary,
) -> Ids:
    """The replacement of each target. A span draws once for all its tokens (SpanBERT)."""
    draw_at = targets.group if rule.unit == "span" else targets.position
    kind = unit_interval(stream(draws(keys, _REPLACEMENT)[targets.row], draw_at))
    result = np.full(labels.size, vocabulary.mask_id, np.int32)
    kept = kind >= rule.mask_share + rule.random_share
    result[kept] = labels[kept]
    random = np.flatnonzero((kind >= rule.mask_share) & ~kept)
    point = unit_interval(stream(draws(keys, _PIECE)[targets.row[random]], targets.position[random]))
    result[random] = vocabulary.replacements[(point * vocabulary.replacements.size).astype(np.int64)]
    return result
