"""Training orders without a corpus."""

import numpy as np

from trainer.data.group_order import PassRows
from trainer.data.order import SampleOrder


def pass_rows(shards: list[int], group_rows: int = 1024) -> PassRows:
    """A pass of shards with these rows."""
    return PassRows(sum(shards), group_rows, lambda: np.array(shards, dtype=np.int64))


def order_of(passes: list[tuple[list[int], int]], seed: int, window: int = 1) -> SampleOrder:
    """Each pass is the rows of its shards and the rows of a row group."""
    return SampleOrder([pass_rows(*one) for one in passes], seed, window)
