"""Names for the types of arrays, and sets of numbers as ascending arrays.

Since NumPy 2.3 `np.unique` uses a hash table, and `np.isin` sorts both sides at every call. With millions of
64-bit hashes, sorting once takes less than a twentieth of their time.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

Number = TypeVar("Number", bound=np.generic)


def distinct_values(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct ``values`` [N], ascending.

    >>> distinct_values(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(values)
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(repeats):
        return ordered
    first = np.ones(len(ordered), np.bool_)
    first[repeats + 1] = False
    return ordered[first]


def are_among(values: npt.NDArray[Any], ascending: npt.NDArray[Any]) -> Flags:
    """[N] whether each of ``values`` [N] occurs in ``ascending`` [M], which must be sorted."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    # Ascending lookups let neighboring values share cache lines.
    order = np.argsort(values)
    ordered = values[order]
    places = np.minimum(np.searchsorted(ascending, ordered), len(ascending) - 1)
    occurs = np.empty(len(values), np.bool_)
    occurs[order] = ascending[places] == ordered
    return occurs
