"""Selects what to mask in many rows at once, on matrices of rows x positions or rows x words.

Each matrix holds random bits with the column number in the lowest bits, so that one sort of integers gives
a random order together with the column of each element.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from schemas.arrays import I32, I64, U64, Flags
from schemas.randomness import stream, unit_interval

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_NEVER_FITS = 1 << 20
# Words, and groups of words, to try before dropping the full rows.
_COLUMNS = 32
_GROUPS = 8
MAX_GROUP_WORDS = 57


@dataclass(frozen=True)
class Words:
    """The W words of a block of n rows, row by row."""

    offsets: I64
    """[n + 1] start of each row."""
    start: I64
    """[W] first piece of each word, counted from the start of the block."""
    size: I64
    """[W] pieces of each word."""
    first: I64
    """[n] number of each row's first word."""
    count: I64
    """[n] words in each row."""
    breaks: Flags
    """[W] whether no candidate directly precedes the word."""

    @cached_property
    def row(self) -> I64:
        """[W] row of each word."""
        return np.repeat(np.arange(self.count.size), self.count)

    @cached_property
    def run(self) -> I64:
        """[W] words from this one to the end of its unbroken run of words."""
        starts = np.flatnonzero(self.breaks)
        ends = np.append(starts, self.breaks.size)[1:]
        return np.repeat(ends, ends - starts) - np.arange(self.breaks.size)


@dataclass(frozen=True)
class Targets:
    """The masked positions of a block of rows, ascending."""

    row: I64
    position: I64
    """Counted from the start of the row."""
    group: I64
    """First position of the group of words that is masked together. For single tokens, the position."""


@dataclass(frozen=True)
class ChosenWords:
    """The masked words, ascending: their numbers, and the first word of the group of each."""

    word: I64
    anchor: I64


def row_sums(flags: Flags, offsets: I64) -> I64:
    """[n] number of set flags in each row. Fast when few are set."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), offsets))


def pick_tokens(candidate: Flags, offsets: I64, budget: I64, keys: U64) -> Targets:
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
    """[n, width] random bits above the column number, disallowed columns last. Also the column's bit mask."""
    width = allowed.shape[1]
    low = np.uint64((1 << width.bit_length()) - 1)
    columns = np.arange(width)
    order = stream(keys[:, None], columns)
    order &= ~low
    order |= columns.astype(np.uint64)
    np.putmask(order, ~allowed, _LAST)
    return order, low


def find_words(candidate: Flags, joins: Flags, offsets: I64) -> Words:
    """Splits runs of candidates into words. A word starts where a piece does not join the previous piece."""
    after_candidate = np.empty_like(candidate)
    after_candidate[1:] = candidate[:-1]
    after_candidate[offsets[:-1]] = False
    # A word ends where the next one starts, and before a piece that is not a candidate.
    bound = np.flatnonzero(~(candidate & joins & after_candidate))
    starts = candidate[bound]
    size = np.diff(bound, append=candidate.size)[starts]
    start = bound[starts]
    first = np.searchsorted(start, offsets)
    return Words(offsets, start, size, first[:-1], np.diff(first), ~after_candidate[start])


@dataclass(frozen=True)
class GroupLengths:
    """The number of words in the group that starts at a word, drawn by the row's key and the position."""

    weights: npt.NDArray[np.float64]
    """Weights of groups of 1, 2, 3 ... words, at most MAX_GROUP_WORDS."""
    keys: U64
    """[n] random key of each row."""
    all_or_nothing: bool
    """False (span): a length past the end of its run is cut there, and a group ends early at the budget or
    at a masked word. True (ngram): such a length is never drawn. A group is shortened until it fits the
    budget, and dropped if it touches a masked word."""

    def draw(self, row: I64, position: I64, run: I64) -> I64:
        """Lengths of groups at the words with these rows, positions and words left in their run."""
        room = np.minimum(run, self.weights.size)
        summed = np.cumsum(self.weights)
        point = unit_interval(stream(self.keys[row], position))
        scale = summed[room - 1] if self.all_or_nothing else summed[-1]
        drawn = np.searchsorted(summed, point * scale, side="right") + 1
        return np.asarray(np.minimum(drawn, room), dtype=np.int64)


def pick_words(
    words: Words, *, budget: I64, keys: U64, groups: GroupLengths | None, max_predictions: int
) -> ChosenWords:
    """Chooses words of each row in random order, singly or in groups, within its ``budget`` of pieces.

    Raises ValueError for groups of more than MAX_GROUP_WORDS words.
    """
    width = int(words.count.max()) if words.count.size else 0
    if width == 0:
        return ChosenWords(np.zeros(0, np.int64), np.zeros(0, np.int64))
    order = _Order(words, keys, width)
    anchor = _fill_singly(order, budget) if groups is None else _Groups(order, budget, groups).fill()
    word = np.flatnonzero(anchor >= 0)
    empty = np.flatnonzero((budget > 0) & (np.bincount(words.row[word], minlength=budget.size) == 0))
    if empty.size:
        first = order.first_within(empty, max_predictions)
        anchor[first] = first
        word = np.flatnonzero(anchor >= 0)
    return ChosenWords(word, anchor[word].astype(np.int64))


class _Order:
    """The random order in which the words of each row are tried."""

    def __init__(self, words: Words, keys: U64, width: int) -> None:
        self.words = words
        self.width = width
        inside = np.arange(width) < words.count[:, None]
        self._order, self._low = _random_order(keys, inside)
        self._order.sort(axis=1)

    def tried(self, rows: I64, begin: int, end: int) -> tuple[I64, Flags]:
        """[end - begin, rows] the words at these positions of the order, and whether each exists.

        After the last word of a row its number is repeated.
        """
        last = self.words.count[rows]
        place = np.arange(begin, min(end, self.width))[:, None]
        column = (self._order[rows, begin:end].T & self._low).astype(np.int64)
        return self.words.first[rows] + np.minimum(column, last - 1), place < last

    def first_within(self, rows: I64, max_predictions: int) -> I64:
        """The first word of each row with at most ``max_predictions`` pieces, or else its first word."""
        word, there = self.tried(rows, 0, self.width)
        return np.asarray(
            word[np.argmax((self.words.size[word] <= max_predictions) & there, axis=0), np.arange(rows.size)]
        )


def _fill_singly(order: _Order, budget: I64) -> I32:
    """[W] the word's own number if it is chosen, else -1."""
    anchor = np.full(order.words.size.size, -1, np.int32)
    sizes_of = order.words.size.astype(np.int32)
    left = budget.astype(np.int32)
    active = np.flatnonzero(left > 0)
    for begin in range(0, order.width, _COLUMNS):
        tried, there = order.tried(active, begin, begin + _COLUMNS)
        sizes = np.where(there, sizes_of[tried], _NEVER_FITS)
        chosen_slots = np.zeros(sizes.shape, np.bool_)
        rest = left[active]
        for fits, size in zip(chosen_slots, sizes, strict=True):
            np.less_equal(size, rest, out=fits)
            rest -= size * fits
        chosen = tried[chosen_slots]
        anchor[chosen] = chosen
        left[active] = rest
        active = active[rest > 0]
        if active.size == 0:
            break
    return anchor


class _Groups:
    """The state of filling rows with groups of words: the words taken and the budget left.

    Each taken word is a bit of its row. The eight bytes starting at a word's byte cover it and at least the
    56 words after it, so one integer shows how many words are free from there.
    """

    def __init__(self, order: _Order, budget: I64, lengths: GroupLengths) -> None:
        if lengths.weights.size > MAX_GROUP_WORDS:
            raise ValueError(f"a group must have at most {MAX_GROUP_WORDS} words")
        self._order, self._words, self._lengths = order, order.words, lengths
        self._left, self._budget = budget.copy(), budget
        self._row_bytes = (order.width >> 3) + 8
        bits = np.zeros(budget.size * self._row_bytes + 8, np.uint8)
        self._masked: U64 = np.ndarray((bits.size - 7,), "<u8", bits, strides=(1,))
        ends = np.zeros(int(order.words.offsets[-1]) + 1, np.int32)
        ends[order.words.start + order.words.size] = 1
        # Words that end at or before each piece of the block.
        self._ended = np.cumsum(ends)

    def fill(self) -> I32:
        """[W] first word of the group that took the word, else -1. Each step adds one group to a row."""
        words, groups = self._words, []
        active = np.flatnonzero(self._left > 0)
        for begin in range(0, self._order.width, _GROUPS):
            active = active[(self._left[active] > 0) & (words.count[active] > begin)]
            if active.size == 0:
                break
            tried, there = self._order.tried(active, begin, begin + _GROUPS)
            start = words.start[tried]
            length = self._lengths.draw(active, start - words.offsets[active], words.run[tried])
            length[~there] = 0
            column = tried - words.first[active]
            byte, bit = active * self._row_bytes + (column >> 3), (column & 7).astype(np.uint64)
            left, budget = self._left[active], self._budget[active]
            for step in zip(tried, start, length, byte, bit, strict=True):
                groups.append(self._place(_Tried(*step), left, budget))
            self._left[active] = left
        anchor = np.full(words.size.size, -1, np.int32)
        if groups:
            first, count = (np.concatenate(column) for column in zip(*groups, strict=True))
            anchors = np.repeat(first, count)
            anchor[anchors + np.arange(anchors.size) - np.repeat(np.cumsum(count) - count, count)] = anchors
        return anchor

    def _place(self, tried: "_Tried", left: I64, budget: I64) -> tuple[I64, I64]:
        """Adds one group to each row and subtracts its pieces from ``left``, what remains of the ``budget``.

        Returns the first word and the number of words of each added group. A finished row has nothing
        left.
        """
        window = self._masked[tried.byte]
        from_place = window >> tried.bit
        # The number of zeros below the lowest set bit.
        free = np.bitwise_count(~from_place & (from_place - np.uint64(1)))
        fits = self._ended[np.minimum(tried.start + left, self._ended.size - 1)] - tried.word
        count = np.minimum(tried.length, fits)
        if self._lengths.all_or_nothing:
            count[free < count] = 0
            over_budget = None
        else:
            over_budget = (fits < tried.length) & (fits < free)
            np.minimum(count, free, out=count)
        put = np.flatnonzero(count > 0)
        first, sizes = tried.word[put], count[put]
        last = first + sizes - 1
        left[put] -= self._words.start[last] + self._words.size[last] - tried.start[put]
        ones = (np.uint64(1) << sizes.astype(np.uint64)) - np.uint64(1)
        self._masked[tried.byte[put]] = window[put] | (ones << tried.bit[put])
        if over_budget is not None:
            # A span that the budget cut is the row's last, so that scattered words do not fill the rest.
            left[over_budget & (left < budget)] = 0
        return first, sizes


@dataclass(frozen=True)
class _Tried:
    """A word of each row at which a group may start."""

    word: I64
    start: I64
    """First piece of the word."""
    length: I64
    """Number of words of the group."""
    byte: I64
    bit: U64
    """Position of the word's bit."""


def expand_words(words: Words, chosen: ChosenWords, max_predictions: int) -> Targets:
    """The pieces of the chosen words."""
    size = np.minimum(words.size[chosen.word], max_predictions)
    row = words.row[chosen.word]
    begin = words.offsets[row]
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    position = np.repeat(words.start[chosen.word] - begin, size) + within
    return Targets(np.repeat(row, size), position, np.repeat(words.start[chosen.anchor] - begin, size))
