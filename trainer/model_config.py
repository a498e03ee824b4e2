"""The shape of a model: every figure, named sizes and named styles that fill them in."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.errors import ConfigError

Size = Literal["tiny", "mini", "small", "medium", "base", "large", "custom"]
Style = Literal["bert", "roberta", "albert", "modern"]
PairObjective = Literal["nsp", "sop", "none"]

# Matrix products are quickest on tensor cores when every side is a multiple of 64.
VOCABULARY_MULTIPLE = 64
MOST_PIECES = 2_000_000

# Layers and hidden size as in google-research/bert (README, "Smaller BERT Models" and the 2018 release);
# heads are hidden / 64 and the feed-forward layer is four times as wide, there as here.
_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# What each style sets when the config does not say otherwise. albert: Lan et al. 2020. roberta: Liu et
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
    """A model's shape. ``size`` and ``style`` fill the fields that are not given; given ones win."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    size: Size = "base"
    """Google's figures for layers and hidden_size; custom fills nothing in."""
    style: Style = "bert"
    """bert; roberta (no pairs, no segments); albert (factorised, shared); modern (ModernBERT's choices)."""
    vocab_size: Annotated[int, Field(ge=0, le=MOST_PIECES)] = 0
    """Pieces of the vocabulary; 0 takes the corpus manifest's."""
    layers: Annotated[int, Field(ge=1, le=200)] = 12
    """Transformer layers."""
    hidden_size: Annotated[int, Field(ge=8, le=16384)] = 768
    """Width of the hidden states."""
    heads: Annotated[int, Field(ge=1)] = 12
    """Attention heads; hidden_size / 64 by default."""
    intermediate_size: Annotated[int, Field(ge=8, le=1 << 17)] = 3072
    """Width of the feed-forward layer; 4 hidden_size by default, 1.5 for modern (its gate doubles it)."""
    embedding_size: Annotated[int, Field(ge=8, le=16384)] = 768
    """Width of the embeddings; smaller than hidden_size means factorised, with a projection."""
    max_positions: Annotated[int, Field(ge=8, le=1 << 17)] = 512
    """Longest sequence."""
    segments: Annotated[int, Field(ge=0, le=16)] = 2
    """Segment embeddings; 0 for none."""
    pair_objective: PairObjective = "nsp"
    """The objective on sentence pairs; none leaves pooler and pair head out."""
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout on embeddings and on the output of each sub-layer."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on attention weights. BERT used 0.1; variable-length kernels cannot do it (see attention)."""
    attention: Literal["auto", "varlen", "padded"] = "auto"
    """Kernel: variable-length, or SDPA on padded rows. auto: varlen where device and dropout permit."""
    activation: Literal["gelu", "gelu_tanh", "geglu"] = "gelu"
    """GELU exact, GELU by tanh, or GELU-gated."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each residual sum (BERT), or before each sub-layer and at the end."""
    norm_eps: Annotated[float, Field(gt=0, le=1e-3)] = 1e-12
    """Added to the variance in layer norms."""
    positions: Literal["learned", "rotary"] = "learned"
    """Position embeddings, or rotation of queries and keys."""
    rotary_base: Annotated[float, Field(gt=1)] = 160_000.0
    """Base of the rotary wavelengths in layers with global attention."""
    rotary_base_local: Annotated[float, Field(gt=1)] = 10_000.0
    """Base of the rotary wavelengths in layers with local attention."""
    bias: bool = True
    """Biases in linear layers and norms; the token decoder always has one."""
    share_layers: bool = False
    """One set of layer weights, used in every layer (ALBERT)."""
    local_window: Annotated[int, Field(ge=0)] = 0
    """Tokens that a local layer sees: half before, half after. 0: every layer is global."""
    global_every: Annotated[int, Field(ge=1)] = 1
    """Layers 0, n, 2n, ... are global when there is a local window."""
    left_to_right: bool = False
    """Each token sees only itself and what is before it: the ablation of BERT's table 5."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the truncated normal from which weights are drawn."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(_STYLES.get(data.get("style", "bert"), {}))
        figures = _SIZES.get(data.get("size", "base"))
        if figures is not None:
            filled["layers"], filled["hidden_size"] = figures
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
            raise ValueError(f"embedding_size: {self.embedding_size} is above hidden_size {self.hidden_size}")
        if self.pair_objective != "none" and self.segments == 1:
            raise ValueError("segments: a pair objective needs 2 segments, or 0 for no segment embeddings")
        if self.local_window % 2:
            raise ValueError(f"local_window: {self.local_window} is odd; half of it lies on each side")
        if self.attention == "varlen" and self.attention_dropout > 0:
            raise ValueError(
                f"attention_dropout: the variable-length kernel cannot drop attention weights; "
                f"set it to 0 or attention to padded, got {self.attention_dropout}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def padded_vocab_size(self) -> int:
        """vocab_size rounded up to a multiple of 64: the rows that the embedding table has inside."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    def is_local(self, layer: int) -> bool:
        """Whether ``layer`` attends within the local window only."""
        return self.local_window > 0 and layer % self.global_every != 0

    def with_vocabulary(self, size: int) -> "ModelConfig":
        """The same shape with ``size`` pieces. Raises ConfigError for more than a model may have."""
        if size > MOST_PIECES:
            raise ConfigError(f"model.vocab_size: {size} pieces are more than {MOST_PIECES}")
        return ModelConfig.model_validate({**self.model_dump(), "vocab_size": size})
