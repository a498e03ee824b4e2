"""BERT with its pretraining heads: the MLM head, and the head for sentence pairs (NSP or SOP)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.errors import ConfigError
from trainer.model.attention import Kernel, Layout, PaddedLayout, VarlenLayout, choose_kernel
from trainer.model.config import ModelConfig
from trainer.model.encoder import Encoder, initialize, layer_norm
from trainer.model.microbatch import MicroBatch

# The logit of the rows between the vocabulary and its padded size. e^-10000 is 0 in every dtype, so these
# rows get no probability and no gradient. The value is within the range of fp16.
_ABSENT = -1e4


class PretrainingOutput(NamedTuple):
    """The logits of the heads for a micro-batch."""

    padded_token_logits: Tensor
    """[M, padded vocabulary], at the masked tokens only. Columns beyond the vocabulary are -10000."""
    pair_logits: Tensor | None
    """[n, 2], or None when the model has no pair objective."""


class TokenHead(nn.Module):
    """MLM head: dense, GELU, norm, and a decoder, whose weight is the word embedding table if it is tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size, bias=config.bias)
        self.norm = layer_norm(config.embedding_size, config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder: nn.Linear | None = None
        if not config.tie_decoder:
            self.decoder = nn.Linear(config.embedding_size, config.padded_vocab_size, bias=False)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.absent = config.padded_vocab_size - config.vocab_size

    def transform(self, hidden: Tensor) -> Tensor:
        """[M, hidden] -> [M, embedding], the input of the decoder."""
        normed: Tensor = self.norm(F.gelu(self.dense(hidden), approximate=self.approximate))
        return normed

    def padded_bias(self) -> Tensor:
        """[padded vocabulary]."""
        return F.pad(self.bias, (0, self.absent), value=_ABSENT)

    def table(self, word_weight: Tensor) -> Tensor:
        """The decoder's weight [padded vocabulary, embedding]. ``word_weight`` is that of a tied one."""
        return word_weight if self.decoder is None else self.decoder.weight

    def forward(self, hidden: Tensor, word_weight: Tensor) -> Tensor:
        """[M, hidden] -> logits [M, padded vocabulary]. ``word_weight`` is the table of a tied decoder."""
        return F.linear(self.transform(hidden), self.table(word_weight), self.padded_bias())


class BertPretraining(nn.Module):
    """An encoder with an MLM head and, unless pair_objective is none, a pooler and a pair head.

    Raises ConfigError when the config has no vocabulary size yet.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.vocab_size == 0:
            raise ConfigError("model.vocab_size: not set, neither by the config nor by a corpus manifest")
        self.config = config
        self.kernel = "padded"
        self.untrained: tuple[str, ...] = ()
        """Heads that an imported checkpoint lacks, of token_head, pooler and pair_head: still initial."""
        self.encoder = Encoder(config)
        self.token_head = TokenHead(config)
        pairs = config.pair_objective != "none"
        # As in the original, pooler and classifier have biases even if the encoder's layers have none.
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pairs else None
        self.pair_head = nn.Linear(config.hidden_size, 2) if pairs else None
        initialize(self, config)
        if self.token_head.decoder is not None:
            with torch.no_grad():
                self.token_head.decoder.weight[config.vocab_size :] = 0

    def use_kernel(self, device: torch.device, dtype: torch.dtype) -> Kernel:
        """Chooses the attention kernel for ``dtype`` on ``device``. See choose_kernel."""
        choice = choose_kernel(self.config, device, dtype)
        self.kernel = choice.name
        return choice

    def use_rotary_base(self, base: float) -> None:
        """Sets the RoPE base of the layers with global attention."""
        if base != self.config.rotary_base:
            self.config = self.encoder.config = self.config.model_copy(update={"rotary_base": base})

    def forward(self, batch: MicroBatch) -> PretrainingOutput:
        """Logits of a packed micro-batch: MLM at its masked tokens, NSP at its first tokens."""
        return self.heads(self.encode(batch), batch)

    def heads(self, hidden: Tensor, batch: MicroBatch) -> PretrainingOutput:
        """Logits from the last hidden states [T, hidden] of ``batch``."""
        # hidden[index] would be slower, because its gradient needs a sort. That of index_select is a sum.
        masked = hidden.index_select(0, batch.masked_index)
        return self.heads_at(masked, self.first_tokens(hidden, batch))

    def heads_at(self, masked: Tensor, first: Tensor | None) -> PretrainingOutput:
        """Logits from the last hidden states of masked tokens [M, hidden] and first tokens [n, hidden]."""
        return PretrainingOutput(self.token_head(masked, self.word_weight), self.pair_logits_at(first))

    def pair_logits_at(self, first: Tensor | None) -> Tensor | None:
        """[n, 2] from last hidden states of first tokens [n, hidden], or None without a pair objective."""
        if self.pair_head is None or self.pooler is None or first is None:
            return None
        logits: Tensor = self.pair_head(torch.tanh(self.pooler(first)))
        return logits

    def first_tokens(self, hidden: Tensor, batch: MicroBatch) -> Tensor | None:
        """The hidden states of the first token of each sequence, [n, hidden], or None without a pooler."""
        if self.pooler is None:
            return None
        return hidden.index_select(0, _first_index(batch))

    @property
    def word_weight(self) -> Tensor:
        """The word embedding table [padded vocabulary, embedding], the decoder's weight too if it is tied."""
        return self.encoder.embeddings.word.weight

    def encode(self, batch: MicroBatch) -> Tensor:
        """The last hidden states [T, hidden] of a packed micro-batch."""
        layout = self.layout(batch)
        hidden: Tensor = self.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, layout)
        return hidden

    def encode_used(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """The last hidden states of masked tokens [M, hidden] and of first tokens [n, hidden].

        The latter are None without a pooler. The loss of pretraining uses no others, so fused layers leave
        out the others in the last layer.
        """
        firsts = 0 if self.pooler is None else batch.sequences
        if not self.encoder.fused or not len(batch.masked_index) + firsts:
            hidden = self.encode(batch)
            return hidden.index_select(0, batch.masked_index), self.first_tokens(hidden, batch)
        rows = torch.cat([batch.masked_index, _first_index(batch)[:firsts]])
        states: Tensor = self.encoder(
            batch.input_ids, batch.token_type_ids, batch.position_ids, self.layout(batch), rows
        )
        masked, first = states.split([len(batch.masked_index), firsts])
        return masked, None if self.pooler is None else first

    def hidden_states(self, batch: MicroBatch) -> list[Tensor]:
        """All hidden states, each [T, hidden]: of the embeddings, then of every layer."""
        layout = self.layout(batch)
        return self.encoder.states(batch.input_ids, batch.token_type_ids, batch.position_ids, layout)

    def layout(self, batch: MicroBatch) -> Layout:
        """The layout of the packed tokens for the attention kernel in use."""
        if self.kernel == "varlen":
            return VarlenLayout(batch.cu_seqlens, batch.max_seqlen)
        return PaddedLayout.of_packed(batch.cu_seqlens, batch.max_seqlen, batch.tokens)

    def encode_padded(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The last hidden states [rows, length, hidden] of padded rows [rows, length].

        Hidden states where ``attention_mask`` is 0 are finite and have no meaning.
        """
        rows, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).expand(rows, length)
        layout = PaddedLayout.of_rows(attention_mask)
        hidden: Tensor = self.encoder(
            input_ids.reshape(-1), token_type_ids.reshape(-1), positions.reshape(-1), layout
        )
        return hidden.view(rows, length, -1)

    def pooled(self, hidden: Tensor, batch: MicroBatch) -> Tensor:
        """Tanh of a dense layer on the first token of each sequence, [n, hidden].

        Raises ConfigError when the model has no pooler.
        """
        first = self.first_tokens(hidden, batch)
        if self.pooler is None or first is None:
            raise ConfigError("model.pair_objective: is none, so this model has no pooler")
        return torch.tanh(self.pooler(first))

    def pair_logits(self, hidden: Tensor, batch: MicroBatch) -> Tensor | None:
        """[n, 2], class 0 for "is next" or "in order", or None without a pair objective."""
        if self.pair_head is None:
            return None
        logits: Tensor = self.pair_head(self.pooled(hidden, batch))
        return logits


def _first_index(batch: MicroBatch) -> Tensor:
    """int64 [n]: the first token of each sequence. That of an empty filler at the end is the last token."""
    return batch.cu_seqlens[:-1].long().clamp(max=batch.tokens - 1)


def parameter_count(model: nn.Module) -> int:
    """Number of distinct parameters, including the padded rows of the vocabulary."""
    return sum(parameter.numel() for parameter in model.parameters())
