"""The names of parameters in transformers, by family and by part of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.export.families import OFFSET_FAMILIES, Family
from trainer.model.config import ModelConfig

Names = dict[str, tuple[str, ...]]
"""Our parameter -> its names in transformers. Several names mean matrices stacked in one parameter."""

_LINEAR, _NO_BIAS = ("weight", "bias"), ("weight",)
_QKV = ("query", "key", "value")


@dataclass(frozen=True)
class FamilyNames:
    """All names of a model in transformers."""

    prefix: str
    """Prefix of the encoder's names. A checkpoint of the encoder alone leaves it out."""
    encoder: Names
    token_head: Names
    """Without decoder and bias."""
    decoder: str
    """The decoder's weight, present if it is not tied."""
    biases: tuple[str, ...]
    """The decoder's bias: its own name, and the name that is tied to it, if there is one."""
    token_types: str = ""
    """The token type table, or "" for families without one."""
    pooler: Names = field(default_factory=dict)
    pair_head: Names = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Starts of names of heads of tasks that an import leaves out."""


def names_of(config: ModelConfig, family: Family) -> FamilyNames:
    """The names of ``config`` in ``family``, pooler and pair head included if the family has them."""
    if family == "albert":
        return _albert()
    if family == "modernbert":
        return _modernbert(config)
    if family == "distilbert":
        return _distilbert(config)
    return _bert_like(config, family)


def _pairs(table: Mapping[str, tuple[str, ...]], suffixes: tuple[str, ...] = _LINEAR) -> Names:
    return {
        f"{ours}.{suffix}": tuple(f"{name}.{suffix}" for name in theirs)
        for ours, theirs in table.items()
        for suffix in suffixes
    }


def _embeddings(prefix: str) -> Names:
    ours, theirs = "encoder.embeddings", f"{prefix}.embeddings"
    tables: Names = {
        f"{ours}.word": (f"{theirs}.word_embeddings",),
        f"{ours}.position": (f"{theirs}.position_embeddings",),
    }
    return _pairs(tables, _NO_BIAS) | _pairs({f"{ours}.norm": (f"{theirs}.LayerNorm",)})


def _token_types(prefix: str) -> str:
    return f"{prefix}.embeddings.token_type_embeddings.weight"


def _bert_like(config: ModelConfig, family: Family) -> FamilyNames:
    """BERT, RoBERTa and ELECTRA: equal layers, different heads."""
    prefix = "roberta" if family in OFFSET_FAMILIES else family
    table: Names = {}
    for number in range(config.layers):
        ours, theirs = f"encoder.layers.{number}", f"{prefix}.encoder.layer.{number}"
        table |= {
            f"{ours}.attention.qkv": tuple(f"{theirs}.attention.self.{part}" for part in _QKV),
            f"{ours}.attention.output": (f"{theirs}.attention.output.dense",),
            f"{ours}.attention_norm": (f"{theirs}.attention.output.LayerNorm",),
            f"{ours}.feed_forward.up": (f"{theirs}.intermediate.dense",),
            f"{ours}.feed_forward.down": (f"{theirs}.output.dense",),
            f"{ours}.feed_forward_norm": (f"{theirs}.output.LayerNorm",),
        }
    if config.embedding_size != config.hidden_size:
        table["encoder.embeddings.projection"] = (f"{prefix}.embeddings_project",)
    encoder = _embeddings(prefix) | _pairs(table)
    types = _token_types(prefix)
    tasks = ("classifier.", "qa_outputs.")
    head: Names
    if family in OFFSET_FAMILIES:
        head = {"token_head.dense": ("lm_head.dense",), "token_head.norm": ("lm_head.layer_norm",)}
        biases = ("lm_head.decoder.bias", "lm_head.bias")
        # The checkpoints of RoBERTa carry a pooler that was never trained.
        never_trained = (*tasks, "roberta.pooler.")
        weight = "lm_head.decoder.weight"
        return FamilyNames(prefix, encoder, _pairs(head), weight, biases, types, ignored=never_trained)
    if family == "electra":
        start = "generator_predictions"
        head = {"token_head.dense": (f"{start}.dense",), "token_head.norm": (f"{start}.LayerNorm",)}
        ignored = (*tasks, "discriminator_predictions.", "sequence_summary.")
        own_bias = ("generator_lm_head.bias",)
        weight = "generator_lm_head.weight"
        return FamilyNames(prefix, encoder, _pairs(head), weight, own_bias, types, ignored=ignored)
    start = "cls.predictions"
    head = {
        "token_head.dense": (f"{start}.transform.dense",),
        "token_head.norm": (f"{start}.transform.LayerNorm",),
    }
    return FamilyNames(
        prefix,
        encoder,
        _pairs(head),
        f"{start}.decoder.weight",
        (f"{start}.decoder.bias", f"{start}.bias"),
        types,
        pooler=_pairs({"pooler": ("bert.pooler.dense",)}),
        pair_head=_pairs({"pair_head": ("cls.seq_relationship",)}),
        ignored=tasks,
    )


def _albert() -> FamilyNames:
    ours, theirs = "encoder.layers.0", "albert.encoder.albert_layer_groups.0.albert_layers.0"
    table: Names = {
        "encoder.embeddings.projection": ("albert.encoder.embedding_hidden_mapping_in",),
        f"{ours}.attention.qkv": tuple(f"{theirs}.attention.{part}" for part in _QKV),
        f"{ours}.attention.output": (f"{theirs}.attention.dense",),
        f"{ours}.attention_norm": (f"{theirs}.attention.LayerNorm",),
        f"{ours}.feed_forward.up": (f"{theirs}.ffn",),
        f"{ours}.feed_forward.down": (f"{theirs}.ffn_output",),
        f"{ours}.feed_forward_norm": (f"{theirs}.full_layer_layer_norm",),
    }
    head: Names = {
        "token_head.dense": ("predictions.dense",),
        "token_head.norm": ("predictions.LayerNorm",),
    }
    return FamilyNames(
        "albert",
        _embeddings("albert") | _pairs(table),
        _pairs(head),
        "predictions.decoder.weight",
        ("predictions.decoder.bias", "predictions.bias"),
        _token_types("albert"),
        pooler=_pairs({"pooler": ("albert.pooler",)}),
        pair_head=_pairs({"pair_head": ("sop_classifier.classifier",)}),
        ignored=("classifier.", "qa_outputs."),
    )


def _distilbert(config: ModelConfig) -> FamilyNames:
    table: Names = {}
    for number in range(config.layers):
        ours, theirs = f"encoder.layers.{number}", f"distilbert.transformer.layer.{number}"
        table |= {
            f"{ours}.attention.qkv": tuple(f"{theirs}.attention.{part}_lin" for part in "qkv"),
            f"{ours}.attention.output": (f"{theirs}.attention.out_lin",),
            f"{ours}.attention_norm": (f"{theirs}.sa_layer_norm",),
            f"{ours}.feed_forward.up": (f"{theirs}.ffn.lin1",),
            f"{ours}.feed_forward.down": (f"{theirs}.ffn.lin2",),
            f"{ours}.feed_forward_norm": (f"{theirs}.output_layer_norm",),
        }
    head: Names = {
        "token_head.dense": ("vocab_transform",),
        "token_head.norm": ("vocab_layer_norm",),
    }
    return FamilyNames(
        "distilbert",
        _embeddings("distilbert") | _pairs(table),
        _pairs(head),
        "vocab_projector.weight",
        ("vocab_projector.bias",),
        ignored=("classifier.", "pre_classifier.", "qa_outputs."),
    )


def _modernbert(config: ModelConfig) -> FamilyNames:
    table: Names = {
        "encoder.embeddings.word": ("model.embeddings.tok_embeddings",),
        "encoder.embeddings.norm": ("model.embeddings.norm",),
        "encoder.final_norm": ("model.final_norm",),
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
    head: Names = {"token_head.dense": ("head.dense",), "token_head.norm": ("head.norm",)}
    return FamilyNames(
        "model",
        _pairs(table, _NO_BIAS),
        _pairs(head, _NO_BIAS),
        "decoder.weight",
        ("decoder.bias",),
        ignored=("classifier.", "qa_outputs."),
    )
