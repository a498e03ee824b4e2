"""Choosing what to mask in many rows at once, on rectangles of rows x positions or rows x words.

Every rectangle is sorted by random bits with the column number in the lowest bits, so that one sort
of plain integers gives a random order and says where each element came from.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.randomness import U64, stream, unit_interval

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_NEVER_FITS = 1 << 30


@dataclass(frozen=True)
class Words:
    """The words of a block of rows, row by row; W words, n rows."""

    row: Ints
    """[W] the row a word is in."""
    position: Ints
    """[W] its first position, counted from the start of the row."""
    size: Ints
    """[W] its pieces."""
    count: Ints
    """[n] words in each row."""
    run: Ints
    """[W] words from this one to the end of the unbroken stretch of words that it is in."""


@dataclass(frozen=True)
class Targets:
    """The masked positions of a block of rows, ascending."""

    row: Ints
    position: Ints
    """Counted from the start of the row."""
    group: Ints
    """First position of the group of words that was masked together; for tokens the position."""


@dataclass(frozen=True)
class ChosenWords:
    """The masked words, ascending: their numbers, and the first word of the group each came with."""

    word: Ints
    anchor: Ints


def row_sums(flags: Flags, offsets: Ints) -> Ints:
    """[n] set flags in each row."""
    before = np.zeros(flags.size + 1, np.int64)
    np.cumsum(flags, out=before[1:])
    return before[offsets[1:]] - before[offsets[:-1]]


def pick_tokens(candidate: Flags, offsets: Ints, budget: Ints, keys: U64) -> Targets:
    """``budget`` candidates of each row, without replacement."""
    lengths = np.diff(offsets)
    width, most = int(lengths.max()), int(budget.max())
    if most == 0:
        nothing = np.zeros(0, np.int64)
        return Targets(nothing, nothing, nothing)
    columns = np.arange(width)
    allowed = np.zeros((lengths.size, width), np.bool_)
    allowed[columns < lengths[:, None]] = candidate
    order, low = _random_order(keys, allowed)
    if most < width:
        order.partition(most - 1, axis=1)
    order = np.sort(order[:, :most], axis=1)
    taken = np.arange(most) < budget[:, None]
    positions = np.where(taken, (order & low).astype(np.int64), width)
    positions.sort(axis=1)
    chosen = positions[taken]
    return Targets(np.repeat(np.arange(lengths.size), budget), chosen, chosen)


def _random_order(keys: U64, allowed: Flags) -> tuple[U64, np.uint64]:
    """[n, width] random bits over the column number, the disallowed last; and the mask of the column."""
    width = allowed.shape[1]
    low = np.uint64((1 << width.bit_length()) - 1)
    columns = np.arange(width)
    order = (stream(keys[:, None], columns) & ~low) | columns.astype(np.uint64)
    order[~allowed] = _LAST
    return order, low


def find_words(candidate: Flags, joins: Flags, offsets: Ints) -> Words:
    """Words are runs of candidates; one starts wherever a piece does not join the piece before it."""
    after_candidate = np.empty_like(candidate)
    after_candidate[1:] = candidate[:-1]
    after_candidate[offsets[:-1]] = False
    start = candidate & ~(joins & after_candidate)
    index = np.flatnonzero(start)
    count = row_sums(start, offsets)
    row = np.repeat(np.arange(count.size), count)
    pieces = np.cumsum(candidate)
    size = np.diff(pieces[index] - 1, append=pieces[-1] if pieces.size else 0)
    return Words(row, index - offsets[row], size, count, _runs(~after_candidate[index]))


def _runs(breaks: Flags) -> Ints:
    """[W] words left in the stretch; a stretch starts where the piece before is no candidate."""
    starts = np.flatnonzero(breaks)
    ends = np.append(starts, breaks.size)[1:]
    return np.repeat(ends, ends - starts) - np.arange(breaks.size)


def pick_words(
    words: Words, *, budget: Ints, keys: U64, lengths: Ints | None, keep_started: bool, max_predictions: int
) -> ChosenWords:
    """Words of each row in random order while they fit its ``budget`` of pieces.

    ``lengths`` [W] is the number of words in the group that begins at each word; None: single words.
    A group with ``keep_started`` ends early at the budget or at a masked word (span); another is
    shortened until it fits the budget and left out when it touches a masked word (ngram).
    """
    width = int(words.count.max()) if words.count.size else 0
    if width == 0:
        return ChosenWords(np.zeros(0, np.int64), np.zeros(0, np.int64))
    inside = np.arange(width) < words.count[:, None]
    size = np.full(inside.shape, _NEVER_FITS, np.int64)
    size[inside] = words.size
    order, low = _random_order(keys, inside)
    order.sort(axis=1)
    columns = (order & low).astype(np.int64)
    columns[~inside] = 0
    if lengths is None:
        anchor = _fill_singly(size, columns, inside, budget)
    else:
        grid = np.zeros(inside.shape, np.int64)
        grid[inside] = lengths
        anchor = _Groups(size, grid, budget, keep_started).fill(columns, words.count)
    _never_empty(anchor, size, columns, budget, max_predictions)
    first_word = np.cumsum(words.count) - words.count
    taken = anchor[inside]
    word = np.flatnonzero(taken >= 0)
    return ChosenWords(word, first_word[words.row[word]] + taken[word])


def _fill_singly(size: Ints, columns: Ints, inside: Flags, budget: Ints) -> Ints:
    """[n, width] its own column where a word is taken, else -1."""
    sizes = np.take_along_axis(size, columns, axis=1)
    sizes[~inside] = _NEVER_FITS
    left = budget.copy()
    taken = np.zeros(size.shape[::-1], np.bool_)
    for step, wanted in enumerate(np.ascontiguousarray(sizes.T)):
        fits = wanted <= left
        taken[step] = fits
        left -= np.where(fits, wanted, 0)
        if step % 8 == 7 and not left.any():
            break
    anchor = np.full(size.shape, -1, np.int64)
    row, place = np.nonzero(taken.T)
    anchor[row, columns[row, place]] = columns[row, place]
    return anchor


def _never_empty(anchor: Ints, size: Ints, columns: Ints, budget: Ints, max_predictions: int) -> None:
    """Where no word fits the budget: the first one within ``max_predictions``, failing that the first."""
    empty = np.flatnonzero((budget > 0) & ~(anchor >= 0).any(axis=1))
    ordered = np.take_along_axis(size[empty], columns[empty], axis=1)
    word = columns[empty, np.argmax(ordered <= max_predictions, axis=1)]
    anchor[empty, word] = word


class _Groups:
    """State of filling rows with groups of words: what is taken, and how much of the budget is left."""

    def __init__(self, size: Ints, lengths: Ints, budget: Ints, keep_started: bool) -> None:
        self._longest = int(lengths.max())
        # Wider by the longest group, so that a group may look past the end of its row.
        wide = (size.shape[0], size.shape[1] + self._longest)
        self._size = np.full(wide, _NEVER_FITS, np.int64)
        self._size[:, : size.shape[1]] = size
        self._anchor = np.full(wide, -1, np.int64)
        self._length = lengths
        self._left = budget.copy()
        self._budget = budget
        self._keep_started = keep_started

    def fill(self, columns: Ints, count: Ints) -> Ints:
        """[n, width] first word of the group that took the word, else -1; one group a row and step."""
        active = np.flatnonzero(self._left > 0)
        for step in range(columns.shape[1]):
            active = active[step < count[active]]
            if active.size == 0:
                break
            active = active[~self._place(active, columns[active, step])]
        return self._anchor[:, : columns.shape[1]]

    def _place(self, rows: Ints, start: Ints) -> Flags:
        """Put the groups that begin at the words ``start``; returns the rows that are finished."""
        steps = np.arange(self._longest)
        at = start[:, None] + steps
        within = steps < self._length[rows, start][:, None]
        free = self._anchor[rows[:, None], at] < 0
        used = np.cumsum(np.where(within, self._size[rows[:, None], at], 0), axis=1)
        fits = within & (used <= self._left[rows][:, None])
        if self._keep_started:
            taken = np.logical_and.accumulate(fits & free, axis=1)
        else:
            taken = fits & ~(fits & ~free).any(axis=1)[:, None]
        row, step = np.nonzero(taken)
        self._anchor[rows[row], at[row, step]] = start[row]
        self._left[rows] -= np.max(used * taken, axis=1, initial=0)
        finished = self._left[rows] == 0
        if self._keep_started:
            # A span that the budget ended is the row's last: scattered words shall not fill the rest.
            stop = taken.sum(axis=1)
            last = np.minimum(stop, self._longest - 1)
            number = np.arange(rows.size)
            over_budget = within[number, last] & (stop <= last) & free[number, last] & ~fits[number, last]
            finished |= over_budget & (self._left[rows] < self._budget[rows])
        return np.asarray(finished)


def group_lengths(words: Words, weights: npt.NDArray[np.floating], keys: U64, renormalise: bool) -> Ints:
    """[W] words of the group that begins at each word, never past the end of its stretch.

    ``weights`` are those of 1, 2, 3 ... words. What does not fit into the stretch is cut down to it
    (span), or with ``renormalise`` not drawn in the first place (ngram).
    """
    room = np.minimum(words.run, weights.size)
    summed = np.cumsum(weights)
    point = unit_interval(stream(keys[words.row], words.position))
    scale = summed[room - 1] if renormalise else summed[-1]
    drawn = np.searchsorted(summed, point * scale, side="right") + 1
    return np.asarray(np.minimum(drawn, room), dtype=np.int64)


def expand_words(words: Words, chosen: ChosenWords, max_predictions: int) -> Targets:
    """The pieces of the chosen words."""
    size = np.minimum(words.size[chosen.word], max_predictions)
    row = np.repeat(words.row[chosen.word], size)
    inner = np.arange(row.size) - np.repeat(np.cumsum(size) - size, size)
    position = np.repeat(words.position[chosen.word], size) + inner
    return Targets(row, position, np.repeat(words.position[chosen.anchor], size))
