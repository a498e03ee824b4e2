"""Reads a fine-tuned model from a Hugging Face directory that bertmill or transformers wrote."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cluster import storage
from schemas.errors import CheckpointError
from schemas.json_text import parse_json
from trainer.export.directory import CONFIG_NAME, ImportedModel, open_directory
from trainer.export.families import Family
from trainer.finetuning.heads.model import Activation, HeadKind, TaskModel, uses_token_head
from trainer.finetuning.saved.settings import settings_of

_KINDS: dict[str, HeadKind] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "spans",
}
_HEADS = ("classifier.", "pre_classifier.", "qa_outputs.")
# Sequence heads with a separate dense layer: its name, its activation, the name of the output layer.
_DENSE: dict[Family, tuple[str, Activation, str]] = {
    "roberta": ("classifier.dense", "tanh", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "tanh", "classifier.out_proj"),
    "electra": ("classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "relu", "classifier"),
}


class LoadedTask:
    """A fine-tuned model from a Hugging Face directory, on the CPU.

    ``labels`` are the names of its classes or tags, none for regression and spans.
    """

    def __init__(self, uri: str) -> None:
        """Raises CheckpointError when there is none, or when its head is of another kind."""
        config_uri = storage.join(uri, CONFIG_NAME)
        config = _config(config_uri)
        self.kind = _kind(config, config_uri)
        imported = open_directory(uri, _HEADS)
        self.model = _with_head(imported, self.kind, config, config_uri)
        rows = self.model.head.out_features
        self.labels = [] if self.kind == "spans" else _labels(config, rows, self.kind, config_uri)
        settings = settings_of(config, config_uri, imported.model.config.max_positions)
        length = min(settings.max_seq_length, imported.model.config.max_positions)
        self.settings = settings.model_copy(update={"max_seq_length": length})


def _config(uri: str) -> dict[str, Any]:
    try:
        config = parse_json(storage.read_bytes(uri))
    except FileNotFoundError as error:
        raise CheckpointError(f"{uri}: no such file; MODEL is a folder of a fine-tuned model") from error
    except ValueError as error:
        raise CheckpointError(f"{uri}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{uri}: must be a JSON object")
    return config


def _kind(config: Mapping[str, Any], uri: str) -> HeadKind:
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else "no class"
    for suffix, kind in _KINDS.items():
        if architecture.endswith(suffix):
            return kind
    raise CheckpointError(
        f"{uri}: architectures names {architecture}, which is not fine-tuned; use a model with one of"
        f" {', '.join(_KINDS)}, such as bertmill finetune saves (save_model: true)"
    )


def _with_head(imported: ImportedModel, kind: HeadKind, config: Mapping[str, Any], uri: str) -> TaskModel:
    """The model with the head of its family in transformers."""
    base, family, tensors = imported.model, imported.family, imported.task_head
    output, dense = "classifier", ""
    activation: Activation = "tanh"
    if kind == "spans" and family != "modernbert":
        output = "qa_outputs"
    elif kind == "sequence" and family in _DENSE:
        dense, activation, output = _DENSE[family]
    names = {f"{part}.{end}" for part in (output, dense) if part for end in ("weight", "bias")}
    if set(tensors) != names:
        odd = min(set(tensors) ^ names)
        verb = "has no" if odd in names else "has a surplus"
        raise CheckpointError(f"{uri}: the head of this {family} {verb} tensor {odd!r}")
    if kind == "sequence" and not dense and base.pooler is None and not uses_token_head(base.config, "last"):
        raise CheckpointError(f"{uri}: the model has no pooler, which a head for sequences needs")
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"{uri}: classifier_pooling: must be cls or mean, got {pooling!r}")
    model = TaskModel(
        base,
        kind,
        tensors[f"{output}.weight"].shape[0],
        0.0,
        activation=activation,
        mean_pooling=family == "modernbert" and pooling == "mean",
    )
    _load(model.head, tensors, output, uri)
    if dense and model.pooler is not None:
        _load(model.pooler, tensors, dense, uri)
    return model.eval()


def _load(layer: Any, tensors: Mapping[str, Tensor], name: str, uri: str) -> None:
    for part, own in layer.state_dict().items():
        value = tensors[f"{name}.{part}"]
        if value.shape != own.shape or not bool(value.isfinite().all()):
            problem = f"has shape {list(value.shape)}, needed is {list(own.shape)}"
            reason = problem if value.shape != own.shape else "has values that are not finite"
            raise CheckpointError(f"{uri}: tensor {name}.{part} {reason}")
    layer.load_state_dict({part: tensors[f"{name}.{part}"].float() for part in layer.state_dict()})


def _labels(config: Mapping[str, Any], rows: int, kind: HeadKind, uri: str) -> list[str]:
    """Names of the ``rows`` outputs, none for a regression, which transformers gives one output."""
    problem = config.get("problem_type")
    if problem == "multi_label_classification":
        raise CheckpointError(f"{uri}: problem_type: {problem} is not supported, only one label for a text")
    names = config.get("id2label")
    if kind == "sequence" and (problem == "regression" or (rows == 1 and problem is None)):
        if rows != 1:
            raise CheckpointError(f"{uri}: problem_type: a regression has one output, not {rows}")
        return []
    if names is None:
        return [f"LABEL_{number}" for number in range(rows)]  # as transformers names them
    if not isinstance(names, dict) or sorted(names, key=str) != sorted(map(str, range(rows))):
        raise CheckpointError(f"{uri}: id2label must name the classes 0 to {rows - 1}")
    return [str(names[str(number)]) for number in range(rows)]
