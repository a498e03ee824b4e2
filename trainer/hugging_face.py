"""Our configs and parameter names in the terms of the transformers library, without importing it.

Three of its architectures cover what can be exported: BERT (BertForPreTraining, or BertForMaskedLM
without a pair objective), ALBERT and ModernBERT. A shape that none of them has is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from schemas.errors import CheckpointError, ConfigError
from trainer.model_config import ModelConfig

# The key in config.json under which our own config is kept, for what transformers has no field for.
OWN_CONFIG = "bertmill"

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
_LINEAR, _NO_BIAS = ("weight", "bias"), ("weight",)
_QKV = ("query", "key", "value")
# Without segment embeddings a BERT is exported with this many rows of zeros, enough for any tokenizer.
_NO_SEGMENTS = 2

Names = dict[str, tuple[str, ...]]


def family_of(config: ModelConfig) -> str:
    """bert, albert or modernbert. Raises ConfigError for a shape that transformers does not have."""
    factorised = config.embedding_size != config.hidden_size
    if config.left_to_right:
        raise ConfigError("model.left_to_right: an ablation, with no architecture in transformers")
    if config.norm == "pre":
        wanted = {"positions": "rotary", "activation": "geglu", "share_layers": False, "segments": 0}
        for field, value in wanted.items():
            if getattr(config, field) != value:
                raise ConfigError(
                    f"model.{field}: ModernBERT of transformers is pre-norm with {value!r} only"
                )
        if factorised or config.bias:
            raise ConfigError("model: ModernBERT is exported without biases and factorised embeddings")
        return "modernbert"
    plain = {"positions": "learned", "bias": True, "local_window": 0}
    for field, value in plain.items():
        if getattr(config, field) != value:
            raise ConfigError(f"model.{field}: BERT and ALBERT of transformers have {value!r} only")
    if config.activation == "geglu":
        raise ConfigError("model.activation: BERT and ALBERT of transformers have no geglu")
    if config.share_layers != factorised:
        raise ConfigError("model: transformers has shared layers with factorised embeddings only (ALBERT)")
    return "albert" if config.share_layers else "bert"


def architecture_of(config: ModelConfig) -> str:
    """The class of transformers that loads the export."""
    family = family_of(config)
    if family == "modernbert":
        return "ModernBertForMaskedLM"
    kind = "MaskedLM" if config.pair_objective == "none" else "PreTraining"
    return f"{'Albert' if family == 'albert' else 'Bert'}For{kind}"


def to_config(config: ModelConfig, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of config.json. ``special_ids`` has the ids of [PAD], [CLS] and [SEP]."""
    family = family_of(config)
    common = {
        "architectures": [architecture_of(config)],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.initializer_range,
        "pad_token_id": special_ids["[PAD]"],
        "tie_word_embeddings": True,
        "dtype": "float32",
        OWN_CONFIG: config.model_dump(),
    }
    if family == "modernbert":
        return common | _modern_fields(config, special_ids)
    fields = {
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "type_vocab_size": config.segments or _NO_SEGMENTS,
    }
    if family == "albert":
        fields |= {
            "embedding_size": config.embedding_size,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            "bos_token_id": special_ids["[CLS]"],
            "eos_token_id": special_ids["[SEP]"],
        }
    return common | fields


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
        "global_attn_every_n_layers": config.global_every,
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


def from_config(data: Mapping[str, Any], origin: str) -> ModelConfig:
    """Our config for a config.json. Raises CheckpointError that names ``origin`` for another kind."""
    kind = data.get("model_type")
    if OWN_CONFIG in data:
        # ModernBERT has no pair head; and the kernel of the training run need not exist here.
        lost = {"pair_objective": "none"} if kind == "modernbert" else {}
        return ModelConfig.model_validate({**data[OWN_CONFIG], **lost, "attention": "auto"})
    if kind not in ("bert", "albert", "modernbert"):
        raise CheckpointError(f"{origin}: model_type {kind!r}; bert, albert and modernbert can be read")
    pairs = any("PreTraining" in name for name in data.get("architectures") or [])
    fields: dict[str, Any] = {
        "size": "custom",
        "style": "modern" if kind == "modernbert" else kind,
        "vocab_size": data["vocab_size"],
        "hidden_size": data["hidden_size"],
        "layers": data["num_hidden_layers"],
        "heads": data["num_attention_heads"],
        "intermediate_size": data["intermediate_size"],
        "max_positions": data["max_position_embeddings"],
        "pair_objective": {"bert": "nsp", "albert": "sop"}.get(kind, "none") if pairs else "none",
    }
    if kind == "modernbert":
        return ModelConfig.model_validate(fields | _from_modern(data, origin))
    activation = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}.get(
        str(data.get("hidden_act", "gelu"))
    )
    if activation is None or data.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            f"{origin}: hidden_act or position_embedding_type that this model does not have"
        )
    if kind == "albert" and (data.get("num_hidden_groups", 1), data.get("inner_group_num", 1)) != (1, 1):
        raise CheckpointError(f"{origin}: ALBERT with more than one group of layers")
    return ModelConfig.model_validate(
        fields
        | {
            "activation": activation,
            "embedding_size": data.get("embedding_size", data["hidden_size"]),
            "norm_eps": data.get("layer_norm_eps", 1e-12),
            "segments": data.get("type_vocab_size", 2),
            "hidden_dropout": data.get("hidden_dropout_prob", 0.1),
        }
    )


def _from_modern(data: Mapping[str, Any], origin: str) -> dict[str, Any]:
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    if any(data.get(name, False) for name in biases) or not data.get("decoder_bias", True):
        raise CheckpointError(f"{origin}: ModernBERT with biases elsewhere than in its decoder")
    bases = data.get("rope_parameters") or {}
    return {
        "norm_eps": data.get("norm_eps", 1e-5),
        "local_window": data.get("local_attention", 128),
        "global_every": data.get("global_attn_every_n_layers", 3),
        "rotary_base": bases.get("full_attention", {}).get(
            "rope_theta", data.get("global_rope_theta", 160_000.0)
        ),
        "rotary_base_local": bases.get("sliding_attention", {}).get(
            "rope_theta", data.get("local_rope_theta", 10_000.0)
        ),
    }


def names_of(config: ModelConfig) -> Names:
    """Our parameter -> its names in transformers; three names stand for rows one below the other."""
    return {"bert": _bert_names, "albert": _albert_names, "modernbert": _modern_names}[family_of(config)](
        config
    )


def _pairs(table: Mapping[str, tuple[str, ...]], suffixes: tuple[str, ...]) -> Names:
    return {
        f"{ours}.{suffix}": tuple(f"{name}.{suffix}" for name in theirs)
        for ours, theirs in table.items()
        for suffix in suffixes
    }


def _embedding_names(config: ModelConfig, prefix: str) -> Names:
    embeddings, theirs = "encoder.embeddings", f"{prefix}.embeddings"
    tables = {
        f"{embeddings}.word": (f"{theirs}.word_embeddings",),
        f"{embeddings}.position": (f"{theirs}.position_embeddings",),
    }
    if config.segments:
        tables[f"{embeddings}.segment"] = (f"{theirs}.token_type_embeddings",)
    norm = {f"{embeddings}.norm": (f"{theirs}.LayerNorm",)}
    return _pairs(tables, _NO_BIAS) | _pairs(norm, _LINEAR)


def _bert_names(config: ModelConfig) -> Names:
    table: Names = {
        "token_head.dense": ("cls.predictions.transform.dense",),
        "token_head.norm": ("cls.predictions.transform.LayerNorm",),
    }
    for number in range(config.layers):
        ours, theirs = f"encoder.layers.{number}", f"bert.encoder.layer.{number}"
        table |= {
            f"{ours}.attention.qkv": tuple(f"{theirs}.attention.self.{part}" for part in _QKV),
            f"{ours}.attention.output": (f"{theirs}.attention.output.dense",),
            f"{ours}.attention_norm": (f"{theirs}.attention.output.LayerNorm",),
            f"{ours}.feed_forward.up": (f"{theirs}.intermediate.dense",),
            f"{ours}.feed_forward.down": (f"{theirs}.output.dense",),
            f"{ours}.feed_forward_norm": (f"{theirs}.output.LayerNorm",),
        }
    if config.pair_objective != "none":
        table |= {"pooler": ("bert.pooler.dense",), "pair_head": ("cls.seq_relationship",)}
    names = _embedding_names(config, "bert") | _pairs(table, _LINEAR)
    return names | {"token_head.bias": ("cls.predictions.bias",)}


def _albert_names(config: ModelConfig) -> Names:
    ours, theirs = "encoder.layers.0", "albert.encoder.albert_layer_groups.0.albert_layers.0"
    table: Names = {
        "encoder.embeddings.projection": ("albert.encoder.embedding_hidden_mapping_in",),
        "token_head.dense": ("predictions.dense",),
        "token_head.norm": ("predictions.LayerNorm",),
        f"{ours}.attention.qkv": tuple(f"{theirs}.attention.{part}" for part in _QKV),
        f"{ours}.attention.output": (f"{theirs}.attention.dense",),
        f"{ours}.attention_norm": (f"{theirs}.attention.LayerNorm",),
        f"{ours}.feed_forward.up": (f"{theirs}.ffn",),
        f"{ours}.feed_forward.down": (f"{theirs}.ffn_output",),
        f"{ours}.feed_forward_norm": (f"{theirs}.full_layer_layer_norm",),
    }
    if config.pair_objective != "none":
        table |= {"pooler": ("albert.pooler",), "pair_head": ("sop_classifier.classifier",)}
    names = _embedding_names(config, "albert") | _pairs(table, _LINEAR)
    return names | {"token_head.bias": ("predictions.bias",)}


def _modern_names(config: ModelConfig) -> Names:
    table: Names = {
        "encoder.embeddings.word": ("model.embeddings.tok_embeddings",),
        "encoder.embeddings.norm": ("model.embeddings.norm",),
        "encoder.final_norm": ("model.final_norm",),
        "token_head.dense": ("head.dense",),
        "token_head.norm": ("head.norm",),
    }
    for number in range(config.layers):
        ours, theirs = f"encoder.layers.{number}", f"model.layers.{number}"
        if number:
            table[f"{ours}.attention_norm"] = (f"{theirs}.attn_norm",)
        table |= {
            f"{ours}.attention.qkv": (f"{theirs}.attn.Wqkv",),
            f"{ours}.attention.output": (f"{theirs}.attn.Wo",),
            f"{ours}.feed_forward.up": (f"{theirs}.mlp.Wi",),
            f"{ours}.feed_forward.down": (f"{theirs}.mlp.Wo",),
            f"{ours}.feed_forward_norm": (f"{theirs}.mlp_norm",),
        }
    return _pairs(table, _NO_BIAS) | {"token_head.bias": ("decoder.bias",)}


def to_tensors(config: ModelConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters under their names in transformers, fp32, without the rows that pad the vocabulary.

    The tied decoder is not among them; transformers ties it on loading. Of a ModernBERT with a pair
    objective, pooler and pair head are left out, for its architecture has none.
    """
    tensors: dict[str, Tensor] = {}
    for ours, theirs in names_of(config).items():
        value = parameters[ours].detach().to("cpu", torch.float32)
        if ours == "encoder.embeddings.word.weight":
            value = value[: config.vocab_size]
        for name, part in zip(theirs, value.chunk(len(theirs)), strict=True):
            tensors[name] = part.clone()
    family = family_of(config)
    if family != "modernbert" and not config.segments:
        name = f"{family}.embeddings.token_type_embeddings.weight"
        tensors[name] = torch.zeros(_NO_SEGMENTS, config.embedding_size)
    return tensors


def from_tensors(config: ModelConfig, tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Our parameters from a checkpoint of transformers.

    Raises CheckpointError that names ``origin`` and the first parameter that is missing or misshapen,
    or left over: nothing is ever initialised at random or ignored unsaid.
    """
    present = {_modern_spelling(name): value for name, value in tensors.items()}
    parameters: dict[str, Tensor] = {}
    for ours, theirs in names_of(config).items():
        missing = [name for name in theirs if name not in present]
        if missing:
            raise CheckpointError(f"{origin}: no tensor {missing[0]!r}, needed for {ours}")
        value = torch.cat([present.pop(name).float() for name in theirs])
        if ours == "encoder.embeddings.word.weight":
            value = torch.nn.functional.pad(value, (0, 0, 0, config.padded_vocab_size - config.vocab_size))
        parameters[ours] = value
    unused = sorted(name for name in present if not _may_be_left(name, config))
    if unused:
        raise CheckpointError(f"{origin}: tensor {unused[0]!r} has no place in this model")
    return parameters


def _modern_spelling(name: str) -> str:
    """Checkpoints converted from the first TensorFlow releases call the norms' parameters otherwise."""
    return re.sub(
        r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    )


def _may_be_left(name: str, config: ModelConfig) -> bool:
    """Tied copies, buffers, segments of zeros, and heads that the architecture in config.json lacks."""
    tied = name.endswith(("decoder.weight", "decoder.bias", "embeddings.position_ids"))
    no_segments = not config.segments and "token_type_embeddings" in name
    heads = config.pair_objective == "none" and any(
        part in name for part in ("pooler", "seq_relationship", "sop_classifier")
    )
    return tied or no_segments or heads
