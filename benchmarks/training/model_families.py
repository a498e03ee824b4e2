"""Measures the largest difference of outputs from transformers, by family, in and out.

    python -m benchmarks.training.model_families

In: a random model of transformers is saved and imported. Out: a model of ours is exported and opened with
transformers. The models are the small ones of the tests, in fp32 on the CPU. A difference is the largest over
hidden states, MLM logits and NSP logits, divided by the largest output if that is above 1.
"""

import tempfile
from pathlib import Path

import torch
import transformers

from tests.trainer.export.hub_models import FAMILIES, outputs, random_ids, random_model, save, segments_of
from tests.trainer.export.test_families import EXPORTS, our_outputs
from tests.trainer.models import VOCAB, small_model
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model, import_model
from trainer.model.pretraining import BertPretraining


def difference(theirs: transformers.PreTrainedModel, ours: BertPretraining) -> float:
    """The largest relative difference of all outputs."""
    ids, segments = random_ids(), segments_of(theirs)
    expected, found = outputs(theirs, ids, segments), our_outputs(ours, ids, segments)
    return max(
        float((found[name] - value).abs().max()) / max(1.0, float(value.abs().max()))
        for name, value in expected.items()
    )


def main() -> None:
    """Prints the table."""
    torch.manual_seed(0)
    print("| family of transformers | direction | largest difference |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for family in FAMILIES:
            (folder / family).mkdir()
            theirs = random_model(family)
            ours = import_model(save(theirs, folder / family))
            print(f"| {theirs.config.architectures[0]} | in | {difference(theirs, ours):.1e} |")
        tokenizer = str(write_tokenizer(folder / "tokenizer", VOCAB))
        for number, (style, exported, fields) in enumerate(EXPORTS):
            model, place = small_model(style, **fields), folder / f"out-{number}"
            export_model(model, str(place), tokenizer, ModelCard("m"), exported)
            opened = open_export(place)
            name = f"{type(opened).__name__} from style {style}"
            print(f"| {name} | out | {difference(opened, model):.1e} |")


def open_export(folder: Path) -> transformers.PreTrainedModel:
    """The model that the config of an export names."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder)
    return model.eval()


if __name__ == "__main__":
    main()
