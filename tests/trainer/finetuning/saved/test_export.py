"""A fine-tuned model loads in transformers and has the same outputs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from schemas.errors import ConfigError
from tests.trainer.export.test_directory import load
from tests.trainer.finetuning.test_run import config, sentences
from tests.trainer.model.test_pretraining import padded
from tests.trainer.models import VOCAB, small_config, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model
from trainer.finetuning.heads.model import TaskModel
from trainer.finetuning.run import finetune
from trainer.finetuning.saved.export import check_task_export, export_task_model
from trainer.model.pretraining import BertPretraining

ROWS = random_rows(6, VOCAB, lengths=(4, 20))
CLASSES = {
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "spans": "ForQuestionAnswering",
}


@pytest.mark.parametrize("style", ["bert", "roberta", "albert", "modern"])
@pytest.mark.parametrize("kind", CLASSES)
def test_outputs_equal_those_of_transformers(style: str, kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = TaskModel(small_model(style), kind, 2, dropout=0.1).eval()
    torch.nn.init.normal_(model.head.bias)
    labels = () if kind == "spans" else ("no", "yes")
    export_task_model(model, str(tmp_path / "m"), str(write_tokenizer(tmp_path / "t", VOCAB)), labels)
    family = {"albert": "Albert", "modern": "ModernBert"}.get(style, "Bert")
    theirs = load(tmp_path / "m", f"{family}{CLASSES[kind]}")
    ids, segments, mask = padded(ROWS, width=22)
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    with torch.no_grad():
        output = theirs(**inputs) if style == "modern" else theirs(**inputs, token_type_ids=segments)
        ours = model(pack(ROWS))
    if kind == "sequence":
        found = output.logits
    elif kind == "tokens":
        found = output.logits[mask.bool()]
    else:
        found = torch.stack([output.start_logits, output.end_logits], dim=-1)[mask.bool()]
    torch.testing.assert_close(ours, found, rtol=0, atol=1e-4)


def test_a_saved_classifier_answers_in_a_pipeline(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    settings = config(pretrained, tmp_path, "classification", files, epochs=5, save_model=True, seeds=[1, 2])
    assert finetune(settings).summary["validation"]["accuracy"].best > 0.9
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "out" / "model"))
    answers = classify(
        [{"text": "dog mat ran", "text_pair": "w3 cat w4"}, {"text": "cat cat on", "text_pair": "w3"}]
    )
    assert [answer["label"] for answer in answers] == ["yes", "no"]


def test_a_saved_modern_classifier_answers_in_a_pipeline(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    base = BertPretraining(small_config("modern"))
    export_model(base, str(tmp_path / "m"), str(tokenizer), ModelCard("m"))
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    settings = config(str(tmp_path / "m"), tmp_path, "classification", files, epochs=8, save_model=True)
    assert finetune(settings).summary["validation"]["accuracy"].best > 0.9
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "out" / "model"))
    answers = classify(
        [{"text": "cat cat on", "text_pair": "w3 w4 w5"}, {"text": "dog mat ran", "text_pair": "w3 cat w4"}]
    )
    assert [answer["label"] for answer in answers] == ["no", "yes"]


def test_a_saved_regression_gives_numbers_of_the_files(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: 100 + 10 * row.count("cat"))
    finetune(config(pretrained, tmp_path, "regression", files, save_model=True))
    folder = tmp_path / "out" / "model"
    theirs = load(folder, "BertForSequenceClassification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    value = theirs(**tokenizer("cat dog mat", "w3 w4 cat", return_tensors="pt")).logits.item()
    # The model learns on values with mean 0 and deviation 1. The test does not check how well it learns.
    assert 100 < value < 140


def test_heads_that_transformers_has_not_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.positions: must be 'learned' for an export"):
        check_task_export(small_config("rotary-post-norm"), "last")
    with pytest.raises(ConfigError, match="no head for features: second_to_last"):
        check_task_export(small_config(), "second_to_last")
