"""How inputs of a fine-tuned model are read and cut, kept in its config.json."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from schemas.errors import CheckpointError, reason_of
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.inputs.examples import Column
from trainer.recipe_config import Section

# Key of the settings in config.json. transformers keeps this field as it is.
SETTINGS = ("task_specific_params", "bertmill")


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


def settings_of(config: Mapping[str, Any], uri: str, positions: int) -> TaskSettings:
    """The settings in the content of the config.json at ``uri``, of a model with ``positions`` positions.

    A model that was fine-tuned elsewhere has none: it reads up to 512 tokens of the first column. Raises
    CheckpointError.
    """
    params = config.get(SETTINGS[0])
    own = params.get(SETTINGS[1]) if isinstance(params, dict) else None
    if own is None:
        length = min(512, positions)
        return TaskSettings(max_seq_length=length, stride=max(1, length // 4))
    try:
        return TaskSettings.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([*SETTINGS, *map(str, first["loc"])])
        raise CheckpointError(f"{uri}: {field}: {reason_of(first)}") from error
