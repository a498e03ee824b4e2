"""Held-out metrics by language: MLM loss, perplexity and accuracy, NSP accuracy, with counts.

Any number of ranks gives exactly the same metrics. The micro-batches do not depend on the number of ranks,
and the sums are fixed-point integers, which can be added in any order.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schemas.errors import BertmillError, ConfigError, CorpusError
from trainer.data.corpus import Corpus
from trainer.data.order import SampleOrder
from trainer.data.packing import gather_rows, pack, row_lengths
from trainer.data.rows import ShardRows
from trainer.distributed.ranks import Ranks, single_rank
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import STATISTICS, PretrainingLoss
from trainer.model.pretraining import BertPretraining
from trainer.monitoring.metrics import metrics_by_language, total_metrics
from trainer.monitoring.records import PretrainingMetrics

# A sum of 10^9 token losses of 12 still fits into an int64 in units of 2^-20.
_UNIT = 1 << 20
ALL = "all"
_ORDER_SEED = 0


class HeldOut:
    """The first ``rows`` rows (None: all) of a corpus' validation split, in micro-batches.

    The rows come from row groups in a fixed random order, so that a part of them has all languages. Rank 0
    reads the lengths for all ``ranks``, which must construct it together. Raises CorpusError when the corpus
    has no validation rows of ``max_seq_length``, ConfigError when ``micro_batch_tokens`` cannot hold one.
    """

    def __init__(
        self,
        corpus: Corpus,
        max_seq_length: int,
        micro_batch_tokens: int,
        rows: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        if micro_batch_tokens < max_seq_length:
            raise ConfigError(
                f"micro_batch_tokens {micro_batch_tokens} cannot hold a row of {max_seq_length}"
            )
        passes = corpus.passes(max_seq_length, "validation")
        if not passes:
            raise CorpusError(
                f"{corpus.uri}: no validation rows of length {max_seq_length}; set"
                " instances.validation_share above 0 and build the corpus again"
            )
        self.max_seq_length = max_seq_length
        self.languages = corpus.languages
        self._rows = ShardRows(passes[:1], corpus.limits(max_seq_length))
        order = SampleOrder([passes[0].rows], _ORDER_SEED)
        total = order.cycle_rows
        self._places = order.locate(np.arange(min(rows or total, total), dtype=np.int64))
        self._bounds = _micro_batch_bounds(self._lengths(ranks or single_rank()), micro_batch_tokens)

    def _lengths(self, ranks: Ranks) -> npt.NDArray[np.int64]:
        error: BertmillError | None = None
        lengths: npt.NDArray[np.int64] | None = None
        if ranks.rank == 0:
            try:
                lengths = row_lengths(self._places, self._rows, read_groups=False)
            except BertmillError as caught:
                error = caught
        ranks.fail_together(error)
        shared: npt.NDArray[np.int64] = ranks.broadcast_from_rank0(lengths)
        return shared

    def __len__(self) -> int:
        """Number of micro-batches."""
        return len(self._bounds) - 1

    def batch(self, number: int) -> MicroBatch:
        """Reads micro-batch ``number``. Raises CorpusError for rows that break an invariant."""
        chosen = slice(self._bounds[number], self._bounds[number + 1])
        table = gather_rows(self._places, chosen, self._rows)
        return pack(table, np.arange(len(table.lengths)), self.max_seq_length)


def _micro_batch_bounds(lengths: npt.NDArray[np.int64], budget: int) -> list[int]:
    """Bounds of runs of consecutive rows with at most ``budget`` tokens each."""
    bounds, used = [0], 0
    for row, length in enumerate(lengths.tolist()):
        if used + length > budget:
            bounds.append(row)
            used = 0
        used += length
    return [*bounds, len(lengths)]


def evaluate(
    model: BertPretraining, held_out: HeldOut, ranks: Ranks, dtype: torch.dtype = torch.float32
) -> dict[str, PretrainingMetrics]:
    """Like `evaluate_until`, without a stop."""
    metrics = evaluate_until(model, held_out, ranks, dtype, stop=lambda: False)
    assert metrics is not None  # noqa: S101 - nothing stops it
    return metrics


def evaluate_until(
    model: BertPretraining, held_out: HeldOut, ranks: Ranks, dtype: torch.dtype, *, stop: Callable[[], bool]
) -> dict[str, PretrainingMetrics] | None:
    """Metrics for "all" and for each language that has rows, the same on every rank.

    The model is on the ranks' device and computes in ``dtype`` under autocast. Every rank makes the same
    collective calls, for any share of the rows. Returns None as soon as ``stop`` is true on one of them.
    Raises CorpusError on all ranks when one of them cannot read its rows.
    """
    sums = torch.zeros(len(held_out.languages), len(STATISTICS), dtype=torch.int64, device=ranks.device)
    share = _Share(sums, model, held_out, ranks, dtype)
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(held_out), ranks.world_size):
            batch = share.read(first + ranks.rank)
            # Each of these sums takes a fraction of the time of a micro-batch.
            failed, stopped = ranks.sum_on_host([int(share.error is not None), int(stop())])
            if failed:
                break
            if stopped:
                return None
            if batch is not None:
                share.add(batch, counts=first + ranks.rank < len(held_out))
    finally:
        model.train(was_training)
    ranks.fail_together(share.error)
    statistics = ranks.sum_on_device(sums).cpu().double() / _UNIT
    return {ALL: total_metrics(statistics), **metrics_by_language(statistics, held_out.languages)}


class _Share:
    """Adds the statistics of this rank's micro-batches to ``sums``, in units of 2^-20."""

    def __init__(
        self, sums: Tensor, model: BertPretraining, held_out: HeldOut, ranks: Ranks, dtype: torch.dtype
    ) -> None:
        self.error: BertmillError | None = None
        """Why a micro-batch could not be read."""
        self._sums, self._held_out, self._device, self._dtype = sums, held_out, ranks.device, dtype
        self._objective = PretrainingLoss(model, len(held_out.languages))
        self._ones = torch.ones(4, dtype=torch.int64, device=ranks.device)

    def read(self, number: int) -> MicroBatch | None:
        """Micro-batch ``number``, or the last one if there are fewer. Sets ``error`` if it cannot be read."""
        try:
            return self._held_out.batch(min(number, len(self._held_out) - 1)).to(self._device)
        except BertmillError as error:
            self.error = error
            return None

    def add(self, batch: MicroBatch, *, counts: bool) -> None:
        """Adds ``batch`` if it ``counts``. It is always computed, because ranks with sharded weights gather
        them together.
        """
        enabled = self._dtype != torch.float32
        with torch.no_grad(), torch.autocast(self._device.type, self._dtype, enabled=enabled):
            statistics = self._objective(batch, self._ones).statistics
        if counts:
            self._sums += (statistics.double() * _UNIT).round().long()
