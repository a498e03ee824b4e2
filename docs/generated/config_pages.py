"""The reference pages of the three configs, from their pydantic models."""

from collections.abc import Iterator

import model_tables

from pipeline.config import BuildConfig
from trainer.config import TrainConfig
from trainer.finetuning.config import FinetuneConfig

_JOBS = (
    ("build-config", "Corpus build config", BuildConfig, "bertmill build --config FILE",
     "See [sources and skip reasons](sources.md) for what each kind of source reads."),
    ("training-config", "Training config", TrainConfig, "bertmill pretrain --config FILE",
     "See [models and optimizers](models.md) for what the model and optimizer fields mean together."),
    ("fine-tuning-config", "Fine-tuning config", FinetuneConfig, "bertmill finetune --config FILE",
     "See the [tutorial](../tutorials/fine-tuning.md) and the [tasks](models.md#fine-tuning)."),
)  # fmt: skip
_MARK = (
    "Fields marked ↻ may change when a run [resumes]"
    "(../guides/resuming.md#change-the-config-of-a-training-run)."
)


def pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each page."""
    for name, title, model, command, more in _JOBS:
        arguments = "-- --section.field=value" if name == "fine-tuning-config" else "--section.field=value"
        tables = list(model_tables.sections(model))
        lines = [
            f"# {title}",
            "",
            f"The YAML file of `{command}`. Set any field on the command line with `{arguments}`. An unknown "
            "field is an error.",
            "",
            more,
            "",
            *([_MARK, ""] if any("↻" in line for line in tables) else []),
            *tables,
        ]
        yield name, "\n".join(lines)
