"""Small models for the tests, one of each style, with weights large enough to show differences."""

from typing import Any

import torch

from trainer.model.config import ModelConfig
from trainer.model.pretraining import BertPretraining

VOCAB = 101

STYLES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"style": "roberta"},
    "albert": {"style": "albert", "embedding_size": 16},
    "modern": {"style": "modern", "local_window": 6, "global_every": 2, "layers": 3},
    "modern-pairs": {"style": "modern", "local_window": 4, "pair_objective": "nsp", "segments": 2},
    "left-to-right": {"left_to_right": True, "pair_objective": "none"},
    "rotary-post-norm": {"positions": "rotary"},
}


def small_config(style: str = "bert", **fields: Any) -> ModelConfig:
    figures = {
        "size": "custom", "vocab_size": VOCAB, "layers": 2, "hidden_size": 64, "heads": 2,
        "intermediate_size": 96, "max_positions": 40, "hidden_dropout": 0.0,
    }  # fmt: skip
    return ModelConfig.model_validate(figures | STYLES[style] | fields)


def small_model(style: str = "bert", seed: int = 0, **fields: Any) -> BertPretraining:
    torch.manual_seed(seed)
    model = BertPretraining(small_config(style, initializer_range=0.2, **fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms away from their 0 and 1
                parameter.add_(torch.randn(parameter.shape) * 0.2)
            assert parameter.isfinite().all(), name
    return model.eval()
