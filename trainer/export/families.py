"""The architectures of transformers that a model can have, and what each requires of a ModelConfig."""

from typing import Literal, get_args

from schemas.errors import ConfigError
from trainer.model.config import ModelConfig

Family = Literal["bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "modernbert"]
"""A ``model_type`` of transformers."""

FAMILIES: tuple[Family, ...] = get_args(Family)

_CLASSES: dict[Family, str] = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "electra": "Electra",
    "modernbert": "ModernBert",
}

# In these, a sequence's first token has the position padding id + 1. The rows before it are not used.
OFFSET_FAMILIES: tuple[Family, ...] = ("roberta", "xlm-roberta")
# Only these have a pooler and a head for sentence pairs.
PAIR_FAMILIES: tuple[Family, ...] = ("bert", "albert")
# These always compute exact GELU in the MLM head. They ignore hidden_act there.
EXACT_HEAD_FAMILIES: tuple[Family, ...] = ("roberta", "xlm-roberta", "electra")
# DistilBERT has no field for the epsilon of its norms.
DISTILBERT_EPS = 1e-12


def family_of(config: ModelConfig, requested: Family | None = None) -> Family:
    """The family that an export of ``config`` belongs to. ``requested`` selects one.

    Raises ConfigError that names the field which transformers, or the requested family, does not have.
    """
    if requested is not None:
        _check(config, requested)
        return requested
    if config.norm == "pre":
        family: Family = "modernbert"
    elif config.share_layers:
        family = "albert"
    else:
        family = "bert" if config.embedding_size == config.hidden_size else "electra"
    _check(config, family)
    return family


def architecture_of(config: ModelConfig, family: Family) -> str:
    """The class in transformers that loads an export with the pretraining heads."""
    pairs = config.pair_objective != "none" and family in PAIR_FAMILIES
    return f"{_CLASSES[family]}For{'PreTraining' if pairs else 'MaskedLM'}"


def task_architecture_of(family: Family, task: str) -> str:
    """The class in transformers for a task such as ``SequenceClassification``."""
    return f"{_CLASSES[family]}For{task}"


def type_rows(config: ModelConfig, family: Family) -> int:
    """Rows of the token type table in transformers, or 0 for families without one.

    Without segments they are zeros: two for BERT, enough for any tokenizer, and RoBERTa's one.
    """
    if family in ("distilbert", "modernbert"):
        return 0
    return config.segments or (1 if family in OFFSET_FAMILIES else 2)


def _check(config: ModelConfig, family: Family) -> None:
    required = _required(config, family)
    for field, value in required.items():
        if getattr(config, field) != value:
            raise ConfigError(
                f"model.{field}: must be {value!r} for an export as {_CLASSES[family]} of transformers"
            )
    factorized = config.embedding_size != config.hidden_size
    if family == "albert" and not factorized:
        raise ConfigError("model.embedding_size: must be below hidden_size for an export as ALBERT")
    if family not in ("albert", "electra") and factorized:
        raise ConfigError(
            f"model.embedding_size: must be hidden_size for an export as {_CLASSES[family]} of transformers"
        )
    if config.activation == "geglu" and family != "modernbert":
        raise ConfigError(f"model.activation: geglu cannot be exported as {_CLASSES[family]} of transformers")


def _required(config: ModelConfig, family: Family) -> dict[str, object]:
    """Field -> the value that the family has for it."""
    common = {"left_to_right": False}
    if family == "modernbert":
        modern = {"norm": "pre", "positions": "rotary", "activation": "geglu", "bias": False, "segments": 0}
        return common | modern | {"share_layers": False}
    required = common | {"norm": "post", "positions": "learned", "bias": True, "local_window": 0}
    required["share_layers"] = family == "albert"
    if family in EXACT_HEAD_FAMILIES and config.activation != "geglu":
        required["activation"] = "gelu"
    if family == "distilbert":
        required |= {"segments": 0, "norm_eps": DISTILBERT_EPS}
    return required
