"""Writes a model as a Hugging Face directory, and reads one back; transformers is not needed for it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
import yaml
from safetensors import SafetensorError

from cluster import storage
from schemas.errors import CheckpointError, CorpusError
from schemas.json_text import parse_json
from schemas.vocabulary import SPECIAL_TOKENS
from trainer.hugging_face import architecture_of, from_config, from_tensors, to_config, to_tensors
from trainer.model import BertPretraining, parameter_count
from trainer.model_config import ModelConfig

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelCard:
    """What the card says beyond the model's shape; empty parts are left out."""

    name: str
    languages: tuple[str, ...] = ()
    manifest_sha256: str = ""
    """SHA-256 of the corpus manifest."""
    step: int | None = None
    """Optimizer steps made."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's whole config."""
    evaluation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures by language, as from trainer.evaluate."""


def export_model(model: BertPretraining, output: str, tokenizer: str, card: ModelCard) -> None:
    """Writes ``model`` into the folder or URI ``output``, with the files of the folder ``tokenizer``.

    config.json comes last: what has none is not a finished export. Raises ConfigError when transformers
    has no such architecture, CorpusError when the tokenizer is not the model's.
    """
    config = to_config(model.config, special_ids(tokenizer, model.config))
    tensors = to_tensors(model.config, model.state_dict())
    for name, content in tokenizer_files(tokenizer, model.config).items():
        storage.put_bytes(storage.join(output, name), content)
    weights = safetensors.torch.save(tensors, metadata={"format": "pt"})
    storage.put_bytes(storage.join(output, WEIGHTS_NAME), weights)
    readme = card_text(model, card, hashlib.sha256(weights).hexdigest())
    storage.put_bytes(storage.join(output, "README.md"), readme.encode())
    storage.put_bytes(storage.join(output, CONFIG_NAME), json_bytes(config))


def import_model(uri: str) -> BertPretraining:
    """The model in the Hugging Face directory ``uri``, with the heads that its architecture has.

    Raises CheckpointError that names the file and what is missing or has no place.
    """
    try:
        raw = storage.read_bytes(storage.join(uri, CONFIG_NAME))
        weights = storage.read_bytes(storage.join(uri, WEIGHTS_NAME))
    except FileNotFoundError as error:
        raise CheckpointError(f"{error}: no such file; config.json and model.safetensors are read") from error
    config_uri, weights_uri = storage.join(uri, CONFIG_NAME), storage.join(uri, WEIGHTS_NAME)
    try:
        data = parse_json(raw)
        tensors = safetensors.torch.load(weights)
    except ValueError as error:
        raise CheckpointError(f"{config_uri}: not JSON: {error}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{weights_uri}: {error}") from error
    config = from_config(data, config_uri)
    parameters = from_tensors(config, tensors, weights_uri)
    with torch.random.fork_rng(devices=[]):
        model = BertPretraining(config)
    own = model.state_dict()
    for name, value in parameters.items():
        if own[name].shape != value.shape:
            shapes = f"{list(value.shape)}, the config says {list(own[name].shape)}"
            raise CheckpointError(f"{weights_uri}: the tensor for {name} is {shapes}")
    model.load_state_dict(parameters, strict=True)
    return model


def special_ids(tokenizer: str, config: ModelConfig) -> dict[str, int]:
    """Special token -> id in the folder ``tokenizer``.

    Raises CorpusError when a file of it is missing, or its vocabulary is not one of the model's size.
    """
    uri = storage.join(tokenizer, TOKENIZER_FILES[0])
    for name in TOKENIZER_FILES:
        if not storage.exists(storage.join(tokenizer, name)):
            raise CorpusError(f"{storage.join(tokenizer, name)}: no such tokenizer file")
    pieces = storage.read_bytes(uri).decode().removesuffix("\n").split("\n")
    if len(pieces) != config.vocab_size:
        raise CorpusError(f"{uri}: {len(pieces)} pieces, the model has {config.vocab_size}")
    missing = [token for token in SPECIAL_TOKENS if token not in pieces]
    if missing:
        raise CorpusError(f"{uri}: no {missing[0]} in it")
    return {token: pieces.index(token) for token in SPECIAL_TOKENS}


def tokenizer_files(tokenizer: str, config: ModelConfig) -> dict[str, bytes]:
    """The files of the folder ``tokenizer``, with the settings of this model."""
    files = {name: storage.read_bytes(storage.join(tokenizer, name)) for name in TOKENIZER_FILES}
    name = "tokenizer_config.json"
    return files | {name: _tokenizer_config(files[name], config)}


def _tokenizer_config(raw: bytes, config: ModelConfig) -> bytes:
    """The tokenizer's settings, with the length and the inputs of this model."""
    data = parse_json(raw)
    data["model_max_length"] = config.max_positions
    names = ["input_ids", "attention_mask"]
    if config.norm == "post":
        names.insert(1, "token_type_ids")
    data["model_input_names"] = names
    return json_bytes(data)


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys and a newline at the end."""
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def card_text(model: BertPretraining, card: ModelCard, weights_sha256: str) -> str:
    """README.md: metadata, how to load it, what it was trained on and how well it does."""
    config = model.config
    head = {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "language": list(card.languages),
        "tags": ["bert", "masked-lm", "bertmill"],
    }
    if not card.languages:
        del head["language"]
    architecture = architecture_of(config)
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {card.name}",
        f"A {config.style}-style encoder pretrained from scratch with bertmill: {config.layers} layers, "
        f"hidden size {config.hidden_size}, {config.heads} heads, {config.vocab_size:,} pieces, sequences of "
        f"up to {config.max_positions}, {parameter_count(model):,} parameters.",
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        f'pipeline("fill-mask", "{card.name}")("This is a [MASK].")\n```\n\n'
        f"It loads as `{architecture}`.{_left_out(config, architecture)}",
        _training_text(config, card, weights_sha256),
    ]
    if card.evaluation:
        parts.append(f"## Held-out evaluation\n\n{_table(card.evaluation)}")
    parts.append(
        "## Limits\n\nThe model repeats what its training text holds, wrong and one-sided statements "
        "included. It was not tuned for any task."
    )
    if card.config:
        dumped = yaml.safe_dump(dict(card.config), sort_keys=False, allow_unicode=True)
        parts.append(f"## Config of the run\n\n```yaml\n{dumped}```")
    return "\n\n".join(parts) + "\n"


def _left_out(config: ModelConfig, architecture: str) -> str:
    if config.pair_objective != "none" and "PreTraining" not in architecture:
        return " The pair head is not part of that architecture and was left out."
    return ""


def _training_text(config: ModelConfig, card: ModelCard, weights_sha256: str) -> str:
    objective = {
        "nsp": "masked tokens and next sentence (class 0: B follows A)",
        "sop": "masked tokens and sentence order (class 0: in order)",
        "none": "masked tokens",
    }[config.pair_objective]
    lines = [f"- Objective: {objective}"]
    if card.step is not None:
        lines.append(f"- Optimizer steps: {card.step:,}")
    if card.languages:
        lines.append(f"- Languages: {', '.join(card.languages)}")
    if card.manifest_sha256:
        lines.append(f"- Corpus manifest, SHA-256: `{card.manifest_sha256}`")
    lines += [
        f"- Dropout in training: {config.hidden_dropout} on hidden states, "
        f"{config.attention_dropout} on attention weights",
        f"- Weights, SHA-256: `{weights_sha256}`",
    ]
    return "## Training\n\n" + "\n".join(lines)


def _table(evaluation: Mapping[str, Mapping[str, float]]) -> str:
    columns = list(dict.fromkeys(name for figures in evaluation.values() for name in figures))
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    for name, figures in evaluation.items():
        rows.append([name, *(_figure(figures.get(column)) for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
