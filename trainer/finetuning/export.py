"""Writes and reads a fine-tuned model as a Hugging Face directory, for heads that transformers has."""

from collections.abc import Sequence
from typing import Any

import safetensors.torch
from pydantic import ValidationError
from torch import Tensor

from cluster import storage
from schemas.errors import CheckpointError, ConfigError
from schemas.json_text import parse_json
from trainer.config import Section
from trainer.export.directory import CONFIG_NAME, WEIGHTS_NAME, open_directory, write_directory
from trainer.export.families import Family, family_of, task_architecture_of, type_rows
from trainer.export.hub_config import OWN_CONFIG
from trainer.export.hugging_face import to_config
from trainer.export.tensors import to_tensors
from trainer.export.tokenizer_folder import input_names, special_ids, tokenizer_files
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.data import Column
from trainer.finetuning.features import Choice
from trainer.finetuning.model import HeadKind, TaskModel, uses_token_head
from trainer.model.config import ModelConfig

_CLASSES = {
    "sequence": "SequenceClassification",
    "tokens": "TokenClassification",
    "spans": "QuestionAnswering",
}


_KINDS: dict[str, HeadKind] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "spans",
}
# transformers keeps this field as it is.
_SETTINGS = ("task_specific_params", "bertmill")


class TaskSettings(Section):
    """How inputs of a fine-tuned model are read and cut, in its config.json."""

    max_seq_length: int = 128
    stride: int = 64
    max_answer_tokens: int = 30
    no_answer: bool = False
    """spans: questions may have no answer."""
    text: Column = 0
    pair: Column | None = None
    word: Column = 0

    @classmethod
    def of(cls, config: FinetuneConfig, *, no_answer: bool) -> "TaskSettings":
        """The settings of a fine-tuning run."""
        return cls(
            max_seq_length=config.max_seq_length,
            stride=config.stride,
            max_answer_tokens=config.max_answer_tokens,
            no_answer=no_answer,
            text=config.files.text,
            pair=config.files.pair,
            word=config.files.word,
        )


def check_task_export(config: ModelConfig, features: Choice, kind: HeadKind = "sequence") -> None:
    """Raises ConfigError when transformers has no class for such a model with a head."""
    if family_of(config) == "electra" and kind == "sequence":
        raise ConfigError(
            "save_model: ElectraForSequenceClassification of transformers has another head; leave save_model"
            " out"
        )
    if features != "last":
        raise ConfigError(
            f"save_model: transformers has no head for features: {features}; set features to last"
        )


def export_task_model(
    model: TaskModel,
    output: str,
    tokenizer: str,
    labels: Sequence[str],
    scale: tuple[float, float] = (0, 1),
    settings: TaskSettings | None = None,
) -> None:
    """Writes ``model`` into ``output`` with the files of the folder ``tokenizer``; config.json comes last.

    ``labels`` are the names of the head's outputs, in order; empty for regression and spans. ``scale`` is
    the mean and standard deviation of the training labels; the export folds it into a regression head.
    """
    base, kind = model.base, model.kind
    check_task_export(base.config, model.mix.choice, kind)
    family = family_of(base.config)
    config = to_config(base.config, family, special_ids(tokenizer, base.config.vocab_size))
    names = input_names(segments=type_rows(base.config, family) > 1)
    files = tokenizer_files(tokenizer, base.config.max_positions, names)
    del config[OWN_CONFIG]
    config["architectures"] = [task_architecture_of(family, _CLASSES[kind])]
    config |= {"classifier_dropout": model.dropout, "classifier_dropout_prob": model.dropout}
    if family == "modernbert":
        config["classifier_pooling"] = "cls"
    if labels:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    elif kind == "sequence":
        config |= {"num_labels": 1, "id2label": {"0": "value"}, "problem_type": "regression"}
    if settings is not None:
        config[_SETTINGS[0]] = {_SETTINGS[1]: settings.model_dump()}
    weights = safetensors.torch.save(_tensors(model, kind, family, scale), metadata={"format": "pt"})
    write_directory(output, {**files, WEIGHTS_NAME: weights}, config)


def _tensors(
    model: TaskModel, kind: HeadKind, family: Family, scale: tuple[float, float]
) -> dict[str, Tensor]:
    pretrained = to_tensors(model.base.config, family, model.base.state_dict())
    kept = ("model.", "head.") if family == "modernbert" else (f"{family}.",)
    tensors = {name: value for name, value in pretrained.items() if name.startswith(kept)}
    pooler = f"{family}.pooler" if family == "albert" else f"{family}.pooler.dense"
    for name in ("weight", "bias"):
        tensors.pop(f"{pooler}.{name}", None)
        if model.pooler is not None:
            tensors[f"{pooler}.{name}"] = getattr(model.pooler, name).detach().float().cpu().clone()
    mean, deviation = scale
    head = "qa_outputs" if kind == "spans" and family != "modernbert" else "classifier"
    tensors[f"{head}.weight"] = model.head.weight.detach().float().cpu() * deviation
    tensors[f"{head}.bias"] = model.head.bias.detach().float().cpu() * deviation + mean
    return tensors


class LoadedTask:
    """A fine-tuned model from a Hugging Face directory, on the CPU.

    ``labels`` are the names of its classes or tags; empty for regression and spans.
    """

    def __init__(self, uri: str) -> None:
        """Raises CheckpointError when there is none, or when its head is not one that bertmill writes."""
        config_uri = storage.join(uri, CONFIG_NAME)
        config = _config(config_uri)
        architectures = config.get("architectures")
        named = str(architectures[0]) if isinstance(architectures, list) and architectures else "no class"
        kinds = [kind for suffix, kind in _KINDS.items() if named.endswith(suffix)]
        if not kinds:
            raise CheckpointError(
                f"{config_uri}: architectures names {named}, which is not fine-tuned; use a model that"
                " bertmill finetune saved (save_model: true)"
            )
        imported = open_directory(uri, ("classifier.", "qa_outputs."))
        self.kind = kinds[0]
        self.labels = _labels(config, config_uri) if self.kind != "spans" else []
        settings = _settings(config, config_uri)
        length = min(settings.max_seq_length, imported.model.config.max_positions)
        self.settings = settings.model_copy(update={"max_seq_length": length})
        outputs = 2 if self.kind == "spans" else max(len(self.labels), 1)
        head = {name.rpartition(".")[2]: value.float() for name, value in imported.task_head.items()}
        shape = [outputs, imported.model.config.hidden_size]
        pooled = self.kind != "sequence" or uses_token_head(imported.model.config, "last")
        if (
            len(imported.task_head) != 2
            or set(head) != {"weight", "bias"}
            or list(head["weight"].shape) != shape
            or not (pooled or imported.model.pooler is not None)
            or config.get("classifier_pooling", "cls") != "cls"
        ):
            raise CheckpointError(f"{config_uri}: the head of this {named} is not one that bertmill writes")
        self.model = TaskModel(imported.model, self.kind, outputs, 0.0)
        self.model.head.load_state_dict(head)
        self.model.eval()


def _config(uri: str) -> dict[str, Any]:
    try:
        config = parse_json(storage.read_bytes(uri))
    except FileNotFoundError as error:
        raise CheckpointError(f"{uri}: no such file; MODEL is a folder that finetune saved") from error
    except ValueError as error:
        raise CheckpointError(f"{uri}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{uri}: must be a JSON object")
    return config


def _labels(config: dict[str, Any], uri: str) -> list[str]:
    if config.get("problem_type") == "regression":
        return []
    names = config.get("id2label")
    if not isinstance(names, dict) or sorted(names, key=str) != sorted(map(str, range(len(names)))):
        raise CheckpointError(f"{uri}: id2label must name the classes 0, 1, ...")
    return [str(names[str(number)]) for number in range(len(names))]


def _settings(config: dict[str, Any], uri: str) -> TaskSettings:
    params = config.get(_SETTINGS[0])
    own = params.get(_SETTINGS[1]) if isinstance(params, dict) else None
    try:
        return TaskSettings.model_validate(own or {})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([*_SETTINGS, *map(str, first["loc"])])
        raise CheckpointError(f"{uri}: {field}: {first['msg']}") from error
