"""MinHash signatures, and the bands that find likely near duplicates.

A signature has, for each of 128 hash functions, the smallest hash of a document's shingles. The probability
that two documents agree in a place is their Jaccard similarity (Broder, On the Resemblance and Containment of
Documents, 1997). Each function is a multiply-add on 64 bits that keeps the upper 32. The keyed generator
draws the functions, so they are the same in every process.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from schemas.arrays import I64, U64
from schemas.randomness import draws

U32 = npt.NDArray[np.uint32]

PERMUTATIONS = 128
# Minimum probability that a pair at the threshold shares a band.
_LEAST_RECALL = 0.94
_SEED = 0x313A5
# Number of shingles to hash at a time. With this many, the arrays stay in the CPU caches.
_AT_ONCE = 1 << 16


def signatures(hashes: U64, offsets: I64) -> U32:
    """The signature of each document: uint32 [documents, PERMUTATIONS].

    Document d has the shingles hashes[offsets[d]:offsets[d + 1]]. Without shingles, all bits of its row are
    1.
    """
    out = np.full((len(offsets) - 1, PERMUTATIONS), 0xFFFFFFFF, np.uint32)
    filled = np.flatnonzero(np.diff(offsets) > 0)
    begin = 0
    while begin < len(filled):
        first = offsets[filled[begin]]
        end = max(begin + 1, int(np.searchsorted(offsets[filled + 1], first + _AT_ONCE, side="right")))
        documents = filled[begin:end]
        block = hashes[first : offsets[documents[-1] + 1]]
        starts = offsets[documents] - first
        values = np.empty_like(block)
        with np.errstate(over="ignore"):
            for place, (factor, term) in enumerate(zip(*_functions(), strict=True)):
                np.multiply(block, factor, out=values)
                np.add(values, term, out=values)
                # The smallest upper half is the upper half of the smallest.
                out[documents, place] = np.minimum.reduceat(values, starts) >> np.uint64(32)
        begin = end
    return out


@lru_cache(maxsize=1)
def _functions() -> tuple[U64, U64]:
    """Factor and term of each function, cached because a documents part may be a single page."""
    counters = np.arange(PERMUTATIONS)
    return draws(_SEED, 1, counters) | np.uint64(1), draws(_SEED, 2, counters)


@lru_cache(maxsize=8)
def rows_per_band(threshold: float) -> int:
    """The most rows per band that still find pairs at the threshold. More rows give fewer chance candidates.

    With n rows, a pair of similarity s shares one of 128 // n bands with probability 1 - (1 - s^n)^bands.
    """
    fitting = [
        rows for rows in range(1, 33) if 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= _LEAST_RECALL
    ]
    return max(fitting, default=1)


def band_hashes(signature: U32, rows: int) -> U64:
    """One hash for each band of each document: uint64 [documents, PERMUTATIONS // rows]."""
    bands = PERMUTATIONS // rows
    state = np.broadcast_to(draws(_SEED, 3, np.arange(bands)), (len(signature), bands))
    cut = signature[:, : bands * rows].reshape(len(signature), bands, rows)
    for row in range(rows):
        state = draws(state, cut[:, :, row])
    return np.asarray(state)


def jaccard(left: U64, right: U64) -> float:
    """The Jaccard similarity of two ascending arrays of distinct hashes."""
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / max(len(left) + len(right) - both, 1)
