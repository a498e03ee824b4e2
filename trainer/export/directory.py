"""Writes a model as a Hugging Face directory and reads one, without transformers."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor

from cluster import storage
from schemas.errors import CheckpointError, ConfigError
from schemas.json_text import parse_json
from trainer.export.families import OFFSET_FAMILIES, Family, architecture_of, family_of, type_rows
from trainer.export.hub_config import from_config
from trainer.export.hugging_face import to_config
from trainer.export.tensors import from_tensors, to_tensors
from trainer.export.tokenizer_folder import (
    VOCABULARY_FILES,
    input_names,
    json_bytes,
    load_tokenizer,
    special_ids,
    special_token,
    tokenizer_files,
)
from trainer.model.config import ModelConfig
from trainer.model.pretraining import BertPretraining, parameter_count

logger = logging.getLogger(__name__)

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
CONFIG_NAME = "config.json"
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".h5", ".msgpack")


@dataclass(frozen=True)
class ModelCard:
    """The content of the model card in addition to the model's config. Empty parts are left out."""

    name: str
    languages: tuple[str, ...] = ()
    manifest_sha256: str = ""
    """SHA-256 of the corpus manifest."""
    step: int | None = None
    """Optimizer steps done."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's whole config."""
    evaluation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Held-out metrics by language, as bertmill evaluate gives them."""
    ema: bool = False
    """Whether the weights are a moving average over the steps."""


def export_model(
    model: BertPretraining, output: str, tokenizer: str, card: ModelCard, family: Family | None = None
) -> None:
    """Writes ``model`` into the folder or URI ``output``, with the files of the folder ``tokenizer``.

    ``family`` requests an architecture of transformers, by default the one that fits. config.json is
    written last, so a folder without it is an unfinished export. Raises ConfigError when transformers, or
    the family, has no such model, InputError or CorpusError when the tokenizer does not fit the model.
    """
    if model.untrained:
        raise ConfigError(f"{card.name}: no weights for {', '.join(model.untrained)}, so it is not exported")
    family = family_of(model.config, family)
    ids = special_ids(tokenizer, model.config.vocab_size)
    config = to_config(model.config, family, ids)
    tensors = to_tensors(model.config, family, model.state_dict(), ids["[PAD]"])
    names = input_names(segments=_takes_token_types(model.config, family))
    files = tokenizer_files(tokenizer, model.config.max_positions, names)
    weights = safetensors.torch.save(tensors, metadata={"format": "pt"})
    mask = special_token(tokenizer, "[MASK]", load_tokenizer(tokenizer))
    readme = card_text(model, card, hashlib.sha256(weights).hexdigest(), family, mask)
    write_directory(output, {**files, WEIGHTS_NAME: weights, "README.md": readme.encode()}, config)


def write_directory(output: str, files: Mapping[str, bytes], config: Mapping[str, Any]) -> None:
    """Writes ``files`` and then config.json into ``output``, replacing an older export of the same files.

    Raises ConfigError when weights or a vocabulary of another model would remain beside them.
    """
    left = [
        name
        for name in (entry.uri.rpartition("/")[2] for entry in storage.list_files(f"{output.rstrip('/')}/"))
        if name not in files and (name in VOCABULARY_FILES or name.endswith(_WEIGHT_SUFFIXES))
    ]
    if left:
        raise ConfigError(f"{output}: holds {min(left)} of another model; choose an empty folder")
    storage.delete(storage.join(output, CONFIG_NAME))
    for name, content in files.items():
        storage.put_bytes(storage.join(output, name), content)
    storage.put_bytes(storage.join(output, CONFIG_NAME), json_bytes(config))


def _takes_token_types(config: ModelConfig, family: Family) -> bool:
    """Whether a tokenizer should make token types: RoBERTa without segments has the type 0 only."""
    return type_rows(config, family) > 1


@dataclass(frozen=True)
class ImportedModel:
    """A model from a Hugging Face directory."""

    model: BertPretraining
    family: Family
    pad_id: int | None
    """The padding token, if positions are not counted at it (RoBERTa)."""
    task_head: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors of a task's head, if they were requested."""


def import_model(uri: str) -> BertPretraining:
    """The model in the Hugging Face directory ``uri``. See `open_directory`."""
    return open_directory(uri).model


def open_directory(uri: str, task_head: tuple[str, ...] = ()) -> ImportedModel:
    """The model in the Hugging Face directory ``uri``, with the heads that it has.

    ``task_head`` are prefixes of tensors that are returned as they are. Heads that the directory lacks are
    listed in the model's ``untrained``, and have initial weights that do not depend on torch's random
    state. Raises CheckpointError that names the file and the field of config.json, or the missing or
    surplus tensor.
    """
    config_uri = storage.join(uri, CONFIG_NAME)
    try:
        data = parse_json(_read(config_uri))
    except ValueError as error:
        raise CheckpointError(f"{config_uri}: not JSON: {error}") from error
    hub = from_config(data, config_uri)
    weights_uri, tensors = _read_weights(uri)
    head = {name: tensors.pop(name) for name in list(tensors) if task_head and name.startswith(task_head)}
    parameters = from_tensors(hub.config, hub.family, tensors, weights_uri, hub.pad_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertPretraining(parameters.config)
    own = model.state_dict()
    for name, value in parameters.values.items():
        if own[name].shape != value.shape:
            shapes = f"{list(value.shape)}, but the config needs {list(own[name].shape)}"
            raise CheckpointError(f"{weights_uri}: the tensor for {name} has shape {shapes}")
    model.load_state_dict({**own, **parameters.values}, strict=True)
    model.untrained = parameters.untrained
    if model.untrained and not head:
        logger.warning("%s: has no weights for %s", uri, ", ".join(model.untrained))
    pad_id = hub.pad_id if hub.family in OFFSET_FAMILIES else None
    return ImportedModel(model, hub.family, pad_id, head)


def _read(uri: str) -> bytes:
    try:
        return storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{uri}: no such file; a model needs config.json and model.safetensors (or its shards and"
            f" {INDEX_NAME})"
        ) from error


def _read_weights(uri: str) -> tuple[str, dict[str, Tensor]]:
    """The file to name in errors, and all tensors, from one file or from shards."""
    weights_uri, index_uri = storage.join(uri, WEIGHTS_NAME), storage.join(uri, INDEX_NAME)
    if storage.exists(weights_uri) or not storage.exists(index_uri):
        return weights_uri, _load(weights_uri)
    try:
        file_of = parse_json(_read(index_uri))["weight_map"]
        shards = sorted({str(name) for name in file_of.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index_uri}: not an index of shards: {error!r:.80}") from error
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard):
            raise CheckpointError(f"{index_uri}: {shard!r} is not the name of a shard")
        shard_tensors = _load(storage.join(uri, shard))
        listed = {name for name, file in file_of.items() if file == shard}
        if shard_tensors.keys() != listed:
            name = min(shard_tensors.keys() ^ listed)
            raise CheckpointError(f"{index_uri}: tensor {name!r} is in only one of {shard} and the index")
        tensors |= shard_tensors
    return index_uri, tensors


def _load(uri: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(_read(uri))
    except SafetensorError as error:
        raise CheckpointError(f"{uri}: {error}") from error


def card_text(
    model: BertPretraining, card: ModelCard, weights_sha256: str, family: Family, mask: str = "[MASK]"
) -> str:
    """README.md: metadata, how to load the model, its training and its held-out metrics.

    ``mask`` is the mask token of the tokenizer.
    """
    config = model.config
    head = {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "language": list(card.languages),
        "tags": ["bert", "masked-lm", "bertmill"],
    }
    if not card.languages:
        del head["language"]
    architecture = architecture_of(config, family)
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {card.name}",
        f"A {config.style}-style encoder pretrained from scratch with bertmill: {config.layers} layers, "
        f"hidden size {config.hidden_size}, {config.heads} heads, a vocabulary of {config.vocab_size:,}, "
        f"sequences of up to {config.max_positions}, {parameter_count(model):,} parameters.",
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        f'pipeline("fill-mask", "{card.name}")("This is a {mask}.")\n```\n\n'
        f"It loads as `{architecture}`.{_left_out(config, architecture)}",
        _training_text(config, card, weights_sha256),
    ]
    if card.evaluation:
        parts.append(f"## Held-out evaluation\n\n{_table(card.evaluation)}")
    parts.append(
        "## Limitations\n\nThe model reproduces errors and biases of its training text. It is not "
        "fine-tuned for any task."
    )
    if card.config:
        dumped = yaml.safe_dump(dict(card.config), sort_keys=False, allow_unicode=True)
        parts.append(f"## Config of the run\n\n```yaml\n{dumped}```")
    return "\n\n".join(parts) + "\n"


def _left_out(config: ModelConfig, architecture: str) -> str:
    if config.pair_objective != "none" and "PreTraining" not in architecture:
        return " That architecture has no head for sentence pairs, so the export leaves it out."
    return ""


def _training_text(config: ModelConfig, card: ModelCard, weights_sha256: str) -> str:
    objective = {
        "nsp": "masked LM and next sentence prediction (class 0: B follows A)",
        "sop": "masked LM and sentence order prediction (class 0: in order)",
        "none": "masked LM",
    }[config.pair_objective]
    lines = [f"- Objective: {objective}"]
    if card.step is not None:
        average = "; the weights are their exponential moving average" if card.ema else ""
        lines.append(f"- Optimizer steps: {card.step:,}{average}")
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
    columns = list(dict.fromkeys(name for metrics in evaluation.values() for name in metrics))
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    for name, metrics in evaluation.items():
        rows.append([name, *(_figure(metrics.get(column)) for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
