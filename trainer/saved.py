"""Finds a trained model wherever it lies: an exported directory, a run, or one checkpoint of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster import storage
from schemas.errors import CheckpointError
from trainer.checkpoint import LoadedCheckpoint, latest_verified, open_checkpoint
from trainer.checkpoint_format import MANIFEST, check_finite
from trainer.export import CONFIG_NAME, import_model
from trainer.model import BertPretraining
from trainer.model_config import ModelConfig


@dataclass(frozen=True)
class SavedModel:
    """A model on the CPU, in evaluation mode, and what is known of its training."""

    model: BertPretraining
    uri: str
    step: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config of the run."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """uri and sha256 of the corpus manifest it was trained on."""


def load_model(uri: str) -> SavedModel:
    """The model at ``uri``: a Hugging Face directory, a run (its newest verified checkpoint), a checkpoint.

    Raises CheckpointError when there is none, or when its files are damaged.
    """
    if storage.exists(storage.join(uri, CONFIG_NAME)):
        return SavedModel(import_model(uri).eval(), uri)
    if storage.exists(storage.join(uri, MANIFEST)):
        return _of_checkpoint(open_checkpoint(uri))
    while True:
        checkpoint = latest_verified(uri)
        if checkpoint is None:
            raise CheckpointError(f"{uri}: no checkpoint of a run, and no {CONFIG_NAME} of a model")
        try:
            return _of_checkpoint(checkpoint)
        except CheckpointError:
            # A training that goes on may have deleted it since; there is a newer one then.
            if storage.exists(storage.join(checkpoint.uri, MANIFEST)):
                raise


def _of_checkpoint(checkpoint: LoadedCheckpoint) -> SavedModel:
    with checkpoint:
        state = checkpoint.load()
    check_finite(state["model"], f"{checkpoint.uri}: model")
    kept = state["trainer"]
    try:
        # The kernel that the run asked for need not exist where its model is loaded.
        config = ModelConfig.model_validate({**kept["model"], "attention": "auto"})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.uri}: does not say the shape of its model") from error
    model = BertPretraining(config)
    try:
        model.load_state_dict(state["model"], strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{checkpoint.uri}: not the weights of its model: {reason}") from error
    origin = {name: kept.get(name, {}) for name in ("config", "corpus")}
    for name, about in origin.items():
        if not isinstance(about, dict):
            raise CheckpointError(f"{checkpoint.uri}: {name} is no mapping")
    return SavedModel(model.eval(), checkpoint.uri, checkpoint.step, **origin)
