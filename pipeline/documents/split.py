"""The held-out split: which documents are for validation, by a hash of their text and the seed."""

from dataclasses import dataclass

import numpy as np

from schemas.arrays import Flags
from schemas.randomness import key_from_text, uniform


@dataclass(frozen=True)
class Split:
    """The held-out share and the seed that chooses it."""

    seed: int
    validation_share: float

    def is_validation(self, content_hashes: list[bytes]) -> Flags:
        """[documents] whether each is held out, by text and seed, so equal texts fall on the same side."""
        keys = np.array([int.from_bytes(value[8:], "little") for value in content_hashes], dtype=np.uint64)
        return uniform(self.seed, key_from_text("split"), keys) < self.validation_share
