"""Loads a trained model from an exported directory, a run, or one checkpoint of a run."""

import hashlib
import json
import logging
from dataclasses import dataclass

import torch

from cluster import storage
from schemas.errors import CheckpointError, ConfigError
from schemas.json_text import parse_json
from trainer.checkpoint.manifest import MANIFEST, RunState
from trainer.checkpoint.reading import LoadedCheckpoint, latest_verified, open_checkpoint
from trainer.checkpoint.snapshot import check_finite
from trainer.export.directory import CONFIG_NAME, open_directory
from trainer.model.config import ModelConfig
from trainer.model.objectives import OBJECTIVE_MODULE
from trainer.model.pretraining import BertPretraining

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedModel:
    """A model on the CPU, in evaluation mode, with the facts about its training."""

    model: BertPretraining
    uri: str
    step: int | None = None
    """Optimizer steps done, or None for an exported model."""
    run: RunState | None = None
    """The state of the run, or None for an exported model."""
    pad_id: int | None = None
    """The token of an imported RoBERTa at which its positions are not counted."""
    vocabulary_sha256: str | None = None
    """SHA-256 of the vocabulary that the token ids refer to, or None if it is not known."""

    def require_mlm(self, purpose: str) -> None:
        """Raises CheckpointError when the model has no trained MLM head."""
        if "token_head" in self.model.untrained:
            raise CheckpointError(f"{self.uri}: has no MLM head, which {purpose} needs")

    def check_vocabulary(self, sha256: str, where: str, field: str) -> None:
        """Raises ConfigError when the model's vocabulary is known and is not that of ``where``.

        Two vocabularies of one size fit the same model, but their ids mean different subwords.
        """
        if self.vocabulary_sha256 is None:
            logger.warning("%s: the vocabulary of %s is unknown; only its size was compared", field, self.uri)
        elif self.vocabulary_sha256 != sha256:
            raise ConfigError(
                f"{field}: {self.uri} has another vocabulary (SHA-256 {self.vocabulary_sha256[:12]}) than"
                f" {where} ({sha256[:12]})"
            )


def vocabulary_digest(folder: str) -> str | None:
    """SHA-256 of the vocabulary in a model's folder, as vocab.txt has it, or None without a tokenizer there.

    Also None for other tokenizers than WordPiece, whose tokenizer.json cannot be compared with a vocab.txt.
    Raises CheckpointError for a file that is not readable.
    """
    text, tokenizer = storage.join(folder, "vocab.txt"), storage.join(folder, "tokenizer.json")
    if storage.exists(text):
        try:
            vocabulary = storage.read_bytes(text).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{text}: not UTF-8") from error
        lines = vocabulary.replace("\r\n", "\n").removesuffix("\n").split("\n")
    elif storage.exists(tokenizer):
        try:
            model = parse_json(storage.read_bytes(tokenizer))["model"]
            ids = model["vocab"] if model.get("type") == "WordPiece" else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{tokenizer}: has no vocabulary") from error
        if ids is None:
            return None
        lines = sorted(ids, key=ids.__getitem__)
    else:
        return None
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def content_digest(model: BertPretraining) -> str:
    """SHA-256 of a model's weights and of what it computes with them, for any place and format of storage.

    Fields of the config at their defaults do not count, so a version with more fields gives the same.
    """
    computes = model.config.model_dump(
        mode="json", exclude_defaults=True, exclude={"attention", "size", "style"}
    )
    digest = hashlib.sha256(json.dumps(computes, sort_keys=True).encode())
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {list(plain.shape)}".encode())
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def load_model(uri: str, *, ema: bool = False) -> SavedModel:
    """The model at ``uri``: a Hugging Face directory, a run (its newest verified checkpoint) or a checkpoint.

    With ``ema`` its weights are the moving average that the run kept. Raises CheckpointError when there is
    no model or no average, or when its files are damaged.
    """
    if ema and storage.exists(storage.join(uri, CONFIG_NAME)):
        raise CheckpointError(f"{uri}: a Hugging Face directory; only a run or a checkpoint has EMA weights")
    if storage.exists(storage.join(uri, CONFIG_NAME)):
        imported = open_directory(uri)
        digest = vocabulary_digest(uri)
        return SavedModel(imported.model.eval(), uri, pad_id=imported.pad_id, vocabulary_sha256=digest)
    if storage.exists(storage.join(uri, MANIFEST)):
        return _of_checkpoint(open_checkpoint(uri), ema=ema)
    while True:
        checkpoint = latest_verified(uri)
        if checkpoint is None:
            raise CheckpointError(f"{uri}: neither a run with checkpoints nor a model with a {CONFIG_NAME}")
        try:
            return _of_checkpoint(checkpoint, ema=ema)
        except CheckpointError:
            # A running training may have deleted it in the meantime, after writing a newer one.
            if storage.exists(storage.join(checkpoint.uri, MANIFEST)):
                raise


def _of_checkpoint(checkpoint: LoadedCheckpoint, *, ema: bool) -> SavedModel:
    with checkpoint:
        state = checkpoint.load()
    if ema and not state.ema:
        raise CheckpointError(f"{checkpoint.uri}: has no EMA weights; the config of the run must set ema")
    # The head of an added objective is only useful in training.
    prefix = f"{OBJECTIVE_MODULE}."
    stored = {**state.model, **state.ema} if ema else state.model
    weights = {name: value for name, value in stored.items() if not name.startswith(prefix)}
    check_finite(weights, f"{checkpoint.uri}: model")
    try:
        # The run's kernel may not be available on this machine.
        config = ModelConfig.model_validate({**state.run.model, "attention": "auto"})
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.uri}: not the config of a model: {error}") from error
    model = BertPretraining(config)
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint.uri}: its weights do not fit its model: {reason}") from error
    digest = state.run.corpus.vocabulary_sha256
    return SavedModel(model.eval(), checkpoint.uri, checkpoint.step, state.run, vocabulary_sha256=digest)
