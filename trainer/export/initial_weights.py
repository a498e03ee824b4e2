"""Initial weights of a run from another model, or from a teacher."""

import logging

from torch import Tensor

from cluster import storage
from schemas.errors import ConfigError
from trainer.data.corpus import Corpus
from trainer.distributed.sharding import load_unsharded
from trainer.export.load_model import SavedModel, content_digest, load_model
from trainer.export.tokenizer_folder import PIECES, TOKENIZER, load_tokenizer
from trainer.model.distillation import copy_from_teacher
from trainer.model.objectives import OBJECTIVE_MODULE
from trainer.model.pretraining import BertPretraining

logger = logging.getLogger(__name__)

_HEADS = ("pooler.", "pair_head.")


def start_from(model: BertPretraining, uri: str, corpus: Corpus) -> str:
    """Initializes ``model`` with the weights of the model at ``uri`` and returns the digest of its content.

    Raises ConfigError when vocabulary, names or shapes differ. If ``model`` has no pair objective, it drops
    the pooler and the pair head of the other model, and logs that.
    """
    saved = _load(uri, "start_from", corpus)
    theirs = saved.model.state_dict()
    ours = model.state_dict()
    if model.config.pair_objective == "none":
        dropped = [name for name in theirs if name.startswith(_HEADS)]
        if dropped:
            logger.warning("start_from: dropped %s, because model.pair_objective is none", ", ".join(dropped))
        theirs = {name: value for name, value in theirs.items() if name not in dropped}
    theirs |= _initial_heads((*saved.model.untrained, OBJECTIVE_MODULE), ours)
    for name in sorted(ours.keys() | theirs.keys()):
        own_shape = "no such tensor" if name not in ours else str(list(ours[name].shape))
        their_shape = "no such tensor" if name not in theirs else str(list(theirs[name].shape))
        if own_shape != their_shape:
            raise ConfigError(f"start_from: {name}: {uri} has {their_shape}, the model has {own_shape}")
    load_unsharded(model, theirs)
    return content_digest(saved.model)


def _initial_heads(untrained: tuple[str, ...], ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """The model's own initial weights of the heads that the other model lacks."""
    starts = tuple(f"{head}." for head in untrained)
    return {name: value for name, value in ours.items() if name.startswith(starts)}


def load_teacher(student: BertPretraining, uri: str, corpus: Corpus, *, copy_layers: bool) -> BertPretraining:
    """The teacher at ``uri``. ``copy_layers`` initializes the student with its weights.

    Raises ConfigError when its vocabulary is not that of the corpus, or its weights do not fit.
    """
    saved = _load(uri, "distillation.teacher", corpus)
    saved.require_mlm("a teacher")
    teacher = saved.model
    if copy_layers:
        copy_from_teacher(student, teacher)
    return teacher


def _load(uri: str, field: str, corpus: Corpus) -> SavedModel:
    saved = load_model(uri)
    size = saved.model.config.vocab_size
    if size != corpus.vocab_size:
        raise ConfigError(
            f"{field}: the vocabulary of {uri} has {size} entries, that of {corpus.uri} {corpus.vocab_size}"
        )
    folder = storage.join(corpus.folder, corpus.manifest.vocabulary.path).rpartition("/")[0]
    if storage.exists(storage.join(folder, PIECES)) and storage.exists(storage.join(uri, TOKENIZER)):
        # The vocabulary of such a corpus is the tokenizer's in another notation, with another digest.
        if load_tokenizer(uri).get_vocab() != load_tokenizer(folder).get_vocab():
            raise ConfigError(f"{field}: {uri} and {corpus.uri} have different tokenizers")
    else:
        saved.check_vocabulary(corpus.manifest.vocabulary.sha256, corpus.uri, field)
    return saved
