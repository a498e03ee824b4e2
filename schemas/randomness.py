"""Counter-based randomness: every draw is a pure function of (seed, key, counter).

There is no generator state, so a draw does not depend on arrival order, worker or restart. The mixer is the
finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014),
applied once for each part of a key.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from schemas.arrays import I64, U64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def key_from_text(*parts: str | int) -> int:
    """The 64-bit key for all draws about a document, a language, a pass and so on.

    >>> key_from_text("de", 0) == key_from_text("de0")
    False
    """
    encoded: list[bytes] = []
    for part in parts:
        raw = str(part).encode("utf-8", "surrogatepass")
        encoded += (len(raw).to_bytes(8, "little"), raw)
    return int.from_bytes(hashlib.blake2b(b"".join(encoded), digest_size=8).digest(), "little")


def _mix(bits: U64) -> U64:
    """Mixes in place with a single temporary array, because allocation dominates for large arrays."""
    shifted = np.asarray(bits >> np.uint64(30))
    for multiplier, shift in ((_MIX_A, np.uint64(27)), (_MIX_B, np.uint64(31))):
        bits ^= shifted
        bits *= multiplier
        np.right_shift(bits, shift, out=shifted)
    bits ^= shifted
    return bits


def draws(*key: int | npt.NDArray[np.integer]) -> U64:
    """64 random bits for every element of the broadcast parts of ``key`` (seed, key, counter, ...).

    The order of the parts matters. Scalars give a 0-d array.
    """
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in key:
            value = np.uint64(part & _MASK) if isinstance(part, int) else np.asarray(part).astype(np.uint64)
            state = _mix(np.asarray((state ^ value) + _GOLDEN))
        return _mix(np.asarray(state + _GOLDEN))


def stream(keys: U64, counters: npt.NDArray[np.integer]) -> U64:
    """64 random bits for every element of the broadcast arrays: output ``counter`` of SplitMix64(key).

    Cheaper than `draws` for many counters with one key.
    """
    with np.errstate(over="ignore"):
        return _mix(np.asarray(keys + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN))


def unit_interval(bits: U64) -> npt.NDArray[np.float64]:
    """Doubles in [0, 1) from the upper 53 of 64 random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))


def uniform(*key: int | npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Doubles in [0, 1) with 53 random bits, for every element of the broadcast parts of ``key``."""
    return unit_interval(draws(*key))


def below(bound: int | npt.NDArray[np.integer], *key: int | npt.NDArray[np.integer]) -> I64:
    """Integers in [0, bound). The bias of one part in 2^53 / bound is too small to measure."""
    return np.floor(uniform(*key) * np.asarray(bound, dtype=np.float64)).astype(np.int64)


def permutation(size: int, *key: int) -> I64:
    """A permutation of range(size): the order of the hashes of the indices, keyed by ``key``.

    >>> permutation(4, 12345).tolist() == permutation(4, 12345).tolist()
    True
    """
    keys = draws(*key, np.arange(size, dtype=np.uint64))
    return np.argsort(keys, kind="stable").astype(np.int64)
