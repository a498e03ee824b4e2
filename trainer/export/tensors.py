"""Converts parameters to and from the tensors of transformers, without importing it."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.errors import CheckpointError
from trainer.export.families import OFFSET_FAMILIES, PAIR_FAMILIES, Family, type_rows
from trainer.export.parameter_names import FamilyNames, Names, names_of
from trainer.model.config import ModelConfig

logger = logging.getLogger(__name__)

_WORD = "encoder.embeddings.word.weight"
_POSITION = "encoder.embeddings.position.weight"
_SEGMENT = "encoder.embeddings.segment.weight"
_DECODER = "token_head.decoder.weight"
_BIAS = "token_head.bias"


@dataclass(frozen=True)
class Parameters:
    """Our parameters from a checkpoint of transformers."""

    config: ModelConfig
    """With the pair objective and the decoder that the checkpoint has."""
    values: Mapping[str, Tensor]
    untrained: tuple[str, ...]
    """Heads that the checkpoint lacks: token_head, pair_head."""


def to_tensors(
    config: ModelConfig, family: Family, parameters: Mapping[str, Tensor], pad_id: int = 0
) -> dict[str, Tensor]:
    """The parameters in fp32 with their names in transformers, without the padding rows of the vocabulary.

    A tied decoder is not among them, because transformers ties it on loading. Families without a pooler
    and a pair head leave them out. ``pad_id`` decides the first position of RoBERTa.
    """
    names = names_of(config, family)
    table = names.encoder | names.token_head
    if config.pair_objective != "none" and family in PAIR_FAMILIES:
        table |= names.pooler | names.pair_head
    tensors: dict[str, Tensor] = {}
    for ours, theirs in table.items():
        value = _plain(parameters[ours])
        if ours == _WORD:
            value = value[: config.vocab_size]
        if ours == _POSITION and family in OFFSET_FAMILIES:
            value = F.pad(value, (0, 0, pad_id + 1, 0))
        for name, part in zip(theirs, value.chunk(len(theirs)), strict=True):
            tensors[name] = part.clone()
    rows = type_rows(config, family)
    if rows:
        zeros = torch.zeros(rows, config.embedding_size)
        tensors[names.token_types] = _plain(parameters[_SEGMENT]) if config.segments else zeros
    tensors[names.biases[-1]] = _plain(parameters[_BIAS])
    if not config.tie_decoder:
        tensors[names.decoder] = _plain(parameters[_DECODER])[: config.vocab_size].clone()
        tensors[names.biases[0]] = _plain(parameters[_BIAS])
    return tensors


def _plain(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float32).clone()


def from_tensors(
    config: ModelConfig, family: Family, tensors: Mapping[str, Tensor], origin: str, pad_id: int = 0
) -> Parameters:
    """Our parameters from the tensors of transformers, which may be those of the encoder alone.

    Raises CheckpointError that names ``origin`` and the first tensor that is missing, surplus, of another
    size, not floating-point or not finite. Never ignores a tensor of the encoder or initializes it randomly.
    """
    names = names_of(config, family)
    reader = _Reader(_renamed(tensors, names.prefix), origin)
    values = reader.all_of(names.encoder)
    if family in OFFSET_FAMILIES:
        values[_POSITION] = values[_POSITION][pad_id + 1 :]
    if names.token_types:
        _read_token_types(config, reader, names, values)
    # Log the heads that the import leaves out, and record those that an encoder's checkpoint lacks.
    pairs = family in PAIR_FAMILIES and reader.has_any(names.pooler)
    untrained: list[str] = []
    dense, decoder = reader.has_any(names.token_head), reader.has_any(_flat(names.biases))
    if dense or decoder:
        values |= reader.all_of(names.token_head)
    if decoder or (dense and family != "modernbert"):
        values |= _read_decoder(config, reader, names, values[_WORD])
    else:
        # A task's head of ModernBERT has the dense layer and norm of the MLM head, without a decoder.
        untrained.append("token_head")
    if pairs:
        values |= reader.all_of(names.pooler)
        if reader.has_any(names.pair_head):
            values |= reader.all_of(names.pair_head)
        else:
            untrained.append("pair_head")
    reader.finish(names, pair_head=not pairs)
    for name in (_WORD, _DECODER):
        if name in values:
            values[name] = F.pad(values[name], (0, 0, 0, config.padded_vocab_size - config.vocab_size))
    kept = _with_pairs(config, family, pairs=pairs)
    return Parameters(kept, values, tuple(untrained))


def _with_pairs(config: ModelConfig, family: Family, *, pairs: bool) -> ModelConfig:
    objective = "none"
    if pairs:
        own = config.pair_objective
        objective = own if own != "none" else ("sop" if family == "albert" else "nsp")
    return ModelConfig.model_validate({**config.model_dump(), "pair_objective": objective})


def _flat(names: Iterable[str]) -> list[tuple[str, ...]]:
    return [(name,) for name in names]


class _Reader:
    """The tensors that are still to be read."""

    def __init__(self, tensors: dict[str, Tensor], origin: str) -> None:
        self.left, self.origin = tensors, origin

    def fail(self, reason: str) -> NoReturn:
        raise CheckpointError(f"{self.origin}: {reason}")

    def has_any(self, names: Names | list[tuple[str, ...]]) -> bool:
        groups = names.values() if isinstance(names, dict) else names
        return any(name in self.left for group in groups for name in group)

    def take(self, name: str, needed_for: str) -> Tensor:
        if name not in self.left:
            self.fail(f"no tensor {name!r}, needed for {needed_for}")
        value = self.left.pop(name)
        if not value.is_floating_point():
            self.fail(f"tensor {name!r} is {value.dtype}; only floating-point weights can be read")
        if not bool(torch.isfinite(value).all()):
            self.fail(f"tensor {name!r} has values that are not finite")
        return value.float()

    def all_of(self, names: Names) -> dict[str, Tensor]:
        return {ours: torch.cat([self.take(name, ours) for name in theirs]) for ours, theirs in names.items()}

    def finish(self, names: FamilyNames, *, pair_head: bool) -> None:
        """Raises CheckpointError for a tensor that is left, except buffers and heads of tasks."""
        heads = (*names.ignored, "cls.seq_relationship.", "sop_classifier.") if pair_head else names.ignored
        dropped = sorted(name for name in self.left if name.startswith(heads))
        if dropped:
            logger.warning(
                "%s: left out heads that bertmill does not have: %s", self.origin, ", ".join(dropped)
            )
        buffers = ("embeddings.position_ids", "embeddings.token_type_ids")
        unused = sorted(name for name in self.left if name not in dropped and not name.endswith(buffers))
        if unused:
            self.fail(f"tensor {unused[0]!r} is not part of this model")


def _read_token_types(
    config: ModelConfig, reader: _Reader, names: FamilyNames, values: dict[str, Tensor]
) -> None:
    """Reads the token type table. Adds a single row to every position, as the model does with it."""
    table = reader.take(names.token_types, "encoder.embeddings.segment.weight")
    if config.segments:
        values[_SEGMENT] = table
    elif len(table) == 1 and table.shape[1] == values[_POSITION].shape[1]:
        values[_POSITION] = values[_POSITION] + table
    elif bool(table.any()):
        reader.fail(f"tensor {names.token_types!r} has {len(table)} rows, but bertmill.segments is 0")


def _read_decoder(
    config: ModelConfig, reader: _Reader, names: FamilyNames, word: Tensor
) -> dict[str, Tensor]:
    """The decoder's bias, and its weight if it is not tied. A tied copy must be equal to its original."""
    present = [name for name in names.biases if name in reader.left]
    if not present:
        reader.take(names.biases[-1], _BIAS)
    biases = [reader.take(name, _BIAS) for name in present]
    if config.tie_decoder and any(not bias.equal(biases[0]) for bias in biases):
        reader.fail(f"tensors {present[0]!r} and {present[1]!r} differ, but tie_word_embeddings is true")
    if not config.tie_decoder:
        return {_BIAS: biases[0], _DECODER: reader.take(names.decoder, _DECODER)}
    if names.decoder in reader.left and not reader.take(names.decoder, _WORD).equal(word):
        reader.fail(
            f"tensor {names.decoder!r} differs from the word embeddings, but tie_word_embeddings is true;"
            " set it to false in config.json if the decoder has its own weight"
        )
    return {_BIAS: biases[0]}


def _renamed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with today's names of norms, and the prefix that a checkpoint of an encoder leaves out."""
    renamed = {_modern_spelling(name): value for name, value in tensors.items()}
    if any(name.startswith(f"{prefix}.") for name in renamed):
        return renamed
    return {f"{prefix}.{name}": value for name, value in renamed.items()}


def _modern_spelling(name: str) -> str:
    """Renames the norms' parameters of checkpoints converted from the first TensorFlow releases."""
    return re.sub(
        r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    )
