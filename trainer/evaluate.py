"""Held-out figures by language: masked LM loss, perplexity and accuracy, pair accuracy, with counts.

The rows are cut into the same micro-batches whatever the number of ranks, and sums are kept as
fixed-point integers, whose order of addition does not matter: one rank and many give equal figures.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schemas.errors import BertmillError, ConfigError, CorpusError
from trainer.corpus import Corpus
from trainer.microbatch import MicroBatch
from trainer.model import BertPretraining
from trainer.objectives import STATISTICS, PretrainingLoss
from trainer.order import SampleOrder
from trainer.packing import gather_rows, pack, row_lengths
from trainer.ranks import Ranks, alone
from trainer.rows import ShardRows

Figures = dict[str, float]
# A sum of 10^9 token losses of 12 still fits into an int64 in units of 2^-20.
_UNIT = 1 << 20
ALL = "all"
_ORDER_SEED = 0


class HeldOut:
    """The first ``rows`` rows (None: all) of a corpus' validation split, in micro-batches.

    Row groups are taken in a fixed random order, so that a part of the rows has all languages. Rank 0 reads
    the lengths of the rows for all ``ranks``, which must make it together. Raises CorpusError when the
    corpus has no validation rows of ``max_seq_length``, ConfigError when ``micro_batch_tokens`` cannot
    hold one.
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
            raise CorpusError(f"{corpus.uri}: no validation rows of length {max_seq_length}")
        self.max_seq_length = max_seq_length
        self.languages = corpus.languages
        self._rows = ShardRows(passes[:1], corpus.limits(max_seq_length))
        order = SampleOrder([[shard.row_groups for shard in passes[0]]], _ORDER_SEED)
        total = sum(sum(shard.row_groups) for shard in passes[0])
        self._places = order.locate(np.arange(min(rows or total, total), dtype=np.int64))
        self._bounds = _cut(self._lengths(ranks or alone()), micro_batch_tokens)

    def _lengths(self, ranks: Ranks) -> npt.NDArray[np.int64]:
        error: BertmillError | None = None
        lengths: npt.NDArray[np.int64] | None = None
        if ranks.rank == 0:
            try:
                lengths = row_lengths(self._places, self._rows, whole=False)
            except BertmillError as caught:
                error = caught
        ranks.fail_together(error)
        found: npt.NDArray[np.int64] = ranks.from_first(lengths)
        return found

    def __len__(self) -> int:
        """Micro-batches in all."""
        return len(self._bounds) - 1

    def batch(self, number: int) -> MicroBatch:
        """Micro-batch ``number``, from storage. Raises CorpusError for rows that break an invariant."""
        chosen = slice(self._bounds[number], self._bounds[number + 1])
        table = gather_rows(self._places, chosen, self._rows)
        return pack(table, np.arange(len(table.lengths)), self.max_seq_length)


def _cut(lengths: npt.NDArray[np.int64], budget: int) -> list[int]:
    """Bounds of runs of rows, each as long as ``budget`` tokens allow."""
    bounds, used = [0], 0
    for row, length in enumerate(lengths.tolist()):
        if used + length > budget:
            bounds.append(row)
            used = 0
        used += length
    return [*bounds, len(lengths)]


def evaluate(
    model: BertPretraining, held_out: HeldOut, ranks: Ranks, dtype: torch.dtype = torch.float32
) -> dict[str, Figures]:
    """Figures for "all" and for each language that has rows; the same on every rank.

    The model is on the ranks' device; ``dtype`` is what it computes in, under autocast. Every rank makes
    the same two collective calls, whatever share of the rows it has. Raises CorpusError on all ranks when
    one of them cannot read its rows.
    """
    sums = torch.zeros(len(held_out.languages), len(STATISTICS), dtype=torch.int64, device=ranks.device)
    error: BertmillError | None = None
    was_training = model.training
    model.eval()
    try:
        _add_share(sums, model, held_out, ranks, dtype)
    except BertmillError as caught:
        error = caught
    finally:
        model.train(was_training)
    ranks.fail_together(error)
    return figures_by_language(ranks.sum_on_device(sums).cpu().double() / _UNIT, held_out.languages)


def _add_share(
    sums: Tensor, model: BertPretraining, held_out: HeldOut, ranks: Ranks, dtype: torch.dtype
) -> None:
    """Adds the statistics of this rank's micro-batches to ``sums``, in units of 2^-20."""
    objective = PretrainingLoss(model, len(held_out.languages))
    ones = torch.ones(3, dtype=torch.int64, device=ranks.device)
    with torch.no_grad(), torch.autocast(ranks.device.type, dtype, enabled=dtype != torch.float32):
        for number in range(ranks.rank, len(held_out), ranks.world_size):
            batch = held_out.batch(number).to(ranks.device)
            sums += (objective(batch, ones).statistics.double() * _UNIT).round().long()


def figures_by_language(statistics: Tensor, languages: Sequence[str]) -> dict[str, Figures]:
    """Figures from sums [languages, len(STATISTICS)]; languages without a row are left out."""
    found = {ALL: _figures(statistics.sum(0))}
    for number, language in enumerate(languages):
        if statistics[number, STATISTICS.index("sequences")] > 0:
            found[language] = _figures(statistics[number])
    return found


def _figures(row: Tensor) -> Figures:
    sums: dict[str, float] = dict(zip(STATISTICS, row.tolist(), strict=True))
    first = sums["pair_count"] - sums["pair_second"]
    ratios = {
        "loss": ("token_loss", sums["token_count"]),
        "accuracy": ("token_correct", sums["token_count"]),
        "pair_loss": ("pair_loss", sums["pair_count"]),
        "pair_accuracy": ("pair_correct", sums["pair_count"]),
        # Of the pairs with label 0 and of those with label 1: a head that always says the same has 1
        # and 0 here.
        "pair_accuracy_0": ("pair_first_correct", first),
        "pair_accuracy_1": ("pair_second_correct", sums["pair_second"]),
        "pair_share_1": ("pair_second", sums["pair_count"]),
    }
    sums |= {"pair_first_correct": sums["pair_correct"] - sums["pair_second_correct"]}
    figures: Figures = {
        "sequences": round(sums["sequences"]),
        "masked_tokens": round(sums["token_count"]),
        "pairs": round(sums["pair_count"]),
        # What there is nothing of has no mean and is left out.
        **{name: sums[total] / count for name, (total, count) in ratios.items() if count},
    }
    if "loss" in figures:
        figures["perplexity"] = math.exp(min(figures["loss"], 700.0))
    return figures
