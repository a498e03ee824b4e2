"""Training order as a pure function: sample number -> (epoch, pass, shard, row group, row).

The build of the corpus shuffles the rows of each shard and spreads documents over shards by hash. An epoch
therefore only permutes the row groups, keyed by (seed, epoch), and then the rows in each window of row
groups, keyed by (seed, epoch, window). Samples are numbered from 0 through all epochs. Epoch ``e`` trains
pass ``e mod passes`` of the corpus. The global batch of a step is a range of sample numbers. The whole state
of a loader is thus one integer, a seek takes the same time at any position, and the order does not depend on
the number of ranks.

The numbers continue through the end of an epoch. A batch may therefore hold the last rows of one epoch and
the first rows of the next, and no row is ever dropped. Only the last batch of a phase given in epochs can be
smaller than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from schemas.arrays import I64
from schemas.errors import CorpusError
from schemas.randomness import key_from_text, permutation
from trainer.data.group_order import GroupOrder, PassRows

_GROUPS_TAG = key_from_text("trainer.order", "row groups")
_ROWS_TAG = key_from_text("trainer.order", "rows")


@dataclass(frozen=True)
class Places:
    """Where samples are stored. All arrays are int64 [samples].

    ``row`` counts inside the row group. ``row_id`` numbers the rows of all passes in the order of the
    manifest. It identifies a row in every epoch, and is the key of logs and masks.
    """

    epoch: I64
    corpus_pass: I64
    shard: I64
    row_group: I64
    row: I64
    row_id: I64

    def take(self, chosen: "I64 | slice") -> "Places":
        """The places at the indices ``chosen``."""
        return Places(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def grouping(self) -> I64:
        """The order that sorts the places by pass, shard, row group and row."""
        return np.lexsort((self.row, self.row_group, self.shard, self.corpus_pass))


class _EpochOrder:
    """One epoch: its permuted row groups, and the rows permuted in each window of them."""

    def __init__(self, rows: PassRows, seed: int, epoch: int, window: int) -> None:
        self._seed, self._epoch, self._window = seed, epoch, window
        self.groups = GroupOrder(rows, seed, _GROUPS_TAG, epoch)
        self._rows_of_window = lru_cache(maxsize=64)(self._permuted_rows)

    def _permuted_rows(self, window: int) -> tuple[int, I64]:
        """The position of a window's first row, and the permutation of its rows."""
        ends = np.minimum(np.array([window, window + 1]) * self._window, self.groups.groups)
        first, end = self.groups.starts(ends).tolist()
        return first, permutation(end - first, self._seed, _ROWS_TAG, self._epoch, window)

    def shuffled(self, index: I64) -> I64:
        """Positions inside the epoch -> positions in the concatenation of its permuted row groups."""
        place, _, _ = self.groups.find(index)
        window = place // self._window
        flat = np.empty_like(index)
        for number in np.unique(window).tolist():
            chosen = window == number
            first, rows = self._rows_of_window(number)
            flat[chosen] = first + rows[index[chosen] - first]
        return flat


class SampleOrder:
    """The order in which the rows of one sequence length are trained.

    ``window`` is the number of row groups whose rows are shuffled together.
    Raises CorpusError when a pass has no row.
    """

    def __init__(self, passes: Sequence[PassRows], seed: int, window: int = 1) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._passes = list(passes)
        empty = [index for index, rows in enumerate(self._passes) if rows.total == 0]
        if empty or not self._passes:
            raise CorpusError(f"pass {empty[0] if empty else 0} has no rows to train on")
        self._seed, self._window = seed, window
        totals = np.array([rows.total for rows in self._passes], dtype=np.int64)
        self._pass_starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(totals)])
        self._epoch_order = lru_cache(maxsize=2)(self._make_epoch_order)

    @property
    def passes(self) -> int:
        """Number of passes: the number of epochs before a pass repeats."""
        return len(self._passes)

    @property
    def cycle_rows(self) -> int:
        """Rows of all passes together."""
        return int(self._pass_starts[-1])

    def epoch_start(self, epoch: int) -> int:
        """The first sample number of ``epoch``."""
        cycle, corpus_pass = divmod(epoch, self.passes)
        return cycle * self.cycle_rows + int(self._pass_starts[corpus_pass])

    def epoch_of(self, sample: int) -> int:
        """The epoch that sample number ``sample`` belongs to."""
        cycle, inside = divmod(sample, self.cycle_rows)
        return cycle * self.passes + int(np.searchsorted(self._pass_starts, inside, side="right")) - 1

    def _make_epoch_order(self, epoch: int) -> _EpochOrder:
        return _EpochOrder(self._passes[epoch % self.passes], self._seed, epoch, self._window)

    def locate(self, samples: I64) -> Places:
        """The places of the sample numbers ``samples``, in their order."""
        samples = np.asarray(samples, dtype=np.int64)
        cycle, inside = np.divmod(samples, self.cycle_rows)
        corpus_pass = np.searchsorted(self._pass_starts, inside, side="right") - 1
        epoch = cycle * self.passes + corpus_pass
        index = inside - self._pass_starts[corpus_pass]
        shard, group, row, row_id = (np.empty_like(samples) for _ in range(4))
        for current in np.unique(epoch):
            chosen = epoch == current
            rows = self._passes[int(current) % self.passes]
            order = self._epoch_order(int(current))
            flat = order.shuffled(index[chosen])
            _, groups, starts = order.groups.find(flat)
            shard[chosen], group[chosen], first_row = rows.places(groups)
            row[chosen] = flat - starts
            row_id[chosen] = self._pass_starts[int(current) % self.passes] + first_row + row[chosen]
        return Places(epoch, corpus_pass, shard, group, row, row_id)
