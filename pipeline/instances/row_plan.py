"""The plan of a bucket's rows: which stretches of its tokens make which row, before anything is copied."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.instances.bucket import Ints
from schemas.masking import Ids, Keys
from schemas.randomness import below, uniform

# What a draw about a row is for: the second word of its key.
SHORT, TARGET, SPLIT, NEXT, PARTNER, PARTNER_START, CUT_A, CUT_B, ORDER, MASKS = range(1, 11)


@dataclass
class RowPlan:
    """R rows in the order of their documents. Segments are stretches [start, stop) of ``ids``."""

    ids: Ids
    """Flat pieces that the stretches point into."""
    a_start: Ints
    a_stop: Ints
    b_start: Ints
    b_stop: Ints
    """[R] each; a row without a segment B has b_start == b_stop."""
    label: npt.NDArray[np.int8]
    """[R] as in schemas.shards.LABEL_CONVENTIONS."""
    document: Ints
    """[R] the document that the row is made for."""
    key: Keys
    """[R] random keys."""
    taken: Ints
    """[R] tokens of the document that this row, and no other, accounts for."""
    used: Ints
    """[R] those of them that the row holds; the rest was cut off to fit the length."""
    reused: Ints
    """[R] tokens that the row holds and another row accounts for (the random B, a repeated A)."""
    left_over: dict[str, Ints] = field(default_factory=dict)
    """Reason -> [languages] tokens that no row accounts for."""
    events: dict[str, Ints] = field(default_factory=dict)
    """Event -> [languages] how often it happened."""

    def lengths(self) -> Ints:
        """[R] length of each row with its two or three special tokens."""
        b_size = self.b_stop - self.b_start
        return self.a_stop - self.a_start + 2 + b_size + (b_size > 0)

    def select(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> None:
        """Keep these rows only, in this order."""
        for name in ("a_start", "a_stop", "b_start", "b_stop", "label", "document", "key", "taken", "used",
                     "reused"):  # fmt: skip
            setattr(self, name, getattr(self, name)[rows])


def targets(keys: Keys, longest: int, short_probability: float) -> Ints:
    """[S] length aimed at by a row that begins at each sentence: ``longest``, or uniform in [2, longest]."""
    aim = np.full(keys.size, longest, np.int64)
    if short_probability > 0:
        short = np.flatnonzero(uniform(keys, SHORT) < short_probability)
        aim[short] = 2 + below(longest - 1, keys[short], TARGET)
    return aim


def walk(following: Ints) -> Ints:
    """The chain 0, following[0], following[following[0]], ... up to the end of the array."""
    steps = following.tolist()
    place, end = 0, len(steps)
    visited = []
    while place < end:
        visited.append(place)
        place = steps[place]
    return np.array(visited, dtype=np.int64)


def by_language(language: Ints, languages: int, amounts: npt.NDArray[np.integer] | None = None) -> Ints:
    """[languages] sum of ``amounts`` (or the number of elements) for each language. Exact below 2^53."""
    weights = None if amounts is None else amounts.astype(np.float64)
    return np.bincount(language, weights=weights, minlength=languages).astype(np.int64)
