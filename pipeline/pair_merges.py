"""Merges the most frequent pairs of neighbouring pieces, again and again, as byte-pair encoding does.

Words are kept as one flat array of symbols with links to the left and to the right. A merge is a few
NumPy operations on the places where the pair stands; most merges late in a training stand in a few
places only, and a plain loop over those is quicker. Both do the same.
"""

import heapq
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.arrays import distinct_values
from schemas.vocabulary import CONTINUATION

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# Places that are worked on at a time, for bounded memory.
_PLACES_AT_ONCE = 1 << 22
# Up to so many places a loop is quicker than NumPy.
_FEW = 48
_PLACE_BYTES = 4


class PairMerges:
    """Merges pairs of pieces; the words live in flat arrays, linked over what was merged away."""

    def __init__(self, words: list[tuple[str, int]], alphabet: list[str]) -> None:
        self._pieces = list(alphabet)
        self._number = {piece: number for number, piece in enumerate(alphabet)}
        self._alphabet = len(alphabet)
        words = [item for item in words if len(item[0]) > 1]
        lengths = np.fromiter((len(word) for word, _ in words), np.int64, len(words))
        counts = np.fromiter((count for _, count in words), np.int64, len(words))
        places = int(lengths.sum())
        opening = {char: self._number.get(char, -1) for char in {word[0] for word, _ in words}}
        letters = {piece[2:]: n for piece, n in self._number.items() if len(piece) == 3 and piece[:2] == "##"}
        symbols = (
            number for word, _ in words for number in (opening[word[0]], *map(letters.__getitem__, word[1:]))
        )
        self._symbol = np.fromiter(symbols, np.int32, places)
        ends = np.cumsum(lengths)
        self._right = np.arange(1, places + 1, dtype=np.int32)
        self._right[ends - 1] = -1
        self._left = np.arange(-1, places - 1, dtype=np.int32)
        self._left[ends - lengths] = -1
        narrow = counts.max(initial=0) <= np.iinfo(np.int32).max
        self._weight: npt.NDArray[Any] = np.repeat(counts.astype(np.int32) if narrow else counts, lengths)
        # The same arrays, for reading and writing single elements without NumPy.
        self._few = [part.data for part in (self._symbol, self._left, self._right, self._weight)]
        self._count: dict[int, int] = {}
        # The places of a pair as 32-bit integers: an array object for each would take three times as much.
        self._places: dict[int, bytes] = {}
        self._heap: list[tuple[int, int]] = []
        for begin in range(0, places, _PLACES_AT_ONCE):
            firsts = np.flatnonzero(self._right[begin : begin + _PLACES_AT_ONCE] >= 0) + begin
            self._add_pairs(firsts.astype(np.int32))
        # Each part pushed its pairs: one entry for each is enough.
        self._heap = [(-count, key) for key, count in self._count.items()]
        heapq.heapify(self._heap)

    def _keys(self, firsts: Int32, seconds: Int32) -> Int64:
        high = self._symbol[firsts].astype(np.int64) << 32
        return high | self._symbol[seconds]

    def _add_pairs(self, firsts: Int32) -> None:
        """Counts the pairs that begin at these places."""
        keys = self._keys(firsts, self._right[firsts])
        order = np.argsort(keys, kind="stable")
        keys, firsts = keys[order], firsts[order]
        begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else keys
        if not len(begins):
            return
        sums = np.add.reduceat(self._weight[firsts], begins, dtype=np.int64).tolist()
        bounds = [*(_PLACE_BYTES * begins).tolist(), _PLACE_BYTES * len(keys)]
        raw = firsts.tobytes()
        for number, key in enumerate(keys[begins].tolist()):
            self._add(key, sums[number], raw[bounds[number] : bounds[number + 1]])

    def _add(self, key: int, weight: int, places: bytes) -> None:
        before = self._count.get(key)
        if before is None:
            self._places[key] = places
        else:
            weight += before
            self._places[key] += places
        self._count[key] = weight
        heapq.heappush(self._heap, (-weight, key))

    def _subtract_pairs(self, firsts: Int32, keys: Int64) -> None:
        for key, weight in zip(keys.tolist(), self._weight[firsts].tolist(), strict=True):
            self._subtract(key, weight)

    def _subtract(self, key: int, weight: int) -> None:
        # In "aaa" one of the two pairs is the merged one itself, which is no longer counted.
        left = self._count.get(key)
        if left is None:
            return
        if left == weight:
            # It stands nowhere any more.
            del self._count[key], self._places[key]
        else:
            self._count[key] = left - weight

    def run(self, wanted: int) -> None:
        """Merges until ``wanted`` new pieces are there or no pair is left."""
        while self._heap and len(self._pieces) - self._alphabet < wanted:
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

    def _merge_many(self, places: Int32, first: int, second: int) -> None:
        firsts = self._standing(places, first, second)
        seconds = self._right[firsts]
        before, after = self._left[firsts], self._right[seconds]
        # In "abab" the pair between two merges is the right one of the first and the left one of the
        # second: it is taken away once, as a left one.
        has_before, has_after = before >= 0, after >= 0
        own_after = has_after
        if (self._symbol[after[has_after]] == first).any():
            own_after = has_after & ~np.isin(after, firsts)
        self._subtract_pairs(firsts[has_before], self._keys(before[has_before], firsts[has_before]))
        self._subtract_pairs(seconds[own_after], self._keys(seconds[own_after], after[own_after]))
        self._symbol[firsts] = self._piece(first, second)
        self._symbol[seconds] = -1
        self._right[firsts] = after
        self._left[after[has_after]] = firsts[has_after]
        lefts = self._left[firsts]
        rights = firsts[(after >= 0) & own_after]
        self._add_pairs(np.concatenate((lefts[lefts >= 0], rights)))

    def _standing(self, places: Int32, first: int, second: int) -> Int32:
        """Where the pair still stands, in ascending order; without overlaps in runs like aaa."""
        places = places[self._symbol[places] == first]
        rights = self._right[places]
        places = places[(rights >= 0) & (self._symbol[rights] == second)]
        places = distinct_values(places)
        if first != second:
            return places
        taken, kept = -1, []
        for place, right in zip(places.tolist(), self._right[places].tolist(), strict=True):
            if place != taken:
                kept.append(place)
                taken = right
        return np.array(kept, np.int32)

    def _merge_few(self, raw: bytes, first: int, second: int) -> None:
        """As `_merge_many`, place by place."""
        symbol, left, right, weight = self._few
        firsts: list[int] = []
        taken = -1
        for place in sorted(set(array("i", raw))):
            after = right[place]
            if symbol[place] == first and after >= 0 and symbol[after] == second and place != taken:
                firsts.append(place)
                taken = after if first == second else -1
        merged = set(firsts)
        for place in firsts:
            before, after = left[place], right[right[place]]
            lost = []
            if before >= 0:
                lost.append(symbol[before] << 32 | first)
            if after >= 0 and after not in merged:
                lost.append(second << 32 | symbol[after])
            for key in lost:
                self._subtract(key, weight[place])
        piece = self._piece(first, second)
        rights = []
        for place in firsts:
            inner = right[place]
            after = right[inner]
            symbol[place], symbol[inner], right[place] = piece, -1, after
            if after >= 0:
                left[after] = place
                if after not in merged:
                    rights.append(place)
        added: dict[int, list[int]] = {}
        for place in (*(left[place] for place in firsts), *rights):
            if place >= 0:
                added.setdefault(symbol[place] << 32 | symbol[right[place]], []).append(place)
        for key, places in added.items():
            self._add(key, sum([weight[place] for place in places]), array("i", places).tobytes())

    def _piece(self, first: int, second: int) -> int:
        name = self._pieces[first] + self._pieces[second].removeprefix(CONTINUATION)
        number = self._number.setdefault(name, len(self._pieces))
        if number == len(self._pieces):
            self._pieces.append(name)
        return number

    def made(self) -> list[str]:
        """The merged pieces in order of making."""
        return self._pieces[self._alphabet :]
