"""config.json of an export, as the transformers library reads it."""

from collections.abc import Mapping
from typing import Any

from trainer.export.families import (
    OFFSET_FAMILIES,
    Family,
    architecture_of,
    type_rows,
)
from trainer.export.hub_config import OWN_CONFIG
from trainer.model.config import ModelConfig

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "geglu": "gelu"}


def to_config(config: ModelConfig, family: Family, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of config.json. ``special_ids`` are the ids of [PAD], [CLS] and [SEP]."""
    common = {
        "architectures": [architecture_of(config, family)],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.initializer_range,
        "pad_token_id": special_ids["[PAD]"],
        "tie_word_embeddings": config.tie_decoder,
        "dtype": "float32",
        OWN_CONFIG: config.model_dump(),
    }
    if family == "distilbert":
        return common | _distilbert_fields(config)
    common |= {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate_size,
    }
    if family == "modernbert":
        return common | _modern_fields(config, special_ids)
    fields: dict[str, Any] = {
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "type_vocab_size": type_rows(config, family),
    }
    ends = {"bos_token_id": special_ids["[CLS]"], "eos_token_id": special_ids["[SEP]"]}
    if family in ("albert", "electra"):
        fields["embedding_size"] = config.embedding_size
    if family == "albert":
        fields |= {"num_hidden_groups": 1, "inner_group_num": 1} | ends
    if family in OFFSET_FAMILIES:
        # Positions are counted from the padding id + 1.
        positions = config.max_positions + special_ids["[PAD]"] + 1
        fields |= {"max_position_embeddings": positions} | ends
    return common | fields


def _distilbert_fields(config: ModelConfig) -> dict[str, Any]:
    return {
        "dim": config.hidden_size,
        "hidden_dim": config.intermediate_size,
        "n_layers": config.layers,
        "n_heads": config.heads,
        "activation": _ACTIVATIONS[config.activation],
        "dropout": config.hidden_dropout,
        "attention_dropout": config.attention_dropout,
        "sinusoidal_pos_embds": False,
    }


def _modern_fields(config: ModelConfig, special_ids: Mapping[str, int]) -> dict[str, Any]:
    kinds = [
        "sliding_attention" if config.is_local(layer) else "full_attention" for layer in range(config.layers)
    ]
    first, last = special_ids["[CLS]"], special_ids["[SEP]"]
    return {
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "norm_eps": config.norm_eps,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "embedding_dropout": config.hidden_dropout,
        "mlp_dropout": 0.0,
        "attention_dropout": config.attention_dropout,
        "layer_types": kinds,
        "global_attn_every_n_layers": config.global_every if config.local_window else 1,
        "local_attention": config.local_window or 2 * config.max_positions,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.rotary_base},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.rotary_base_local},
        },
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.rotary_base_local,
        "bos_token_id": first,
        "cls_token_id": first,
        "eos_token_id": last,
        "sep_token_id": last,
    }
