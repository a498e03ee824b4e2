"""Writes a fine-tuned model as a Hugging Face directory, for the heads that transformers has."""

from collections.abc import Sequence

import safetensors.torch
from torch import Tensor

from cluster import storage
from schemas.errors import ConfigError
from trainer.export import CONFIG_NAME, WEIGHTS_NAME, json_bytes, special_ids, tokenizer_files
from trainer.features import Choice
from trainer.hugging_face import OWN_CONFIG, family_of, to_config, to_tensors
from trainer.model_config import ModelConfig
from trainer.task_model import HeadKind, TaskModel

_CLASSES = {
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}

_FAMILIES = {"bert": "Bert", "albert": "Albert", "modernbert": "ModernBert"}


def check_task_export(config: ModelConfig, features: Choice) -> None:
    """Raises ConfigError when transformers has no class for such a model with a head."""
    family_of(config)
    if features != "last":
        raise ConfigError(f"save_model: transformers has no head on the features {features!r}")


def export_task_model(
    model: TaskModel, output: str, tokenizer: str, labels: Sequence[str], scale: tuple[float, float] = (0, 1)
) -> None:
    """Writes ``model`` into ``output`` with the files of the folder ``tokenizer``; config.json comes last.

    ``labels`` name the outputs of the head, in order; none for regression and spans. ``scale`` is the mean
    and deviation of the training labels, which are put into the weights of a regression's head.
    """
    base, kind = model.base, model.kind
    check_task_export(base.config, model.mix.choice)
    config = to_config(base.config, special_ids(tokenizer, base.config))
    files = tokenizer_files(tokenizer, base.config)
    del config[OWN_CONFIG]
    family = family_of(base.config)
    config["architectures"] = [f"{_FAMILIES[family]}{_CLASSES[kind]}"]
    config |= {"classifier_dropout": model.dropout, "classifier_dropout_prob": model.dropout}
    if family == "modernbert":
        config["classifier_pooling"] = "cls"
    if labels:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    elif kind == "sequence":
        config |= {"num_labels": 1, "id2label": {"0": "value"}, "problem_type": "regression"}
    for name, content in files.items():
        storage.put_bytes(storage.join(output, name), content)
    weights = safetensors.torch.save(_tensors(model, kind, family, scale), metadata={"format": "pt"})
    storage.put_bytes(storage.join(output, WEIGHTS_NAME), weights)
    storage.put_bytes(storage.join(output, CONFIG_NAME), json_bytes(config))


def _tensors(model: TaskModel, kind: HeadKind, family: str, scale: tuple[float, float]) -> dict[str, Tensor]:
    everything = to_tensors(model.base.config, model.base.state_dict())
    kept = ("model.", "head.") if family == "modernbert" else (f"{family}.",)
    tensors = {name: value for name, value in everything.items() if name.startswith(kept)}
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
