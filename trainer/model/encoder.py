"""Embeddings and transformer layers: from packed ids to hidden states."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.model.attention import AttentionWindow, Layout, VarlenLayout, rotary_table, rotate, window_of
from trainer.model.config import ModelConfig

Rotary = dict[bool, tuple[Tensor, Tensor]]
Result = TypeVar("Result")


def layer_norm(size: int, config: ModelConfig) -> nn.LayerNorm:
    """A layer norm over ``size`` values with the config's epsilon, with a bias if the config has any."""
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.bias)


class Embeddings(nn.Module):
    """Sums token, position and segment embeddings, normalizes, and projects to the hidden size if needed."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.word = nn.Embedding(config.padded_vocab_size, width)
        self.position = nn.Embedding(config.max_positions, width) if config.positions == "learned" else None
        self.segment = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = layer_norm(width, config)
        self.dropout = config.hidden_dropout
        factorised = width != config.hidden_size
        self.projection = nn.Linear(width, config.hidden_size, bias=config.bias) if factorised else None

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Hidden states [T, hidden] of the ids [T]."""
        total: Tensor = self.word(input_ids)
        if self.position is not None:
            total = total + self.position(position_ids)
        if self.segment is not None:
            total = total + self.segment(token_type_ids)
        hidden: Tensor = F.dropout(self.norm(total), self.dropout, self.training)
        return hidden if self.projection is None else self.projection(hidden)


class SelfAttention(nn.Module):
    """Multi-head attention with one product for queries, keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_size = config.head_size
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.bias)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(
        self, hidden: Tensor, layout: Layout, window: AttentionWindow, rotary: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        tokens = hidden.shape[0]
        query, key, value = self.qkv(hidden).view(tokens, 3, self.heads, self.head_size).unbind(1)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        mixed = layout.attend(query, key, value, window, self.dropout if self.training else 0.0)
        output: Tensor = self.output(mixed.reshape(tokens, -1))
        return output


class FeedForward(nn.Module):
    """Up, GELU, down. With geglu the upper half of ``up`` gates the lower half's GELU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.activation == "geglu"
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        wide = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, 2 * wide if self.gated else wide, bias=config.bias)
        self.down = nn.Linear(wide, config.hidden_size, bias=config.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        inner = self.up(hidden)
        if self.gated:
            value, gate = inner.chunk(2, dim=-1)
            inner = F.gelu(value) * gate
        else:
            inner = F.gelu(inner, approximate=self.approximate)
        output: Tensor = self.down(inner)
        return output


class Layer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a layer norm before or after it."""

    def __init__(self, config: ModelConfig, *, first: bool) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.dropout = config.hidden_dropout
        self.attention = SelfAttention(config)
        # With pre-norm the first layer's input comes straight from the embeddings' norm (ModernBERT).
        redundant = self.pre_norm and first and not config.share_layers
        self.attention_norm = nn.Identity() if redundant else layer_norm(config.hidden_size, config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config.hidden_size, config)

    def forward(
        self, hidden: Tensor, layout: Layout, window: AttentionWindow, rotary: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        if self.pre_norm:
            hidden = hidden + self._drop(self.attention(self.attention_norm(hidden), layout, window, rotary))
            return hidden + self._drop(self.feed_forward(self.feed_forward_norm(hidden)))
        hidden = self.attention_norm(hidden + self._drop(self.attention(hidden, layout, window, rotary)))
        normed: Tensor = self.feed_forward_norm(hidden + self._drop(self.feed_forward(hidden)))
        return normed

    def fused(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """``function`` of ``arguments`` and this layer, whose weights it reads.

        Hand-written layers run through this method, because weights that are sharded over ranks are whole
        only while a method that fully_shard knows runs.
        """
        return function(*arguments, self)

    def _drop(self, tensor: Tensor) -> Tensor:
        return F.dropout(tensor, self.dropout, self.training)


class Encoder(nn.Module):
    """Embeddings and all layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.fused = False
        self.keeps_copies = True
        """Whether fused layers keep the bf16 copies of their weights until the backward pass."""
        self.recompute_layers = 0
        """The number of first layers that recompute their activations in the backward pass."""
        self.embeddings = Embeddings(config)
        own = 1 if config.share_layers else config.layers
        self.layers = nn.ModuleList(Layer(config, first=number == 0) for number in range(own))
        self.final_norm = layer_norm(config.hidden_size, config) if config.norm == "pre" else None

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, layout: Layout,
        rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The last hidden states [T, hidden] of flat ids [T].

        With ``rows``, int64 [N], only those of these tokens, [N, hidden]. Fused layers then leave out the
        others in the last layer.
        """
        return self._run(input_ids, token_type_ids, position_ids, layout, None, rows)

    def states(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, layout: Layout
    ) -> list[Tensor]:
        """The hidden states after the embeddings and after each layer. The last ones are normalized."""
        all_states: list[Tensor] = []
        self._run(input_ids, token_type_ids, position_ids, layout, all_states)
        return all_states

    def _run(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, layout: Layout,
        all_states: list[Tensor] | None, rows: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns the last hidden states, and appends those of all layers to ``all_states``."""
        if self.fused and isinstance(layout, VarlenLayout):
            # Imported here, because only CUDA builds of torch bring Triton.
            from trainer.model.fused_encoder import fused_encoder

            return fused_encoder(self, input_ids, token_type_ids, position_ids, layout, all_states, rows)
        config = self.config
        hidden: Tensor = self.embeddings(input_ids, token_type_ids, position_ids)
        rotary = self._rotary(position_ids)
        for number in range(config.layers):
            if all_states is not None:
                all_states.append(hidden)
            local = config.is_local(number)
            layer = self.layers[0 if config.share_layers else number]
            arguments = (hidden, layout, window_of(config, local=local), rotary.get(local))
            if self.training and number < self.recompute_layers:
                hidden = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                hidden = layer(*arguments)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        if all_states is not None:
            all_states.append(hidden)
        return hidden if rows is None else hidden.index_select(0, rows)

    def _rotary(self, position_ids: Tensor) -> Rotary:
        config = self.config
        if config.positions != "rotary":
            return {}
        tables = {False: rotary_table(position_ids, config.head_size, config.rotary_base)}
        if config.local_window:
            tables[True] = rotary_table(position_ids, config.head_size, config.rotary_base_local)
        return tables


@torch.no_grad()
def truncated_normal(weight: Tensor, deviation: float) -> None:
    """Fills ``weight`` from a normal distribution that is truncated at two deviations.

    Uniform values go through the inverse of the distribution function. ``nn.init.trunc_normal_`` draws other
    values on torch 2.11 than on 2.13. With this rule a seed gives the same weights on both, up to rounding.
    """
    inside = math.erf(math.sqrt(2.0))  # the share of a normal distribution within two deviations
    weight.uniform_(-inside, inside).erfinv_().mul_(math.sqrt(2.0) * deviation)
    weight.clamp_(-2 * deviation, 2 * deviation)


def initialize(module: nn.Module, config: ModelConfig) -> None:
    """Initializes all weights of ``module`` with torch's global generator.

    As in google-research/bert, matrices and embeddings come from a normal distribution with deviation
    ``initializer_range``, truncated at two deviations. Biases are 0, norms 1. With pre-norm, the matrices
    that write into the residual sum are divided by sqrt(2 layers), as in GPT-2, because nothing rescales that
    sum. Embeddings beyond the vocabulary are 0 and never receive a gradient.
    """
    deviation = config.initializer_range
    residual = deviation / (2 * config.layers) ** 0.5 if config.norm == "pre" else deviation
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            writes_residual = name.endswith(("attention.output", "feed_forward.down"))
            spread = residual if writes_residual else deviation
            truncated_normal(part.weight, spread)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    for part in module.modules():
        if isinstance(part, Embeddings):
            with torch.no_grad():
                part.word.weight[config.vocab_size :] = 0
