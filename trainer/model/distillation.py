"""Distillation: a smaller student learns from a trained teacher's predictions and from masked tokens.

The recipe is DistilBERT's (Sanh et al. 2019): 5 x soft targets at temperature 2, 2 x MLM loss, 1 x cosine
loss of the last hidden states. The student starts with every second layer of its teacher.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from schemas.errors import ConfigError
from trainer.model.microbatch import NO_TARGET, MicroBatch
from trainer.model.objectives import LossSums, PretrainingLoss, real_tokens
from trainer.model.pretraining import BertPretraining

SoftTokens = Literal["all", "masked"]

_CHUNK = 2048
"""Tokens whose logits are in memory together, where soft targets are at all tokens."""


@dataclass(frozen=True)
class DistillationWeights:
    """The weight of each term of the loss, and what the soft targets are."""

    soft: float = 5.0
    token: float = 2.0
    hidden: float = 1.0
    temperature: float = 2.0
    soft_tokens: SoftTokens = "all"


class DistillationLoss(PretrainingLoss):
    """The student's loss. The teacher's parameters are not part of it and are never trained.

    soft: temperature^2 x the Kullback-Leibler divergence of the student's distribution from the teacher's,
    summed over all tokens, as in DistilBERT's code, or over masked tokens. token: the loss of
    PretrainingLoss, NSP included. hidden: 1 - cosine of the last hidden states, summed over all tokens.
    Each sum is divided by its count in the global batch.
    Raises ConfigError when the two models do not fit together.
    """

    def __init__(
        self,
        student: BertPretraining,
        teacher: BertPretraining,
        languages: int = 1,
        weights: DistillationWeights | None = None,
    ) -> None:
        super().__init__(student, languages)
        self.weights = weights or DistillationWeights()
        _check(student, teacher, self.weights)
        # In a tuple, so that it is not a submodule: not saved, not all-reduced, never in training mode.
        self._teacher = (teacher.eval().requires_grad_(requires_grad=False),)

    def forward(self, batch: MicroBatch, totals: Tensor) -> LossSums:
        """The loss of ``batch`` in a global batch with ``totals`` targets, int64 [4] as in Targets."""
        weights, (teacher,) = self.weights, self._teacher
        with torch.no_grad():
            teacher_hidden = teacher.encode(batch)
        hidden = self.model.encode(batch)
        hard = self.of_output(self.model.heads(hidden, batch), batch, totals)
        divisors = totals.clamp(min=1)
        loss = weights.token * hard.loss
        if weights.soft:
            loss = loss + weights.soft * self._soft(hidden, teacher_hidden, batch, divisors)
        if weights.hidden:
            angles = 1 - F.cosine_similarity(hidden.float(), teacher_hidden.float(), dim=-1)
            loss = loss + weights.hidden * (angles * real_tokens(batch)).sum() / divisors[2]
        return LossSums(loss, hard.statistics)

    def _soft(self, hidden: Tensor, teacher_hidden: Tensor, batch: MicroBatch, divisors: Tensor) -> Tensor:
        """The divergence from the teacher: its sum, divided by the count in the global batch."""
        if self.weights.soft_tokens == "masked":
            index = batch.masked_index
            counted = batch.masked_ids != NO_TARGET
            return self._divergence(hidden[index], teacher_hidden[index], counted) / divisors[0]
        parts = zip(
            hidden.split(_CHUNK), teacher_hidden.split(_CHUNK), real_tokens(batch).split(_CHUNK), strict=True
        )
        # The logits of a chunk are computed again in the backward pass: those of all tokens do not fit.
        sums = [
            checkpoint(self._divergence, *part, use_reentrant=False, preserve_rng_state=False)
            for part in parts
        ]
        return torch.stack(sums).sum() / divisors[2]

    def _divergence(self, hidden: Tensor, teacher_hidden: Tensor, counted: Tensor) -> Tensor:
        """The sum over the ``counted`` tokens, of hidden states [n, hidden], times temperature^2."""
        (teacher,) = self._teacher
        temperature = self.weights.temperature
        with torch.no_grad():
            theirs = teacher.token_head(teacher_hidden, teacher.word_weight)
        ours = self.model.token_head(hidden, self.model.word_weight)
        divergence = F.kl_div(
            F.log_softmax(ours.float() / temperature, dim=-1),
            F.log_softmax(theirs.float() / temperature, dim=-1),
            reduction="none",
            log_target=True,
        ).sum(-1)
        return (divergence * counted).sum() * temperature**2


def _check(student: BertPretraining, teacher: BertPretraining, weights: DistillationWeights) -> None:
    ours, theirs = student.config, teacher.config
    if ours.vocab_size != theirs.vocab_size:
        raise ConfigError(
            f"distillation.teacher: its vocabulary has {theirs.vocab_size} entries, the student's"
            f" {ours.vocab_size}; choose a teacher with the student's vocabulary"
        )
    if ours.max_positions > theirs.max_positions:
        raise ConfigError(
            f"distillation.teacher: it has {theirs.max_positions} positions, the student {ours.max_positions}"
            "; lower model.max_positions"
        )
    if weights.hidden and ours.hidden_size != theirs.hidden_size:
        raise ConfigError(
            f"distillation.hidden: the student's hidden size is {ours.hidden_size}, the teacher's"
            f" {theirs.hidden_size}; set distillation.hidden to 0"
        )


def layers_for_student(student: int, teacher: int) -> list[int]:
    """The teacher's layers that initialize a student of ``student`` layers: evenly from first to last.

    >>> layers_for_student(6, 12)  # as in DistilBERT
    [0, 2, 4, 7, 9, 11]
    """
    if student == 1:
        return [0]
    return [round(number * (teacher - 1) / (student - 1)) for number in range(student)]


def copy_from_teacher(student: BertPretraining, teacher: BertPretraining) -> None:
    """Initializes ``student`` with the teacher's embeddings, heads and evenly chosen layers.

    Raises ConfigError that names the first parameter that the teacher lacks or has in another shape.
    """
    chosen = layers_for_student(student.config.layers, teacher.config.layers)
    theirs = teacher.state_dict()
    values = {}
    for name, value in student.state_dict().items():
        source = name
        if name.startswith("encoder.layers.") and not student.config.share_layers:
            _, _, number, rest = name.split(".", 3)
            source = f"encoder.layers.{chosen[int(number)]}.{rest}"
        if source not in theirs or theirs[source].shape != value.shape:
            raise ConfigError(f"distillation.copy_layers: the teacher has no {source} of {list(value.shape)}")
        values[name] = theirs[source]
    student.load_state_dict(values, strict=True)
