"""The pretraining loss as sums over tokens and pairs, divided by counts of the whole global batch.

Loss = (sum of token losses) / (masked tokens of the global batch)
     + (sum of pair losses)  / (labelled pairs of the global batch).

The global batch is everything between two optimizer steps: all ranks, all micro-batches. As both
divisors are the same for every part of it, gradients of the parts simply add up, however the rows
fall on ranks and micro-batches, and a part without any masked token adds 0. Reduce gradients over
ranks with a SUM; where a wrapper takes the mean (DDP's default), multiply the loss by the world size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.shards import NO_LABEL
from trainer.microbatch import NO_SAMPLE, NO_TARGET, MicroBatch
from trainer.model import BertPretraining, PretrainingOutput

# Columns of LossSums.statistics; sums and counts, so that they add up over micro-batches and ranks.
STATISTICS = (
    "token_loss",
    "token_count",
    "token_correct",
    "pair_loss",
    "pair_count",
    "pair_correct",
    # Pairs labelled 1 (random or swapped) and, of these, the ones that were recognised.
    "pair_second",
    "pair_second_correct",
    "sequences",
)
TOKEN_LOSS, TOKEN_COUNT, TOKEN_CORRECT, PAIR_LOSS, PAIR_COUNT, PAIR_CORRECT, *_ = range(len(STATISTICS))


class LossSums(NamedTuple):
    """The loss of a micro-batch, to be differentiated, and what the metrics need."""

    loss: Tensor
    """fp32 scalar: this micro-batch's share of the global batch's loss."""
    statistics: Tensor
    """fp32 [languages, len(STATISTICS)], detached, on the model's device."""


def batch_totals(batches: list[MicroBatch]) -> Tensor:
    """int64 [3]: masked tokens, labelled pairs and all tokens in ``batches``, on their device.

    Summed over all ranks these are the divisors of the step; fillers are in none of them.
    """
    tokens = torch.stack([(batch.masked_ids != NO_TARGET).sum() for batch in batches]).sum()
    pairs = torch.stack([(batch.next_sentence_labels != NO_LABEL).sum() for batch in batches]).sum()
    words = torch.stack([real_tokens(batch).sum() for batch in batches]).sum()
    return torch.stack([tokens, pairs, words])


def real_tokens(batch: MicroBatch) -> Tensor:
    """Bool [T]: the tokens that do not belong to a filler."""
    token = torch.arange(batch.tokens, device=batch.cu_seqlens.device)
    sequence = torch.searchsorted(batch.cu_seqlens[1:].long(), token, right=True)
    return batch.sample_ids[sequence] != NO_SAMPLE


class PretrainingLoss(nn.Module):
    """A model with its loss: what is compiled, and what a data-parallel wrapper wraps.

    ``languages`` is the number of languages of the manifest, the rows of the statistics.
    """

    def __init__(self, model: BertPretraining, languages: int = 1) -> None:
        super().__init__()
        self.model = model
        self.languages = languages
        self._after_encoder: Callable[[Tensor, Tensor | None, MicroBatch, Tensor], LossSums] = self._of_states

    def forward(self, batch: MicroBatch, totals: Tensor) -> LossSums:
        """The loss of ``batch`` within a global batch of ``totals``, as from batch_totals."""
        hidden = self.model.encode(batch)
        masked = hidden.index_select(0, batch.masked_index)
        return self._after_encoder(masked, self.model.first_tokens(hidden, batch), batch, totals)

    def compile_after_encoder(self, mode: str | None = None) -> None:
        """Compiles what comes after the encoder only, for an encoder that has kernels of its own."""
        self._after_encoder = torch.compile(self._of_states, mode=mode)

    def _of_states(self, masked: Tensor, first: Tensor | None, batch: MicroBatch, totals: Tensor) -> LossSums:
        return self.of_output(self.model.heads_at(masked, first), batch, totals)

    def of_output(self, output: PretrainingOutput, batch: MicroBatch, totals: Tensor) -> LossSums:
        """The loss of what the model's heads said about ``batch``."""
        token_losses = losses_of(output.padded_token_logits, batch.masked_ids)
        divisors = totals.clamp(min=1)
        loss = token_losses.sum() / divisors[0]
        if output.pair_logits is None:
            pair_losses = pair_logits = None
        else:
            pair_logits = output.pair_logits
            pair_losses = losses_of(pair_logits, batch.next_sentence_labels)
            loss = loss + pair_losses.sum() / divisors[1]
        with torch.no_grad():
            statistics = self._token_statistics(output.padded_token_logits, token_losses, batch)
            statistics = statistics + self._pair_statistics(pair_logits, pair_losses, batch)
        return LossSums(loss, statistics)

    def _token_statistics(self, logits: Tensor, losses: Tensor, batch: MicroBatch) -> Tensor:
        """token_loss, token_count, token_correct by language, in a matrix of all statistics."""
        real = batch.masked_ids != NO_TARGET
        correct = (logits.argmax(-1) == batch.masked_ids) & real
        sequence = torch.searchsorted(batch.cu_seqlens[1:].long(), batch.masked_index, right=True)
        columns = torch.stack([losses, real.float(), correct.float()], dim=1)
        return self._by_language(batch.lang_ids[sequence], columns, TOKEN_LOSS)

    def _pair_statistics(self, logits: Tensor | None, losses: Tensor | None, batch: MicroBatch) -> Tensor:
        """The other columns, in a matrix of all statistics."""
        sequences = (batch.lang_ids >= 0).float()
        if logits is None or losses is None:
            nothing = torch.zeros_like(sequences)
            columns = torch.stack([nothing] * 5 + [sequences], dim=1)
        else:
            labels = batch.next_sentence_labels
            correct = (logits.argmax(-1) == labels).float()
            second = (labels == 1).float()
            columns = torch.stack(
                [losses, (labels != NO_LABEL).float(), correct, second, second * correct, sequences],
                dim=1,
            )
        return self._by_language(batch.lang_ids, columns, PAIR_LOSS)

    def _by_language(self, lang_ids: Tensor, columns: Tensor, first: int) -> Tensor:
        """``columns`` [n, k] summed by language into columns first, first + 1, ... of the statistics.

        A product with a one-hot matrix: the order of the sum is fixed, as that of index_add is not.
        """
        languages = torch.arange(self.languages, device=lang_ids.device)
        belongs = (lang_ids[None, :] == languages[:, None]).to(columns.dtype)
        with torch.autocast(columns.device.type, enabled=False):
            sums = belongs @ columns
        return F.pad(sums, (first, len(STATISTICS) - first - columns.shape[1]))


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """fp32 cross-entropy [n] of ``logits`` [n, classes]; 0 where the label is negative.

    Works for n = 0 and for rows without any label, where a mean would be 0 / 0. Class 0 counts like
    every other.
    """
    return F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="none")
