"""Counter-based randomness: every draw is a pure function of (seed, key, counter).

No generator state exists, so a draw does not depend on arrival order, worker or restart.
The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
Number Generators, OOPSLA 2014), applied once for each word that is folded in.
"""

import hashlib

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def key_from_text(*parts: str | int) -> int:
    """The 64-bit key that names a thing (a document, a language, a pass) in every draw about it."""
    pieces: list[bytes] = []
    for part in parts:
        raw = str(part).encode("utf-8", "surrogatepass")
        pieces += (len(raw).to_bytes(8, "little"), raw)
    return int.from_bytes(hashlib.blake2b(b"".join(pieces), digest_size=8).digest(), "little")


def _mix(words: U64) -> U64:
    """Mix in place: no temporary beside one, which is what the time of large arrays goes into."""
    shifted = np.asarray(words >> np.uint64(30))
    for multiplier, shift in ((_MIX_A, np.uint64(27)), (_MIX_B, np.uint64(31))):
        words ^= shifted
        words *= multiplier
        np.right_shift(words, shift, out=shifted)
    words ^= shifted
    return words


def draws(*words: int | npt.NDArray[np.integer]) -> U64:
    """64 random bits for every element of the broadcast of ``words`` (seed, key, counter, ...).

    Order of the words matters. Scalars give a 0-d array.
    """
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            value = np.uint64(word & _MASK) if isinstance(word, int) else np.asarray(word).astype(np.uint64)
            state = _mix(np.asarray((state ^ value) + _GOLDEN))
        return _mix(np.asarray(state + _GOLDEN))


def stream(keys: U64, counters: npt.NDArray[np.integer]) -> U64:
    """64 random bits for every element of the broadcast: output number ``counter`` of SplitMix64(key).

    Cheaper than `draws` for many counters under one key.
    """
    with np.errstate(over="ignore"):
        return _mix(np.asarray(keys + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN))


def unit_interval(bits: U64) -> npt.NDArray[np.float64]:
    """Doubles in [0, 1) from the upper 53 of 64 random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))


def uniform(*words: int | npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Doubles in [0, 1), with 53 random bits, for every element of the broadcast of ``words``."""
    return unit_interval(draws(*words))


def below(
    bound: int | npt.NDArray[np.integer], *words: int | npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Integers in [0, bound); the bias of one part in 2^53 / bound is below what can be measured."""
    return np.floor(uniform(*words) * np.asarray(bound, dtype=np.float64)).astype(np.int64)


def permutation(size: int, *words: int) -> npt.NDArray[np.int64]:
    """A permutation of range(size) keyed by ``words``: the order of the keyed hashes of the indices."""
    keys = draws(*words, np.arange(size, dtype=np.uint64))
    return np.argsort(keys, kind="stable").astype(np.int64)
