"""A pretrained encoder with the head of a task: for whole sequences, for tokens, for answer spans."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.errors import ConfigError
from trainer.encoder import initialize
from trainer.features import Choice, FeatureMix
from trainer.microbatch import MicroBatch
from trainer.model import BertPretraining
from trainer.model_config import ModelConfig

HeadKind = Literal["sequence", "tokens", "spans"]


class TaskModel(nn.Module):
    """``outputs`` numbers for each sequence, or for each token, from the hidden states chosen.

    A sequence head on the last states goes through the pretrained pooler, or a new one when the model
    was trained without pairs; on other states it takes those of the first token. A pre-norm model has
    no pooler: every head on its last states goes through the dense layer and norm of the pretrained
    token head instead, as in ModernBERT (Warner et al. 2024).
    """

    def __init__(
        self, base: BertPretraining, kind: HeadKind, outputs: int, dropout: float, features: Choice = "last"
    ) -> None:
        super().__init__()
        config = base.config
        self.base, self.kind, self.dropout = base, kind, dropout
        self.mix = FeatureMix(features, config.layers + 1, config.hidden_size)
        self.uses_token_head = uses_token_head(config, features)
        self.pooler: nn.Linear | None = None
        if not self.uses_token_head and kind == "sequence" and features == "last":
            self.pooler = base.pooler or nn.Linear(config.hidden_size, config.hidden_size)
            if base.pooler is None:
                initialize(self.pooler, config)
        self.head = nn.Linear(self.mix.size, outputs)
        initialize(self.head, config)

    def forward(self, batch: MicroBatch) -> Tensor:
        """[n, outputs] for a sequence head, [T, outputs] otherwise."""
        if self.mix.choice == "last":
            hidden = self.base.encode(batch)
        else:
            hidden = self.mix(self.base.hidden_states(batch))
        if self.kind == "sequence":
            hidden = hidden[batch.cu_seqlens[:-1].long()]
            if self.pooler is not None:
                hidden = torch.tanh(self.pooler(hidden))
        if self.uses_token_head:
            hidden = self.base.token_head.transform(hidden)
        output: Tensor = self.head(F.dropout(hidden, self.dropout, self.training))
        return output


def uses_token_head(config: ModelConfig, features: Choice) -> bool:
    """Whether the token head's dense layer and norm stand before the head of a task."""
    return config.norm == "pre" and config.embedding_size == config.hidden_size and features == "last"


def with_dropout(model: BertPretraining, dropout: float) -> BertPretraining:
    """The same weights with another hidden dropout: fast pretraining recipes have none, tasks want some."""
    config = ModelConfig.model_validate({**model.config.model_dump(), "hidden_dropout": dropout})
    with torch.random.fork_rng(devices=[]):
        changed = BertPretraining(config)
    changed.load_state_dict(model.state_dict(), strict=True)
    return changed


def freeze(model: BertPretraining, *, embeddings: bool, layers: int) -> None:
    """Ends the training of the embeddings and of the lowest ``layers`` layers.

    Raises ConfigError for more layers than there are, or layers that share their weights.
    """
    _check_layers(model.config, layers, "freeze_layers")
    if embeddings:
        model.encoder.embeddings.requires_grad_(False)
    for layer in list(model.encoder.layers)[:layers]:
        layer.requires_grad_(False)


def reinitialize(model: BertPretraining, layers: int) -> None:
    """Draws the top ``layers`` layers and the pooler anew (Zhang et al. 2021). Raises ConfigError."""
    _check_layers(model.config, layers, "reinitialize_layers")
    if not layers:
        return
    for layer in list(model.encoder.layers)[-layers:]:
        initialize(layer, model.config)
        for part in layer.modules():
            if isinstance(part, nn.LayerNorm):
                part.reset_parameters()
    if model.pooler is not None:
        initialize(model.pooler, model.config)


def _check_layers(config: ModelConfig, layers: int, field: str) -> None:
    if layers and config.share_layers:
        raise ConfigError(f"{field}: the layers of this model share one set of weights")
    if layers > config.layers:
        raise ConfigError(f"{field}: {layers}, the model has {config.layers}")
