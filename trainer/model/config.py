"""The config of a model: all its dimensions, and named sizes and styles that set several of them."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from schemas.errors import ConfigError

_T = TypeVar("_T")
_MAY_CHANGE = "may_change_on_resume"
_MAY_DIFFER = "may_differ_between_ranks"

MayChange = Annotated[_T, Field(json_schema_extra={_MAY_CHANGE: True})]
"""Marks a config field, or a whole section, that affects how a run is executed but not what it computes.

Such a field may differ each time a run resumes (see trainer/startup/identity.py).
"""

MayDiffer = Annotated[_T, Field(json_schema_extra={_MAY_CHANGE: True, _MAY_DIFFER: True})]
"""Marks a config field that may change on resume and may also differ from rank to rank.

Such a field names a place on a host (see trainer/startup/handshake.py).
"""


def may_change(field: FieldInfo) -> bool:
    """Whether a resume may change the field."""
    return isinstance(field.json_schema_extra, dict) and _MAY_CHANGE in field.json_schema_extra


def may_differ(field: FieldInfo) -> bool:
    """Whether the ranks may have different values of the field."""
    return isinstance(field.json_schema_extra, dict) and _MAY_DIFFER in field.json_schema_extra


Size = Literal["tiny", "mini", "small", "medium", "base", "large", "custom"]
Style = Literal["bert", "roberta", "albert", "modern"]
PairObjective = Literal["nsp", "sop", "none"]

# Tensor cores multiply matrices fastest when every side is a multiple of 64.
VOCABULARY_MULTIPLE = 64
MAX_VOCAB_SIZE = 2_000_000

# Layers and hidden size as in google-research/bert (README, "Smaller BERT Models" and the 2018 release).
# As there, the number of heads is hidden / 64 and the feed-forward layer is four times as wide.
_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# What each style sets unless the config sets it. albert: Lan et al. 2020. roberta: Liu et
# al. 2019. modern: Warner et al. 2024 (ModernBERT), whose widths differ from BERT's for the same name.
_STYLES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"segments": 0, "pair_objective": "none"},
    "albert": {
        "embedding_size": 128,
        "share_layers": True,
        "pair_objective": "sop",
        "activation": "gelu_tanh",
    },
    "modern": {
        "norm": "pre",
        "positions": "rotary",
        "activation": "geglu",
        "bias": False,
        "segments": 0,
        "pair_objective": "none",
        "local_window": 128,
        "global_every": 3,
        "norm_eps": 1e-5,
        "hidden_dropout": 0.0,
    },
}


class ModelConfig(BaseModel):
    """A model's config. ``size`` and ``style`` set the fields that the config leaves out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Size = "base"
    """Google's layers and hidden_size for this name. ``custom`` sets nothing."""
    style: Style = "bert"
    """bert, roberta (no sentence pairs, no segments), albert (factorized embeddings, shared layers) or
    modern (ModernBERT's choices)."""
    vocab_size: Annotated[int, Field(ge=0, le=MAX_VOCAB_SIZE)] = 0
    """Entries of the vocabulary, or 0 for the size in the corpus manifest."""
    layers: Annotated[int, Field(ge=1, le=200)] = 12
    """Transformer layers."""
    hidden_size: Annotated[int, Field(ge=8, le=16384)] = 768
    """Width of the hidden states."""
    heads: Annotated[int, Field(ge=1)] = 12
    """Attention heads, by default hidden_size / 64."""
    intermediate_size: Annotated[int, Field(ge=8, le=1 << 17)] = 3072
    """Width of the feed-forward layer, by default 4 * hidden_size, and 1.5 * hidden_size for modern, whose
    gate doubles it."""
    embedding_size: Annotated[int, Field(ge=8, le=16384)] = 768
    """Width of the embeddings. A width below hidden_size means factorized embeddings with a projection."""
    max_positions: Annotated[int, Field(ge=8, le=1 << 17)] = 512
    """Longest sequence, in tokens."""
    segments: Annotated[int, Field(ge=0, le=16)] = 2
    """Number of segment embeddings, or 0 for none."""
    pair_objective: PairObjective = "nsp"
    """The objective on sentence pairs: next sentence prediction, sentence order prediction, or none, which
    leaves out the pooler and the pair head."""
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout on embeddings and on the output of each sub-layer."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on attention weights. BERT used 0.1. Variable-length kernels do not support it."""
    attention: MayChange[Literal["auto", "varlen", "padded"]] = "auto"
    """Attention kernel: variable-length, or SDPA on padded sequences. auto: varlen where the device and
    dropout allow it."""
    activation: Literal["gelu", "gelu_tanh", "geglu"] = "gelu"
    """Exact GELU, GELU approximated with tanh, or GELU-gated linear units."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (BERT), or before each sub-layer and at the end (pre-norm)."""
    norm_eps: Annotated[float, Field(gt=0, le=1e-3)] = 1e-12
    """Added to the variance in layer norms."""
    positions: Literal["learned", "rotary"] = "learned"
    """Learned position embeddings, or rotary embeddings (RoPE) of queries and keys."""
    rotary_base: Annotated[float, Field(gt=1)] = 160_000.0
    """RoPE base of the layers with global attention."""
    rotary_base_local: Annotated[float, Field(gt=1)] = 10_000.0
    """RoPE base of the layers with local attention."""
    bias: bool = True
    """Biases in linear layers and norms. The MLM decoder always has one."""
    share_layers: bool = False
    """Use one set of weights in every layer (ALBERT)."""
    tie_decoder: bool = True
    """Use the word embedding table as the weight of the MLM decoder. ``false`` gives the decoder its own."""
    local_window: Annotated[int, Field(ge=0)] = 0
    """Tokens that a local layer attends to, half before and half after. 0 makes every layer global."""
    global_every: Annotated[int, Field(ge=1)] = 1
    """With a local window, layers 0, global_every, 2 * global_every, ... are global."""
    left_to_right: bool = False
    """Causal attention: each token attends to itself and earlier tokens (ablation in BERT's table 5)."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the truncated normal distribution of the initial weights."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # Another type than a string is refused later, with the name of the field.
        style, size = data.get("style", "bert"), data.get("size", "base")
        filled = dict(_STYLES.get(style, {})) if isinstance(style, str) else {}
        dimensions = _SIZES.get(size) if isinstance(size, str) else None
        if dimensions is not None:
            filled["layers"], filled["hidden_size"] = dimensions
        filled |= data
        hidden = filled.get("hidden_size", 768)
        if isinstance(hidden, int):
            filled.setdefault("heads", max(1, hidden // 64))
            wide = 3 * hidden // 2 if filled.get("activation") == "geglu" else 4 * hidden
            filled.setdefault("intermediate_size", wide)
            filled.setdefault("embedding_size", hidden)
        return filled

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if self.hidden_size % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden_size {self.hidden_size}")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(f"heads: rotary positions need an even head size, got {self.head_size}")
        if self.embedding_size > self.hidden_size:
            raise ValueError(
                f"embedding_size: {self.embedding_size} is larger than hidden_size {self.hidden_size}"
            )
        if self.pair_objective != "none" and self.segments == 1:
            raise ValueError("segments: a pair objective needs 2 segments, or 0 for no segment embeddings")
        if self.local_window % 2:
            raise ValueError(f"local_window: {self.local_window} is odd, but half of it is on each side")
        if self.attention == "varlen" and self.attention_dropout > 0:
            raise ValueError(
                f"attention_dropout: {self.attention_dropout}, but the variable-length kernel does not"
                " support it; set it to 0, or set attention to padded"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of 64: the rows of the embedding table in memory."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def is_local(self, layer: int) -> bool:
        """Whether ``layer`` attends within the local window only."""
        return self.local_window > 0 and layer % self.global_every != 0

    def with_vocabulary(self, size: int) -> "ModelConfig":
        """The same config with a vocabulary of ``size``. Raises ConfigError for more than MAX_VOCAB_SIZE."""
        if size > MAX_VOCAB_SIZE:
            raise ConfigError(f"model.vocab_size: {size} is more than the largest size, {MAX_VOCAB_SIZE}")
        return ModelConfig.model_validate({**self.model_dump(), "vocab_size": size})
