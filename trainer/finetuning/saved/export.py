"""Writes and reads a fine-tuned model as a Hugging Face directory, for heads that transformers has."""

from collections.abc import Sequence

import safetensors.torch
from torch import Tensor

from schemas.errors import ConfigError
from trainer.export.directory import WEIGHTS_NAME, write_directory
from trainer.export.families import Family, family_of, task_architecture_of, type_rows
from trainer.export.hub_config import OWN_CONFIG
from trainer.export.hugging_face import to_config
from trainer.export.tensors import to_tensors
from trainer.export.tokenizer_folder import input_names, special_ids, tokenizer_files
from trainer.finetuning.heads.features import Choice
from trainer.finetuning.heads.model import HeadKind, TaskModel
from trainer.finetuning.saved.settings import SETTINGS, TaskSettings
from trainer.model.config import ModelConfig

_CLASSES = {
    "sequence": "SequenceClassification",
    "tokens": "TokenClassification",
    "spans": "QuestionAnswering",
}


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
    """Writes ``model`` into ``output`` with the files of the folder ``tokenizer``. config.json comes last.

    ``labels`` are the names of the head's outputs, in order, none for regression and spans. ``scale`` is
    the mean and standard deviation of the training labels. The export folds it into a regression head.
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
        config[SETTINGS[0]] = {SETTINGS[1]: settings.model_dump()}
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
