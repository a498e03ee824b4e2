"""Weights that a new run begins with when they are not drawn: another model's, or a teacher's."""

import hashlib
import logging

from cluster import storage
from schemas.errors import ConfigError
from trainer.corpus import Corpus
from trainer.distill import copy_from_teacher
from trainer.model import BertPretraining
from trainer.saved import SavedModel, load_model

log = logging.getLogger(__name__)

_HEADS = ("pooler.", "pair_head.")


def start_from(model: BertPretraining, uri: str, corpus: Corpus) -> None:
    """Gives ``model`` the weights of the model at ``uri``: continued pretraining.

    Raises ConfigError when vocabulary, names or shapes differ; only pooler and pair head may be left
    behind, when ``model`` has no pair objective, and that is logged.
    """
    saved = _load(uri, "start_from", corpus)
    theirs = saved.model.state_dict()
    ours = model.state_dict()
    if model.config.pair_objective == "none":
        left = [name for name in theirs if name.startswith(_HEADS)]
        if left:
            log.warning("start_from: %s are left behind, model.pair_objective is none", ", ".join(left))
        theirs = {name: value for name, value in theirs.items() if name not in left}
    for name in sorted(ours.keys() | theirs.keys()):
        here = "nothing" if name not in ours else str(list(ours[name].shape))
        there = "nothing" if name not in theirs else str(list(theirs[name].shape))
        if here != there:
            raise ConfigError(f"start_from: {uri} has {there} for {name}, the model has {here}")
    model.load_state_dict(theirs, strict=True)


def load_teacher(student: BertPretraining, uri: str, corpus: Corpus, *, copy_layers: bool) -> BertPretraining:
    """The teacher at ``uri``; with ``copy_layers`` the student begins with its weights.

    Raises ConfigError when its vocabulary is not the corpus', or its weights do not fit.
    """
    teacher = _load(uri, "distillation.teacher", corpus).model
    if copy_layers:
        copy_from_teacher(student, teacher)
    return teacher


def _load(uri: str, field: str, corpus: Corpus) -> SavedModel:
    saved = load_model(uri)
    pieces, wanted = saved.model.config.vocab_size, corpus.vocab_size
    vocabulary = storage.join(uri, "vocab.txt")
    if pieces != wanted:
        raise ConfigError(f"{field}: {uri} has {pieces} pieces, {corpus.uri} has {wanted}")
    if storage.exists(vocabulary):
        digest = hashlib.sha256(storage.read_bytes(vocabulary)).hexdigest()
        if digest != corpus.manifest["vocabulary"]["sha256"]:
            raise ConfigError(f"{field}: {vocabulary} is not the vocabulary of {corpus.uri}")
    elif saved.corpus and saved.corpus.get("sha256") != corpus.digest:
        log.warning("%s: %s was trained on another corpus, of as many pieces", field, uri)
    return saved
