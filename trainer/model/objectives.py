"""The pretraining loss as sums over tokens and pairs, divided by counts of the whole global batch.

Loss = (sum of MLM losses) / (masked tokens of the global batch)
     + (sum of NSP losses) / (labeled pairs of the global batch).

The global batch is everything between two optimizer steps: all ranks, all micro-batches. Both divisors are
the same for every part of it. The gradients of the parts therefore add up to the gradient of the whole for
any distribution over ranks and micro-batches, and a part without any masked token adds 0. Reduce gradients
over ranks with a SUM. A wrapper that takes the mean (DDP's default) needs the loss multiplied by the world
size.

An objective from outside the package adds a third term, see Objective.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.errors import BertmillError, PluginError
from schemas.labels import NO_LABEL
from schemas.plugins import is_raised_by, plugin_error
from trainer.model.chunked_loss import TokenLosses, chunked_token_losses
from trainer.model.microbatch import NO_SAMPLE, NO_TARGET, MicroBatch
from trainer.model.pretraining import BertPretraining, PretrainingOutput

# Columns of LossSums.statistics: sums and counts, which add up over micro-batches and ranks.
STATISTICS = (
    "mlm_loss",
    "mlm_count",
    "mlm_correct",
    "nsp_loss",
    "nsp_count",
    "nsp_correct",
    # Pairs labeled 1 (random or swapped), and how many of these were predicted correctly.
    "nsp_label_1",
    "nsp_label_1_correct",
    "sequences",
    # Of the objective that the config adds.
    "objective_loss",
    "objective_count",
)
_MLM_LOSS, _NSP_LOSS, _OBJECTIVE_LOSS = (
    STATISTICS.index(name) for name in ("mlm_loss", "nsp_loss", "objective_loss")
)

OBJECTIVE_MODULE = "objective"
"""Name of the submodule of the model that holds the parameters of an Objective."""


class LossSums(NamedTuple):
    """The loss of a micro-batch, to be differentiated, and the sums for the metrics."""

    loss: Tensor
    """fp32 scalar: this micro-batch's share of the global batch's loss."""
    statistics: Tensor
    """fp32 [languages, len(STATISTICS)], detached, on the model's device."""


class Targets(NamedTuple):
    """How many targets a global batch has: the divisors of its loss. Fillers count in none of them."""

    masked_tokens: int
    pairs: int
    """Labeled sentence pairs."""
    tokens: int
    """All real tokens."""
    objective: int = 0
    """Targets of the objective that the config adds."""


class Objective(nn.Module, ABC):
    """An additional training objective, which a config names as ``objective.use: my_package.module:Name``.

    The class is called with the model's config and ``objective.settings`` as keyword arguments. Its
    parameters are trained and saved with the model. The loss that it adds is the sum of ``forward`` over
    the global batch, divided by the sum of ``count_targets`` over the global batch, so it does not depend
    on the number of ranks or micro-batches.
    """

    @abstractmethod
    def count_targets(self, batch: MicroBatch) -> Tensor:
        """int64 [n]: how many targets each sequence of ``batch`` has, or 0 for fillers (see real_sequences).

        The reader calls it with tensors in host memory. ``forward`` may call it on the device.
        """

    @abstractmethod
    def forward(self, model: BertPretraining, hidden: Tensor, batch: MicroBatch) -> Tensor:
        """fp32 [n]: the sum of the losses of each sequence's targets.

        ``hidden`` [T, hidden size] are the model's last hidden states of the packed tokens.
        """


def checked_per_sequence(objective: Objective, method: str, values: Any, batch: MicroBatch) -> Tensor:
    """``values``, which ``method`` returned. Raises PluginError unless it is a number for each sequence."""
    if isinstance(values, Tensor) and values.shape == batch.sample_ids.shape:
        return values
    kind = type(objective)
    got = (
        f"the shape {tuple(values.shape)}"
        if isinstance(values, Tensor)
        else f"the type {type(values).__name__}"
    )
    raise PluginError(
        f"{kind.__module__}:{kind.__name__}: {method} returned {got}; it must return a tensor of the shape "
        f"({batch.sequences},), with a number for each sequence"
    )


def objective_error(use: str, error: Exception) -> Exception:
    """``error``, or a PluginError of one line if the code of the objective ``use`` raised it.

    Errors of the device pass through, because they may appear at any line and a restart may fix them.
    """
    passes = (BertmillError, torch.OutOfMemoryError, torch.AcceleratorError, MemoryError)
    if isinstance(error, passes) or not is_raised_by(use, error):
        return error
    return plugin_error(use, "objective", error)


def batch_totals(batches: list[MicroBatch]) -> Tensor:
    """int64 [4]: the Targets of ``batches`` without an added objective, on their device.

    The loop counts on the host instead. This is for training steps outside of it.
    """
    masked = torch.stack([(batch.masked_ids != NO_TARGET).sum() for batch in batches]).sum()
    pairs = torch.stack([(batch.next_sentence_labels != NO_LABEL).sum() for batch in batches]).sum()
    tokens = torch.stack([real_tokens(batch).sum() for batch in batches]).sum()
    return torch.stack([masked, pairs, tokens, torch.zeros_like(tokens)])


def real_sequences(batch: MicroBatch) -> Tensor:
    """Bool [n]: the sequences that are not fillers."""
    return batch.sample_ids != NO_SAMPLE


def real_tokens(batch: MicroBatch) -> Tensor:
    """Bool [T]: the tokens that are not part of a filler."""
    token = torch.arange(batch.tokens, device=batch.cu_seqlens.device)
    sequence = torch.searchsorted(batch.cu_seqlens[1:].long(), token, right=True)
    return real_sequences(batch)[sequence]


class PretrainingLoss(nn.Module):
    """A model with its loss: the module that is compiled and that a data-parallel wrapper wraps.

    ``languages`` is the number of languages in the manifest, the rows of the statistics.
    """

    def __init__(self, model: BertPretraining, languages: int = 1) -> None:
        super().__init__()
        self.model = model
        self.languages = languages
        self.z_loss = 0.0
        """Weight of the squared log of the MLM softmax's sum (PaLM, Chowdhery et al. 2022)."""
        self.chunk = 0
        """Targets whose logits exist at a time. 0 computes all logits at once."""
        self.compile_chunks = False
        """Whether what follows the product of each chunk is compiled."""
        self._after_encoder: Callable[[Tensor, Tensor | None, MicroBatch, Tensor], LossSums] = self._of_states

    def forward(self, batch: MicroBatch, totals: Tensor) -> LossSums:
        """The loss of ``batch`` in a global batch with ``totals`` targets, int64 [4] as in Targets."""
        masked, first = self.model.encode_used(batch)
        return self._after_encoder(masked, first, batch, totals)

    def compile_after_encoder(self, mode: str | None = None, *, dynamic: bool | None = None) -> None:
        """Compiles only the part after the encoder, for an encoder with hand-written kernels."""
        self._after_encoder = torch.compile(self._of_states, mode=mode, dynamic=dynamic)

    def _of_states(self, masked: Tensor, first: Tensor | None, batch: MicroBatch, totals: Tensor) -> LossSums:
        fused = self.model.encoder.fused
        if not self.chunk and not fused:
            return self.of_output(self.model.heads_at(masked, first), batch, totals)
        head, targets = self.model.token_head, batch.masked_ids
        states, table = head.transform(masked), head.table(self.model.word_weight)
        token_losses = chunked_token_losses(
            states, table, head.padded_bias(), targets, chunk=self.chunk or max(1, targets.shape[0]),
            z_loss=self.z_loss, compiled=self.compile_chunks, fused=fused,
        )  # fmt: skip
        return self._with_pairs(token_losses, self.model.pair_logits_at(first), batch, totals)

    def of_output(self, output: PretrainingOutput, batch: MicroBatch, totals: Tensor) -> LossSums:
        """The loss of the heads' logits ``output`` for ``batch``."""
        logits = output.padded_token_logits
        losses = cross_entropy_per_target(logits, batch.masked_ids)
        total = losses.sum()
        if self.z_loss:
            log_sums = logits.float().logsumexp(-1)
            total = total + self.z_loss * (log_sums**2 * (batch.masked_ids != NO_TARGET)).sum()
        with torch.no_grad():
            predicted = logits.argmax(-1)
        return self._with_pairs(TokenLosses(total, losses, predicted), output.pair_logits, batch, totals)

    def _with_pairs(
        self, tokens: TokenLosses, pair_logits: Tensor | None, batch: MicroBatch, totals: Tensor
    ) -> LossSums:
        divisors = totals.clamp(min=1)
        loss = tokens.total / divisors[0]
        pair_losses = None
        if pair_logits is not None:
            pair_losses = cross_entropy_per_target(pair_logits, batch.next_sentence_labels)
            loss = loss + pair_losses.sum() / divisors[1]
        with torch.no_grad():
            statistics = self._token_statistics(tokens, batch)
            statistics = statistics + self._pair_statistics(pair_logits, pair_losses, batch)
        return LossSums(loss, statistics)

    def _token_statistics(self, tokens: TokenLosses, batch: MicroBatch) -> Tensor:
        """mlm_loss, mlm_count and mlm_correct by language, in a matrix of all statistics."""
        real = batch.masked_ids != NO_TARGET
        correct = (tokens.predicted == batch.masked_ids) & real
        sequence = torch.searchsorted(batch.cu_seqlens[1:].long(), batch.masked_index, right=True)
        columns = torch.stack([tokens.losses, real.float(), correct.float()], dim=1)
        return self.by_language(batch.lang_ids[sequence], columns, _MLM_LOSS)

    def _pair_statistics(self, logits: Tensor | None, losses: Tensor | None, batch: MicroBatch) -> Tensor:
        """The columns from nsp_loss to sequences, in a matrix of all statistics."""
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
        return self.by_language(batch.lang_ids, columns, _NSP_LOSS)

    def by_language(self, lang_ids: Tensor, columns: Tensor, first: int) -> Tensor:
        """``columns`` [n, k] summed by language into columns first, first + 1, ... of the statistics.

        This is a product with a one-hot matrix because it sums in a fixed order, which index_add does not.
        """
        languages = torch.arange(self.languages, device=lang_ids.device)
        belongs = (lang_ids[None, :] == languages[:, None]).to(columns.dtype)
        with torch.autocast(columns.device.type, enabled=False):
            sums = belongs @ columns
        return F.pad(sums, (first, len(STATISTICS) - first - columns.shape[1]))


def cross_entropy_per_target(logits: Tensor, labels: Tensor) -> Tensor:
    """fp32 cross-entropy [n] of ``logits`` [n, classes], or 0 where the label is -1.

    Works for n = 0 and for rows without any label, where a mean would be 0 / 0.
    """
    return F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="none")


class ObjectiveLoss(PretrainingLoss):
    """The pretraining loss and an Objective, each with its weight."""

    def __init__(
        self,
        model: BertPretraining,
        objective: Objective,
        languages: int = 1,
        *,
        weight: float = 1.0,
        pretraining_weight: float = 1.0,
    ) -> None:
        super().__init__(model, languages)
        # A part of the model, so that its parameters are trained and saved with it.
        model.add_module(OBJECTIVE_MODULE, objective)
        self._objective = (objective,)
        self._weight, self._pretraining_weight = weight, pretraining_weight

    def forward(self, batch: MicroBatch, totals: Tensor) -> LossSums:
        """See PretrainingLoss."""
        (objective,) = self._objective
        hidden = self.model.encode(batch)
        masked = hidden.index_select(0, batch.masked_index)
        pretraining = self._after_encoder(masked, self.model.first_tokens(hidden, batch), batch, totals)
        losses = checked_per_sequence(
            objective, "forward", objective(self.model, hidden, batch), batch
        ).float()
        loss = self._pretraining_weight * pretraining.loss
        loss = loss + self._weight * losses.sum() / totals.clamp(min=1)[3]
        with torch.no_grad():
            columns = torch.stack([losses, objective.count_targets(batch).float()], dim=1)
            statistics = self.by_language(batch.lang_ids, columns, _OBJECTIVE_LOSS)
        return LossSums(loss, pretraining.statistics + statistics)
