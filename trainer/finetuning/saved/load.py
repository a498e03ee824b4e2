"""Reads a fine-tuned model from a Hugging Face directory."""

from typing import Any

from cluster import storage
from schemas.errors import CheckpointError
from schemas.json_text import parse_json
from trainer.export.directory import CONFIG_NAME, open_directory
from trainer.finetuning.heads.model import HeadKind, TaskModel, uses_token_head
from trainer.finetuning.saved.settings import settings_of

_KINDS: dict[str, HeadKind] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "spans",
}


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
        settings = settings_of(config, config_uri)
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
