"""Repeatedly merges the most frequent pair of neighboring subwords, as byte-pair encoding does.

Words are one flat array of symbols with links to the left and right. A merge is a few NumPy operations on the
positions of the pair. Late in training most pairs have few positions, and a plain loop over them is faster.
Both give the same result.

Of millions of pairs, training needs only the most frequent ones. It tracks only pairs with a count of at
least ``_least``, with exact counts and positions. When no such pair remains, it counts all pairs again and
lowers ``_least``. When it tracks too many, it raises ``_least``. So the number of tracked pairs stays close
to the number of subwords made.
"""

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wordpiece.basic_tokenization import code_points
from schemas.arrays import I32, I64, Flags, distinct_values
from schemas.vocabulary import CONTINUATION

# Positions per batch, for bounded memory.
_PLACES_AT_ONCE = 1 << 21
_WORDS_AT_ONCE = 100_000
# Up to this many positions a loop is faster than NumPy.
_FEW = 48
_PLACE_BYTES = 4
# Minimum number of pairs to track after each count, unless more subwords have been made.
_TRACKED = 10_000
_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class _Grouped:
    """Positions ordered by the pairs that start there. Pair i has those from bounds[i] to bounds[i + 1]."""

    keys: I64
    sums: I64
    firsts: I32
    bounds: I64

    def chosen(self, flags: Flags) -> Iterator[tuple[int, int, bytes]]:
        """The flagged pairs: key, summed weight, positions as 32-bit integers."""
        numbers = np.flatnonzero(flags)
        begins, ends = self.bounds[numbers].tolist(), self.bounds[numbers + 1].tolist()
        keys, sums = self.keys[numbers].tolist(), self.sums[numbers].tolist()
        for key, weight, begin, end in zip(keys, sums, begins, ends, strict=True):
            yield key, weight, self.firsts[begin:end].tobytes()


class PairMerges:
    """Merges pairs of subwords. Words are in flat arrays whose links skip merged symbols."""

    def __init__(self, words: pa.Table, alphabet: list[str]) -> None:
        """``words`` is WORD_COUNTS with each word once. ``alphabet`` covers all words."""
        self._pieces = list(alphabet)
        self._number = {piece: number for number, piece in enumerate(alphabet)}
        self._alphabet = len(alphabet)
        self._lay_out(words)
        self._count: dict[int, int] = {}
        # The positions of a pair as 32-bit integers. An array object for each would take three times as much.
        self._places: dict[int, bytes] = {}
        self._heap: list[tuple[int, int]] = []
        # Untracked pairs are rarer than this. With 1, all pairs are tracked.
        self._least = 1 << 62
        # Maximum number of tracked pairs.
        self._most = 0
        self._few = self._single_elements()

    def _lay_out(self, words: pa.Table) -> None:
        """Makes the flat arrays, each with the narrowest type. A letter takes about 8 bytes."""
        opening, inner = np.full((2, _CODE_POINTS), -1, np.int32)
        for number, piece in enumerate(self._pieces):
            if len(piece) == 1:
                opening[ord(piece)] = number
            elif piece.startswith(CONTINUATION) and len(piece) == len(CONTINUATION) + 1:
                inner[ord(piece[-1])] = number
        weights, ranks = np.unique(words["count"].to_numpy(), return_inverse=True)
        # Distances to the neighbors (0 at the ends of words), and the number of the word's weight.
        letters = int(pc.sum(pc.utf8_length(words["word"])).as_py() or 0)
        self._symbol = np.empty(letters, np.int32)
        ends, places = [np.zeros(0, np.int64)], 0
        for batch in words.to_batches(_WORDS_AT_ONCE):
            _, codes, bounds = code_points(batch["word"])
            symbol = inner[codes]
            symbol[bounds[:-1]] = opening[codes[bounds[:-1]]]
            self._symbol[places : places + len(symbol)] = symbol
            ends.append(bounds[1:] + places)
            places += len(symbol)
        last = np.concatenate(ends)
        lengths = np.diff(last, prepend=0)
        links = np.min_scalar_type(int(lengths.max(initial=0)))
        self._right, self._left = np.ones((2, letters), links)
        self._right[last - 1] = 0
        self._left[last - lengths] = 0
        self._weights = weights.tolist()
        self._weight_of = weights.astype(np.int64)
        self._rank = np.repeat(ranks.astype(np.min_scalar_type(len(weights))), lengths)

    def _single_elements(self) -> list[Any]:
        """The flat arrays as memory views, to read and write single elements without NumPy."""
        return [part.data for part in (self._symbol, self._left, self._right, self._rank)]

    # ------------------------------------------------------------ counting

    def _weight(self, places: I32) -> I64:
        weights: I64 = self._weight_of[self._rank[places]]
        return weights

    def _keys(self, firsts: I32, seconds: I32) -> I64:
        high = self._symbol[firsts].astype(np.int64) << 32
        return high | self._symbol[seconds]

    def _grouped(self, firsts: I32) -> _Grouped:
        """The pairs that start at these positions, by key."""
        keys = self._keys(firsts, firsts + self._right[firsts])
        order = np.argsort(keys)
        keys, firsts = keys[order], firsts[order].astype(np.int32, copy=False)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        sums = np.add.reduceat(self._weight(firsts), begins) if len(begins) else begins
        return _Grouped(keys[begins], sums, firsts, np.append(begins, len(keys)))

    def _count_all(self) -> None:
        """Counts all pairs and tracks the most frequent ones."""
        self._drop_dead_places()
        self._count.clear()
        self._places.clear()
        parts = []
        for begin in range(0, max(len(self._symbol), 1), _PLACES_AT_ONCE):
            firsts = np.flatnonzero(self._right[begin : begin + _PLACES_AT_ONCE]) + begin
            parts.append(self._grouped(firsts.astype(np.int32)))
        keys, sums = _summed([part.keys for part in parts], [part.sums for part in parts])
        self._least = self._least_tracked(sums)
        tracked = keys[sums >= self._least]
        self._count = dict.fromkeys(tracked.tolist(), 0)
        self._places = dict.fromkeys(self._count, b"")
        while parts:
            part = parts.pop()
            for key, weight, places in part.chosen(np.isin(part.keys, tracked, assume_unique=True)):
                self._count[key] += weight
                self._places[key] += places
        self._rank_tracked()

    def _tracked_limit(self) -> int:
        return max(_TRACKED, len(self._pieces) - self._alphabet)

    def _least_tracked(self, sums: I64) -> int:
        """The count of the rarest pair to track."""
        rank = len(sums) - self._tracked_limit()
        if rank <= 0:
            return 1
        least = int(np.partition(sums, rank)[rank])
        # If far too many pairs have exactly this count, track only those above it.
        many = (sums >= least).sum() > 2 * self._tracked_limit() and (sums > least).any()
        return least + 1 if many else least

    def _rank_tracked(self) -> None:
        self._heap = [(-count, key) for key, count in self._count.items()]
        heapq.heapify(self._heap)
        self._most = max(4 * self._tracked_limit(), 2 * len(self._count))

    def _track_fewer(self) -> None:
        """Stops tracking the rarest pairs when too many are tracked."""
        least = self._least_tracked(np.fromiter(self._count.values(), np.int64, len(self._count)))
        if least > self._least:
            self._least = least
            self._count = {key: count for key, count in self._count.items() if count >= least}
            self._places = {key: self._places[key] for key in self._count}
        self._rank_tracked()

    def _drop_dead_places(self) -> None:
        """Removes merged symbols, and words that are one subword, from the arrays."""
        stays = (self._symbol >= 0) & ((self._left | self._right) > 0)
        self._few.clear()
        if not stays.all():
            self._symbol = self._symbol[stays]
            self._rank = self._rank[stays]
            self._left = np.minimum(self._left[stays], 1)
            self._right = np.minimum(self._right[stays], 1)
        self._few = self._single_elements()

    def _track(self, key: int, weight: int, places: bytes) -> None:
        self._count[key] = weight
        self._places[key] = places
        heapq.heappush(self._heap, (-weight, key))

    def _track_new(self, firsts: I32) -> None:
        """Tracks the frequent pairs at these positions, which occur nowhere else."""
        grouped = self._grouped(firsts)
        for key, weight, places in grouped.chosen(grouped.sums >= self._least):
            self._track(key, weight, places)

    def _track_again(self, piece: int) -> None:
        """Counts the pairs of a subword again that other merges have already made elsewhere."""
        places = np.flatnonzero(self._symbol == piece).astype(np.int32)
        befores = (places - self._left[places])[self._left[places] > 0]
        grouped = self._grouped(distinct_values(np.concatenate((befores, places[self._right[places] > 0]))))
        for key in grouped.keys.tolist():
            if self._count.pop(key, None) is not None:
                del self._places[key]
        for key, weight, at in grouped.chosen(grouped.sums >= self._least):
            self._track(key, weight, at)

    def _subtract(self, key: int, weight: int) -> None:
        # In "aaa" one of the two pairs is the merged pair itself, which no longer counts.
        left = self._count.get(key)
        if left is None:
            return
        if left - weight < self._least:
            del self._count[key], self._places[key]
        else:
            self._count[key] = left - weight

    # ------------------------------------------------------------ merging

    def run(self, size: int) -> None:
        """Merges until there are ``size`` new subwords or no more pairs."""
        while len(self._pieces) - self._alphabet < size:
            if not self._heap:
                if self._least == 1:
                    return
                self._count_all()
                continue
            if len(self._count) > self._most:
                self._track_fewer()
            negative, key = heapq.heappop(self._heap)
            count = self._count.get(key, 0)
            if count == -negative:
                self._merge(key)
            elif 0 < count < -negative:
                heapq.heappush(self._heap, (-count, key))

    def _merge(self, key: int) -> None:
        first, second = key >> 32, key & 0xFFFFFFFF
        raw = self._places.pop(key)
        del self._count[key]
        if len(raw) <= _FEW * _PLACE_BYTES:
            self._merge_few(raw, first, second)
        else:
            self._merge_many(np.frombuffer(raw, np.int32), first, second)

    def _merge_many(self, places: I32, first: int, second: int) -> None:
        firsts = self._standing(places, first, second)
        seconds = firsts + self._right[firsts]
        back, ahead = self._left[firsts], self._right[seconds]
        before, after = firsts - back, seconds + ahead
        # In "abab" the pair between two merges is the right pair of the first and the left pair of the
        # second. Subtract it once, as a left pair.
        has_before, has_after = back > 0, ahead > 0
        own_after = has_after
        if (self._symbol[after[has_after]] == first).any():
            own_after = has_after & ~np.isin(after, firsts)
        lost = (
            self._keys(before[has_before], firsts[has_before]),
            self._keys(seconds[own_after], after[own_after]),
        )
        weights = self._weight(firsts)
        keys, sums = _summed(lost, (weights[has_before], weights[own_after]))
        for key, weight in zip(keys.tolist(), sums.tolist(), strict=True):
            self._subtract(key, weight)
        piece, is_new = self._piece(first, second)
        self._symbol[firsts] = piece
        self._symbol[seconds] = -1
        self._right[firsts] = np.where(has_after, after - firsts, 0)
        self._left[after[has_after]] = (after - firsts)[has_after]
        if not is_new:
            self._track_again(piece)
            return
        back = self._left[firsts]
        self._track_new(np.concatenate(((firsts - back)[back > 0], firsts[own_after])))

    def _standing(self, places: I32, first: int, second: int) -> I32:
        """The positions where the pair still occurs, ascending, without overlaps in runs such as aaa."""
        places = places[self._symbol[places] == first]
        steps = self._right[places]
        places = places[(steps > 0) & (self._symbol[places + steps] == second)]
        places = distinct_values(places)
        if first != second:
            return places
        second_place, kept = -1, []
        for place, step in zip(places.tolist(), self._right[places].tolist(), strict=True):
            if place != second_place:
                kept.append(place)
                second_place = place + step
        return np.array(kept, np.int32)

    def _merge_few(self, raw: bytes, first: int, second: int) -> None:
        """As `_merge_many`, but in a loop over positions."""
        symbol, left, right, rank = self._few
        weights = self._weights
        firsts: list[int] = []
        second_place = -1
        for place in sorted(set(array("i", raw))):
            step = right[place]
            if symbol[place] == first and step and symbol[place + step] == second and place != second_place:
                firsts.append(place)
                second_place = place + step if first == second else -1
        merged = set(firsts)
        for place in firsts:
            inner = place + right[place]
            after = inner + right[inner]
            weight = weights[rank[place]]
            if left[place]:
                self._subtract(symbol[place - left[place]] << 32 | first, weight)
            if after != inner and after not in merged:
                self._subtract(second << 32 | symbol[after], weight)
        piece, is_new = self._piece(first, second)
        rights = []
        for place in firsts:
            inner = place + right[place]
            after = inner + right[inner]
            symbol[place], symbol[inner], right[place] = piece, -1, 0
            if after != inner:
                left[after] = right[place] = after - place
                if after not in merged:
                    rights.append(place)
        if not is_new:
            self._track_again(piece)
            return
        added: dict[int, list[int]] = {}
        for place in (*(place - left[place] for place in firsts if left[place]), *rights):
            added.setdefault(symbol[place] << 32 | symbol[place + right[place]], []).append(place)
        for key, places in added.items():
            weight = sum([weights[rank[place]] for place in places])
            if weight >= self._least:
                self._track(key, weight, array("i", places).tobytes())

    def _piece(self, first: int, second: int) -> tuple[int, bool]:
        """The number of the merged subword, and whether it is new."""
        name = self._pieces[first] + self._pieces[second].removeprefix(CONTINUATION)
        number = self._number.setdefault(name, len(self._pieces))
        if number < len(self._pieces):
            return number, False
        self._pieces.append(name)
        return number, True

    def merged_pieces(self) -> list[str]:
        """The merged subwords in the order of their merges."""
        return self._pieces[self._alphabet :]


def _summed(keys: Any, sums: Any) -> tuple[I64, I64]:
    """The distinct keys of several arrays, ascending, and the sum for each."""
    every, weights = np.concatenate(keys), np.concatenate(sums)
    order = np.argsort(every)
    every = every[order]
    begins = np.flatnonzero(np.diff(every, prepend=-1))
    return every[begins], np.add.reduceat(weights[order], begins) if len(begins) else begins
