"""Choosing what to mask in many rows at once, on rectangles of rows x positions or rows x words.

Every rectangle is sorted by random bits with the column number in the lowest bits, so that one sort
of plain integers gives a random order and says where each element came from.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from schemas.randomness import U64, stream, unit_interval

Ints = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_NEVER_FITS = 1 << 20
# Words that are tried in one go before the rows that are full are left out.
_COLUMNS = 32


@dataclass(frozen=True)
class Words:
    """The words of a block of rows, row by row; W words, n rows."""

    offsets: Ints
    """[n + 1] where each row begins."""
    start: Ints
    """[W] first piece of each word, counted from the start of the block."""
    size: Ints
    """[W] pieces of each word."""
    first: Ints
    """[n] number of each row's first word."""
    count: Ints
    """[n] words in each row."""
    breaks: Flags
    """[W] no candidate stands right before the word."""

    def row_of(self, word: Ints) -> Ints:
        """Rows of the words with these numbers."""
        return np.searchsorted(self.first, word, side="right") - 1

    @cached_property
    def run(self) -> Ints:
        """[W] words from this one to the end of the unbroken stretch of words that it is in."""
        starts = np.flatnonzero(self.breaks)
        ends = np.append(starts, self.breaks.size)[1:]
        return np.repeat(ends, ends - starts) - np.arange(self.breaks.size)


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
    """[n] set flags in each row; quick where few are set."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), offsets))


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
    order = stream(keys[:, None], columns)
    order &= ~low
    order |= columns.astype(np.uint64)
    np.putmask(order, ~allowed, _LAST)
    return order, low


def find_words(candidate: Flags, joins: Flags, offsets: Ints) -> Words:
    """Words are runs of candidates; one starts wherever a piece does not join the piece before it."""
    after_candidate = np.empty_like(candidate)
    after_candidate[1:] = candidate[:-1]
    after_candidate[offsets[:-1]] = False
    # A word ends where the next one starts or where there is no candidate.
    bound = np.flatnonzero(~(candidate & joins & after_candidate))
    starts = candidate[bound]
    size = np.diff(bound, append=candidate.size)[starts]
    start = bound[starts]
    first = np.searchsorted(start, offsets)
    return Words(offsets, start, size, first[:-1], np.diff(first), ~after_candidate[start])


@dataclass(frozen=True)
class GroupLengths:
    """How many words the group that begins at a word has; drawn by the word's key and position."""

    weights: npt.NDArray[np.float64]
    """Of 1, 2, 3 ... words."""
    keys: U64
    """[n] random key of each row."""
    whole: bool
    """False (span): a length past the end of its stretch is cut down to it; a group ends early at the
    budget or at a masked word. True (ngram): such a length is not drawn in the first place; a group is
    shortened until it fits the budget and left out when it touches a masked word."""

    def draw(self, row: Ints, position: Ints, run: Ints) -> Ints:
        """Lengths of the groups at the words with these rows, positions and words left in their stretch."""
        room = np.minimum(run, self.weights.size)
        summed = np.cumsum(self.weights)
        point = unit_interval(stream(self.keys[row], position))
        scale = summed[room - 1] if self.whole else summed[-1]
        drawn = np.searchsorted(summed, point * scale, side="right") + 1
        return np.asarray(np.minimum(drawn, room), dtype=np.int64)


def pick_words(
    words: Words, *, budget: Ints, keys: U64, groups: GroupLengths | None, max_predictions: int
) -> ChosenWords:
    """Words of each row in random order while they fit its ``budget`` of pieces; in groups or singly."""
    width = int(words.count.max()) if words.count.size else 0
    if width == 0:
        return ChosenWords(np.zeros(0, np.int64), np.zeros(0, np.int64))
    inside = np.arange(width) < words.count[:, None]
    # Wider than the rows, so that a group may look past their end: there nothing ever fits.
    beyond = 1 if groups is None else groups.weights.size
    size = np.full((inside.shape[0], width + beyond), _NEVER_FITS, np.int32)
    size[:, :width][inside] = words.size
    order, low = _random_order(keys, inside)
    order.sort(axis=1)
    columns = (order & low).astype(np.int64)
    # Past a row's words all bits are set: point to the column where nothing fits.
    np.minimum(columns, width, out=columns)
    if groups is None:
        anchor = _fill_singly(size, columns, budget)
    else:
        anchor = _Groups(words, size, budget, groups).fill(columns)
    _never_empty(anchor, size, columns, budget, max_predictions)
    taken = anchor[:, :width][inside]
    word = np.flatnonzero(taken >= 0)
    return ChosenWords(word, words.first[words.row_of(word)] + taken[word])


def _fill_singly(size: Int32, columns: Ints, budget: Ints) -> Int32:
    """[n, width] its own column where a word is taken, else -1."""
    anchor = np.full(size.shape, -1, np.int32)
    left = budget.astype(np.int32)
    active = np.flatnonzero(left > 0)
    for start in range(0, columns.shape[1], _COLUMNS):
        tried = columns[active, start : start + _COLUMNS]
        sizes = np.ascontiguousarray(size[active[:, None], tried].T)
        taken = np.zeros(sizes.shape, np.bool_)
        rest = left[active]
        for fits, wanted in zip(taken, sizes, strict=True):
            np.less_equal(wanted, rest, out=fits)
            rest -= wanted * fits
        step, number = np.nonzero(taken)
        chosen = tried[number, step]
        anchor[active[number], chosen] = chosen
        left[active] = rest
        active = active[rest > 0]
        if active.size == 0:
            break
    return anchor


def _never_empty(anchor: Int32, size: Int32, columns: Ints, budget: Ints, max_predictions: int) -> None:
    """Where no word fits the budget: the first one within ``max_predictions``, failing that the first."""
    empty = np.flatnonzero((budget > 0) & ~(anchor >= 0).any(axis=1))
    ordered = np.take_along_axis(size[empty], columns[empty], axis=1)
    word = columns[empty, np.argmax(ordered <= max_predictions, axis=1)]
    anchor[empty, word] = word


class _Groups:
    """State of filling rows with groups of words: what is taken, and how much of the budget is left."""

    def __init__(self, words: Words, size: Int32, budget: Ints, groups: GroupLengths) -> None:
        self._words = words
        self._size = size
        self._groups = groups
        self._anchor = np.full(size.shape, -1, np.int32)
        self._left = budget.copy()
        self._budget = budget

    def fill(self, columns: Ints) -> Int32:
        """[n, wide] first word of the group that took the word, else -1; one group a row and step."""
        active = np.flatnonzero(self._left > 0)
        for step in range(columns.shape[1]):
            active = active[step < self._words.count[active]]
            if active.size == 0:
                break
            active = active[~self._place(active, columns[active, step])]
        return self._anchor

    def _place(self, rows: Ints, start: Ints) -> Flags:
        """Put the groups that begin at the words ``start``; returns the rows that are finished."""
        words, longest = self._words, self._groups.weights.size
        word = words.first[rows] + start
        position = words.start[word] - words.offsets[rows]
        length = self._groups.draw(rows, position, words.run[word])
        steps = np.arange(longest)
        at = start[:, None] + steps
        within = steps < length[:, None]
        free = self._anchor[rows[:, None], at] < 0
        used = np.cumsum(np.where(within, self._size[rows[:, None], at], 0), axis=1)
        fits = within & (used <= self._left[rows][:, None])
        if self._groups.whole:
            taken = fits & ~(fits & ~free).any(axis=1)[:, None]
        else:
            taken = np.logical_and.accumulate(fits & free, axis=1)
        row, step = np.nonzero(taken)
        self._anchor[rows[row], at[row, step]] = start[row]
        self._left[rows] -= np.max(used * taken, axis=1, initial=0)
        finished = self._left[rows] == 0
        if not self._groups.whole:
            # A span that the budget ended is the row's last: scattered words shall not fill the rest.
            stop = taken.sum(axis=1)
            last = np.minimum(stop, longest - 1)
            number = np.arange(rows.size)
            over_budget = within[number, last] & (stop <= last) & free[number, last] & ~fits[number, last]
            finished |= over_budget & (self._left[rows] < self._budget[rows])
        return np.asarray(finished)


def expand_words(words: Words, chosen: ChosenWords, max_predictions: int) -> Targets:
    """The pieces of the chosen words."""
    size = np.minimum(words.size[chosen.word], max_predictions)
    row = words.row_of(chosen.word)
    begin = words.offsets[row]
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    position = np.repeat(words.start[chosen.word] - begin, size) + within
    return Targets(np.repeat(row, size), position, np.repeat(words.start[chosen.anchor] - begin, size))
