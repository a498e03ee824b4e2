"""A pretrained encoder with the head of a task: for whole sequences, tokens, or answer spans."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.errors import ConfigError
from trainer.finetuning.heads.features import Choice, FeatureMix
from trainer.model.config import ModelConfig
from trainer.model.encoder import initialize
from trainer.model.microbatch import MicroBatch
from trainer.model.pretraining import BertPretraining

HeadKind = Literal["sequence", "tokens", "spans"]
Activation = Literal["tanh", "gelu", "relu"]

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
}


class TaskModel(nn.Module):
    """Computes ``outputs`` numbers for each sequence or token from the chosen hidden states.

    A sequence head on the last states uses the pretrained pooler, or a new pooler if the model was
    pretrained without sentence pairs. On other states it uses those of the first token. A pre-norm model
    has no pooler. Instead, every head on its last states uses the dense layer and norm of the pretrained
    MLM head, as in ModernBERT (Warner et al. 2024).

    ``activation`` of the pooler and ``mean_pooling`` (of a sequence's states, in place of the first) are
    those of models that were fine-tuned elsewhere.
    """

    def __init__(
        self,
        base: BertPretraining,
        kind: HeadKind,
        outputs: int,
        dropout: float,
        features: Choice = "last",
        *,
        activation: Activation = "tanh",
        mean_pooling: bool = False,
    ) -> None:
        super().__init__()
        config = base.config
        self.activation, self.mean_pooling = activation, mean_pooling
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
            if self.mean_pooling:
                parts = hidden.split(batch.cu_seqlens.diff().tolist())
                hidden = torch.stack([part.mean(0) for part in parts])
            else:
                hidden = hidden[batch.cu_seqlens[:-1].long()]
            if self.pooler is not None:
                hidden = _ACTIVATIONS[self.activation](self.pooler(hidden))
        if self.uses_token_head:
            hidden = self.base.token_head.transform(hidden)
        output: Tensor = self.head(F.dropout(hidden, self.dropout, self.training))
        return output


def uses_token_head(config: ModelConfig, features: Choice) -> bool:
    """Whether a task's head uses the dense layer and norm of the MLM head."""
    return config.norm == "pre" and config.embedding_size == config.hidden_size and features == "last"


def with_dropout(model: BertPretraining, dropout: float) -> BertPretraining:
    """The same weights with another hidden dropout, because fast pretraining recipes have none."""
    config = ModelConfig.model_validate({**model.config.model_dump(), "hidden_dropout": dropout})
    with torch.random.fork_rng(devices=[]):
        changed = BertPretraining(config)
    changed.load_state_dict(model.state_dict(), strict=True)
    return changed


def freeze(model: BertPretraining, *, embeddings: bool, layers: int) -> None:
    """Freezes the embeddings and the lowest ``layers`` layers.

    Raises ConfigError for more layers than the model has, or if its layers share their weights.
    """
    _check_layers(model.config, layers, "freeze_layers")
    if embeddings:
        model.encoder.embeddings.requires_grad_(False)
    for layer in list(model.encoder.layers)[:layers]:
        layer.requires_grad_(False)


def reinitialize(model: BertPretraining, layers: int) -> None:
    """Reinitializes the top ``layers`` layers and the pooler (Zhang et al. 2021). Raises ConfigError."""
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
        raise ConfigError(f"{field}: {layers}, but the model has {config.layers} layers")
