"""The config of a phase, and of what the training data are like in each step: masks, languages, lengths."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.masking.targets import MaskUnit
from trainer.model.config import MayChange

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the config. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MaskRule(Section):
    """What dynamic masks select. A field that is left out has the value of the corpus's masking rule."""

    rate: Annotated[float, Field(gt=0, le=0.9)] | None = None
    """Share of the tokens to predict (BERT: 0.15; Wettig et al. 2022: more for larger models)."""
    end_rate: Annotated[float, Field(gt=0, le=0.9)] | None = None
    """Share in the last step. In between it falls or rises linearly (Ankner et al. 2023: 0.3 to 0.15)."""
    unit: MaskUnit | None = None
    """token, whole_word, span (SpanBERT) or ngram (ALBERT)."""
    mask_share: Share | None = None
    """Share of the predicted tokens that become [MASK]."""
    random_share: Share | None = None
    """Share of the predicted tokens that become a random subword. The others stay as they are."""

    @model_validator(mode="after")
    def _consistent(self) -> "MaskRule":
        if self.end_rate is not None and self.rate is None:
            raise ValueError("end_rate needs rate, the share in the first step")
        if (self.mask_share or 0) + (self.random_share or 0) > 1:
            raise ValueError("mask_share and random_share add up to more than 1")
        return self


class LanguageSampling(Section):
    """How often each language is trained: in proportion to its sequences to the power of ``exponent``."""

    exponent: Annotated[float, Field(ge=0, le=4)]
    """1 keeps the shares of the corpus, 0 trains all languages equally often (XLM-R: 0.3; mBERT: 0.7)."""
    end_exponent: Annotated[float, Field(ge=0, le=4)] | None = None
    """Exponent of the last step. In between it changes linearly (mmBERT: 0.7 to 0.3)."""
    pool: Annotated[int, Field(ge=2, le=32)] = 4
    """Sequences of the corpus, in its training order, for each one that is trained. A language can be
    at most this many times as frequent as in the corpus. Sequences that are not chosen may be chosen in the
    next epoch."""


class LengthWarmup(Section):
    """Sequence length warm-up: longer sequences are cut at the start of a phase (Li et al. 2021)."""

    start: Annotated[int, Field(ge=16, le=8192)]
    """Longest sequence in the first step, in tokens."""
    steps: Positive
    """Steps until no sequence is cut."""
    stairs: Annotated[int, Field(ge=1, le=1000)] = 8
    """Number of lengths before the full one."""


class BatchWarmup(Section):
    """Batch size warm-up: smaller global batches at the start of a phase, growing in equal steps."""

    start: Positive
    """Sequences in the first global batch."""
    steps: Positive
    """Steps until the full global batch."""
    stairs: Annotated[int, Field(ge=1, le=1000)] = 8
    """Number of sizes before the full one."""


class Phase(Section):
    """A part of the run with one sequence length."""

    max_seq_length: Annotated[int, Field(ge=16, le=8192)]
    """Sequence length. The corpus must have a set of this length."""
    global_batch: Positive
    """Sequences in a global batch, over all ranks and micro-batches."""
    micro_batch_tokens: MayChange[Positive]
    """Most tokens in a micro-batch, limited by the memory of a device. The global batch is split into
    micro-batches by gradient accumulation, which does not change the gradient."""
    steps: Positive | None = None
    """Optimizer steps. Give either steps or epochs."""
    epochs: Positive | None = None
    """Passes over the sequences of this length. The last batch may be smaller. A phase that follows one of
    the same length continues where that stopped, and has as many sequences as this number of passes."""
    learning_rate: Annotated[float, Field(gt=0, lt=10)]
    """Peak learning rate of the phase."""
    warmup: Annotated[float, Field(ge=0)] | None = None
    """With schedule.span phase: warm-up of this phase, in place of schedule.warmup."""
    batch_warmup: BatchWarmup | None = None
    """Start with a smaller global batch and let it grow."""
    length_warmup: LengthWarmup | None = None
    """Start with shorter sequences. Both segments of a pair stay. The longer one is cut first."""
    mask_rule: MaskRule | None = None
    """Masks of this phase, in place of the run's mask_rule. end_rate is that of the phase's last step."""
    rotary_base: Annotated[float, Field(gt=1)] | None = None
    """RoPE base of global layers in this phase, in place of model.rotary_base: a larger one for longer
    sequences (Xiong et al. 2023; ModernBERT: 10,000, then 160,000). An export takes that of the last step."""

    @model_validator(mode="after")
    def _consistent(self) -> "Phase":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.micro_batch_tokens < self.max_seq_length:
            raise ValueError(
                f"micro_batch_tokens {self.micro_batch_tokens} cannot hold a sequence"
                f" of {self.max_seq_length} tokens"
            )
        if self.batch_warmup and self.batch_warmup.start > self.global_batch:
            raise ValueError("batch_warmup.start is larger than global_batch")
        if self.length_warmup and self.length_warmup.start > self.max_seq_length:
            raise ValueError("length_warmup.start is larger than max_seq_length")
        return self
