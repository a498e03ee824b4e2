"""Plans the rows of a bucket as ranges of its tokens, before copying any tokens."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.arrays import I64
from schemas.masking.targets import Ids, Keys
from schemas.randomness import below, uniform

# The purpose of a draw about a row: the second part of its key.
SHORT, TARGET, SPLIT, NEXT, PARTNER, PARTNER_START, CUT_A, CUT_B, ORDER, MASKS = range(1, 11)


@dataclass
class RowPlan:
    """R rows in the order of their documents. Segments are ranges [start, stop) of ``ids``."""

    ids: Ids
    """Flat subwords that the ranges point into."""
    a_start: I64
    a_stop: I64
    b_start: I64
    b_stop: I64
    """[R] each. A row without a segment B has b_start == b_stop."""
    label: npt.NDArray[np.int8]
    """[R] as in schemas.labels.LABEL_CONVENTIONS."""
    document: I64
    """[R] the document of segment A."""
    key: Keys
    """[R] random keys."""
    owned: I64
    """[R] tokens of the document that only this row accounts for."""
    used: I64
    """[R] owned tokens in the row. The others were cut to fit the length."""
    reused: I64
    """[R] tokens in the row that another row accounts for (a random B, a repeated A)."""
    left_over: dict[str, I64] = field(default_factory=dict)
    """Reason -> [languages] tokens that no row accounts for."""
    events: dict[str, I64] = field(default_factory=dict)
    """Event -> [languages] how often it happened."""

    def lengths(self) -> I64:
        """[R] length of each row with its two or three special tokens."""
        b_size = self.b_stop - self.b_start
        return self.a_stop - self.a_start + 2 + b_size + (b_size > 0)

    def select(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> None:
        """Keeps only these rows, in this order."""
        for name in ("a_start", "a_stop", "b_start", "b_stop", "label", "document", "key", "owned", "used",
                     "reused"):  # fmt: skip
            setattr(self, name, getattr(self, name)[rows])


def targets(keys: Keys, longest: int, short_probability: float) -> I64:
    """[S] target length of a row that starts at each sentence: ``longest``, or uniform in [2, longest]."""
    aim = np.full(keys.size, longest, np.int64)
    if short_probability > 0:
        short = np.flatnonzero(uniform(keys, SHORT) < short_probability)
        aim[short] = 2 + below(longest - 1, keys[short], TARGET)
    return aim


def walk(following: I64) -> I64:
    """The chain 0, following[0], following[following[0]] ... up to the end of the array.

    >>> walk(np.array([2, 3, 3, 4]))
    array([0, 2, 3])
    """
    steps = following.tolist()
    place, end = 0, len(steps)
    visited = []
    while place < end:
        visited.append(place)
        place = steps[place]
    return np.array(visited, dtype=np.int64)


def by_language(language: I64, languages: int, amounts: npt.NDArray[np.integer] | None = None) -> I64:
    """[languages] sum of ``amounts`` (or the number of elements) for each language. Exact below 2^53."""
    weights = None if amounts is None else amounts.astype(np.float64)
    return np.bincount(language, weights=weights, minlength=languages).astype(np.int64)
