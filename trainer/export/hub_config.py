"""config.json of transformers as typed classes, one for each family, and the ModelConfig that it describes.

Every field is used, ignored or refused. A used field that is missing has the default of transformers. An
ignored field changes no output of a pretrained model: training settings, labels of tasks, bookkeeping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import CheckpointError, reason_of
from trainer.export.families import FAMILIES, OFFSET_FAMILIES, Family, type_rows
from trainer.model.config import ModelConfig

# The key in config.json that holds our own config, for settings that transformers does not have.
OWN_CONFIG = "bertmill"

_NEUTRAL = frozenset(
    # Bookkeeping and the form of the output.
    "_name_or_path architectures dtype torch_dtype transformers_version tokenizer_class return_dict"
    " output_attentions output_hidden_states output_past use_cache use_return_dict gradient_checkpointing"
    " torchscript use_bfloat16 attn_implementation _attn_implementation _attn_implementation_internal"
    " chunk_size_feed_forward model_max_length language name_or_path"
    # Heads of tasks and training.
    " id2label label2id num_labels problem_type finetuning_task task_specific_params classifier_dropout"
    " classifier_dropout_prob prefix"
    # Ids of special tokens, which the tokenizer also has.
    " bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id"
    " decoder_start_token_id pad_token_id".split()
)

_NEUTRAL_IN: dict[Family, frozenset[str]] = {
    # Google's mBERT describes a pooler that no class reads.
    "bert": frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers"
        " pooler_size_per_head pooler_type".split()
    ),
    "distilbert": frozenset(("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")),
    "albert": frozenset(("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")),
    "electra": frozenset(("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")),
    "modernbert": frozenset(
        "initializer_cutoff_factor classifier_pooling deterministic_flash_attn sparse_prediction"
        " sparse_pred_ignore_index repad_logits_with_grad reference_compile mlp_dropout"
        " layer_norm_eps".split()
    ),
}

_GELU = Literal["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh"]
_EXACT_GELU = Literal["gelu", "gelu_python"]
_OURS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_Size = Annotated[int, Field(ge=1)]
_Dropout = Annotated[float, Field(ge=0, lt=1)]
_Empty = Annotated[dict[str, Any] | list[Any] | None, Field(max_length=0)]


class _HubConfig(BaseModel):
    """Fields of every family. Any other field is refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model_type: str
    vocab_size: _Size = 30522
    max_position_embeddings: _Size = 512
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    tie_word_embeddings: bool = True
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    is_encoder_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    pruned_heads: _Empty = None
    auto_map: _Empty = None
    quantization_config: None = None

    def fields(self, origin: str) -> dict[str, Any]:
        """The fields of a ModelConfig. Raises CheckpointError that names ``origin``."""
        del origin
        return {
            "size": "custom",
            "vocab_size": self.vocab_size,
            "max_positions": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "tie_decoder": self.tie_word_embeddings,
            "pair_objective": "none",
        }


class _Bert(_HubConfig):
    hidden_size: _Size = 768
    num_hidden_layers: _Size = 12
    num_attention_heads: _Size = 12
    intermediate_size: _Size = 3072
    hidden_act: _GELU = "gelu"
    hidden_dropout_prob: _Dropout = 0.1
    attention_probs_dropout_prob: _Dropout = 0.1
    type_vocab_size: _Size = 2
    layer_norm_eps: float = 1e-12

    def fields(self, origin: str) -> dict[str, Any]:
        return super().fields(origin) | {
            "style": "bert",
            "hidden_size": self.hidden_size,
            "layers": self.num_hidden_layers,
            "heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "embedding_size": self.hidden_size,
            "activation": _OURS[self.hidden_act],
            "hidden_dropout": self.hidden_dropout_prob,
            "norm_eps": self.layer_norm_eps,
            # A single token type is the same for every token: it becomes a part of the positions.
            "segments": self.type_vocab_size if self.type_vocab_size > 1 else 0,
        }


class _Roberta(_Bert):
    hidden_act: _EXACT_GELU = "gelu"  # the MLM head has no other
    pad_token_id: Annotated[int, Field(ge=0)] = 1

    def fields(self, origin: str) -> dict[str, Any]:
        positions = self.max_position_embeddings - self.pad_token_id - 1
        return super().fields(origin) | {"style": "roberta", "max_positions": positions}


class _XlmRoberta(_Roberta):
    pass


class _Albert(_Bert):
    vocab_size: _Size = 30000
    embedding_size: _Size = 128
    hidden_size: _Size = 4096
    num_attention_heads: _Size = 64
    intermediate_size: _Size = 16384
    hidden_act: _GELU = "gelu_new"
    hidden_dropout_prob: _Dropout = 0.0
    attention_probs_dropout_prob: _Dropout = 0.0
    num_hidden_groups: Literal[1] = 1
    inner_group_num: Literal[1] = 1

    def fields(self, origin: str) -> dict[str, Any]:
        if self.embedding_size == self.hidden_size:
            raise CheckpointError(
                f"{origin}: embedding_size: is hidden_size ({self.hidden_size}); ALBERT with a projection of"
                " equal width is not supported"
            )
        changed = {"style": "albert", "embedding_size": self.embedding_size, "share_layers": True}
        return super().fields(origin) | changed


class _Electra(_Bert):
    embedding_size: _Size = 128
    hidden_size: _Size = 256
    num_attention_heads: _Size = 4
    intermediate_size: _Size = 1024
    hidden_act: _EXACT_GELU = "gelu"  # the MLM head has no other

    def fields(self, origin: str) -> dict[str, Any]:
        return super().fields(origin) | {"embedding_size": self.embedding_size}


class _DistilBert(_HubConfig):
    dim: _Size = 768
    hidden_dim: _Size = 3072
    n_layers: _Size = 6
    n_heads: _Size = 12
    activation: _GELU = "gelu"
    dropout: _Dropout = 0.1
    attention_dropout: _Dropout = 0.1

    def fields(self, origin: str) -> dict[str, Any]:
        return super().fields(origin) | {
            "style": "roberta",
            "hidden_size": self.dim,
            "layers": self.n_layers,
            "heads": self.n_heads,
            "intermediate_size": self.hidden_dim,
            "activation": _OURS[self.activation],
            "hidden_dropout": self.dropout,
        }


class _Rope(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rope_type: Literal["default"] = "default"
    rope_theta: Annotated[float, Field(gt=1)] | None = None


class _RopeOfLayers(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    full_attention: _Rope | None = None
    sliding_attention: _Rope | None = None


class _ModernBert(_HubConfig):
    vocab_size: _Size = 50368
    max_position_embeddings: _Size = 8192
    hidden_size: _Size = 768
    num_hidden_layers: _Size = 22
    num_attention_heads: _Size = 12
    intermediate_size: _Size = 1152
    hidden_activation: _EXACT_GELU = "gelu"
    classifier_activation: _EXACT_GELU = "gelu"
    norm_eps: float = 1e-5
    norm_bias: Literal[False] = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    classifier_bias: Literal[False] = False
    decoder_bias: Literal[True] = True
    embedding_dropout: _Dropout = 0.0
    attention_dropout: _Dropout = 0.0
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    global_attn_every_n_layers: _Size | None = None
    local_attention: Annotated[int, Field(ge=2)] = 128
    rope_parameters: _RopeOfLayers | None = None
    rope_scaling: None = None
    global_rope_theta: Annotated[float, Field(gt=1)] | None = None
    local_rope_theta: Annotated[float, Field(gt=1)] | None = None

    def fields(self, origin: str) -> dict[str, Any]:
        every = self._global_every(origin)
        local = any(layer % every for layer in range(self.num_hidden_layers))
        return super().fields(origin) | {
            "style": "modern",
            "hidden_size": self.hidden_size,
            "layers": self.num_hidden_layers,
            "heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "norm_eps": self.norm_eps,
            "hidden_dropout": self.embedding_dropout,
            # Half of it, rounded down, is on each side.
            "local_window": self.local_attention // 2 * 2 if local else 0,
            "global_every": every,
            "rotary_base": self._theta("full_attention", "global_rope_theta", 160_000.0, origin),
            "rotary_base_local": self._theta("sliding_attention", "local_rope_theta", 10_000.0, origin),
        }

    def _global_every(self, origin: str) -> int:
        """The n for which layers 0, n, 2n, ... are global and all others local."""
        configured = self.global_attn_every_n_layers
        if self.layer_types is None:
            return configured or 3
        if len(self.layer_types) != self.num_hidden_layers:
            count = f"{len(self.layer_types)} entries, but num_hidden_layers is {self.num_hidden_layers}"
            raise CheckpointError(f"{origin}: layer_types: {count}")
        local = [kind == "sliding_attention" for kind in self.layer_types]
        candidates = range(1, len(local) + 1) if configured is None else [configured]
        for every in candidates:
            if all(bool(layer % every) == here for layer, here in enumerate(local)):
                return every
        if configured is not None and not any(local):
            return 1
        raise CheckpointError(
            f"{origin}: layer_types: must be full_attention in every nth layer from the first on, and"
            " sliding_attention in all others, and agree with global_attn_every_n_layers"
        )

    def _theta(self, kind: str, older: str, default: float, origin: str) -> float:
        """The RoPE base of a kind of layers, from rope_parameters or the field of older versions."""
        section: _Rope | None = getattr(self.rope_parameters, kind, None)
        new, old = section.rope_theta if section else None, getattr(self, older)
        if new is not None and old is not None and new != old:
            raise CheckpointError(
                f"{origin}: {older} is {old}, but rope_parameters.{kind}.rope_theta is {new}"
            )
        value = new if new is not None else old
        return float(value) if value is not None else default


_CLASSES: dict[Family, type[_HubConfig]] = {
    "bert": _Bert,
    "roberta": _Roberta,
    "xlm-roberta": _XlmRoberta,
    "distilbert": _DistilBert,
    "albert": _Albert,
    "electra": _Electra,
    "modernbert": _ModernBert,
}


@dataclass(frozen=True)
class HubModel:
    """The content of a config.json."""

    config: ModelConfig
    family: Family
    pad_id: int
    """RoBERTa counts positions from here."""


def from_config(data: Mapping[str, Any], origin: str) -> HubModel:
    """What the config.json ``data`` describes.

    Raises CheckpointError that names ``origin`` and a field that is unknown, not supported, or contradicts
    the ``bertmill`` key.
    """
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{origin}: must be a JSON object")
    kind = data.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"{origin}: model_type {kind!r} is not supported; use {', '.join(FAMILIES)}")
    family: Family = kind
    hub_class = _CLASSES[family]
    neutral = (_NEUTRAL | _NEUTRAL_IN.get(family, frozenset())) - hub_class.model_fields.keys()
    used = {name: value for name, value in data.items() if name not in neutral and name != OWN_CONFIG}
    try:
        hub = hub_class.model_validate(used)
    except ValidationError as error:
        raise CheckpointError(f"{origin}: {_first(error, used)}") from error
    try:
        config = ModelConfig.model_validate(hub.fields(origin))
    except ValidationError as error:
        raise CheckpointError(f"{origin}: this model is not supported: {_first(error, {})}") from error
    if OWN_CONFIG in data:
        config = _own_config(data[OWN_CONFIG], config, hub, family, origin)
    pad = getattr(hub, "pad_token_id", 0) if family in OFFSET_FAMILIES else 0
    return HubModel(config, family, pad)


def _first(error: ValidationError, fields: Mapping[str, Any]) -> str:
    """The first fault in one line: field, what is wrong, and the value."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{field}: unknown field, so the model may compute something else"
    reason = reason_of(first)
    if first["loc"] and str(first["loc"][0]) in fields:
        return f"{field}: {reason}, got {first['input']!r:.80}"
    return f"{field}: {reason}" if field else reason


# Fields of a ModelConfig that config.json spells differently, lacks, or has only for some values of others.
_NOT_COMPARED = frozenset(
    "size style attention pair_objective initializer_range segments local_window global_every rotary_base"
    " rotary_base_local attention_dropout".split()
)


def _own_config(raw: Any, theirs: ModelConfig, hub: _HubConfig, family: Family, origin: str) -> ModelConfig:
    """Our own config, which must agree with the fields beside it (``theirs``)."""
    try:
        # The training run's kernel may not be available here.
        own = ModelConfig.model_validate({**raw, "attention": "auto"})
    except (ValidationError, TypeError) as error:
        reason = _first(error, {}) if isinstance(error, ValidationError) else "must be a JSON object"
        raise CheckpointError(f"{origin}: {OWN_CONFIG}: {reason}") from error
    for name in ModelConfig.model_fields:
        if name not in _NOT_COMPARED and getattr(own, name) != getattr(theirs, name):
            _refuse(name, getattr(own, name), getattr(theirs, name), origin)
    rows = getattr(hub, "type_vocab_size", 0)
    if type_rows(own, family) != rows:
        _refuse("segments", own.segments, rows, origin)
    if own.positions == "rotary":
        _check_layers(own, theirs, origin)
    return own


def _check_layers(own: ModelConfig, theirs: ModelConfig, origin: str) -> None:
    """Compares which layers are local, their window, and the bases of the kinds of layers that exist."""
    ours = [own.is_local(layer) for layer in range(own.layers)]
    if ours != [theirs.is_local(layer) for layer in range(own.layers)]:
        _refuse("global_every", own.global_every, theirs.global_every, origin)
    names = ["rotary_base"]
    if any(ours):
        names += ["rotary_base_local", "local_window"]
    for name in names:
        if getattr(own, name) != getattr(theirs, name):
            _refuse(name, getattr(own, name), getattr(theirs, name), origin)


def _refuse(name: str, own: object, theirs: object, origin: str) -> None:
    raise CheckpointError(
        f"{origin}: {OWN_CONFIG}.{name} is {own}, but the other fields imply {theirs}; make them agree, or"
        f" remove the key {OWN_CONFIG}"
    )
