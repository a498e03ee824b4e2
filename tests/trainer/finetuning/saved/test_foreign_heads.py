"""Models that were fine-tuned with transformers: equal outputs of every family's heads, or one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from schemas.errors import CheckpointError
from tests.support.hub_tokenizers import unigram, write_tokenizer
from tests.trainer.export.hub_models import FAMILIES, random_ids, random_model, save, segments_of
from trainer.finetuning.inputs.encoding import Encoded, pack_encoded
from trainer.finetuning.saved.load import LoadedTask
from trainer.finetuning.saved.predict import Predictor

HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
LENGTHS = (17, 5)


def architecture(family: str, head: str) -> str:
    return f"{FAMILIES[family][2].partition('For')[0]}For{head}"


def assert_equal_outputs(theirs: Any, ours: LoadedTask, kind: str) -> None:
    inputs = [(random_ids(length), segments_of(theirs, length)) for length in LENGTHS]
    batch = pack_encoded([Encoded(i[0].tolist(), s[0].tolist(), (), n) for n, (i, s) in enumerate(inputs)])
    with torch.no_grad():
        found = ours.model(batch)
        expected = []
        for ids, segments in inputs:
            types = {"token_type_ids": segments} if segments.any() else {}
            answer = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **types)
            if kind == "QuestionAnswering":
                expected.append(torch.stack([answer.start_logits[0], answer.end_logits[0]], dim=-1))
            else:
                expected.append(answer.logits if answer.logits.ndim == 2 else answer.logits[0])
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_transformers_computes_the_same_here(family: str, head: str, tmp_path: Path) -> None:
    fields = {} if head == "QuestionAnswering" else {"num_labels": 3}
    theirs = random_model(family, architecture(family, head), **fields)
    ours = LoadedTask(save(theirs, tmp_path))
    assert_equal_outputs(theirs, ours, head)
    assert ours.labels == ([] if head == "QuestionAnswering" else ["LABEL_0", "LABEL_1", "LABEL_2"])


def test_modernbert_may_pool_by_the_mean(tmp_path: Path) -> None:
    theirs = random_model("modernbert", "ModernBertForSequenceClassification", classifier_pooling="mean")
    assert_equal_outputs(theirs, LoadedTask(save(theirs, tmp_path)), "SequenceClassification")


def test_two_classes_without_names_and_one_number(tmp_path: Path) -> None:
    """transformers leaves out fields at their defaults."""
    name = "RobertaForSequenceClassification"
    assert LoadedTask(save(random_model("roberta", name), tmp_path / "a")).labels == ["LABEL_0", "LABEL_1"]
    assert LoadedTask(save(random_model("roberta", name, num_labels=1), tmp_path / "b")).labels == []


Edit = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(problem_type="multi_label_classification"), "problem_type: multi_label"),
        (lambda c: c.update(problem_type="regression"), "a regression has one output, not 3"),
        (lambda c: c.update(id2label={"0": "a", "1": "b"}), "id2label must name the classes 0 to 2"),
        (lambda c: c.update(architectures=["RobertaForMultipleChoice"]), "which is not fine-tuned"),
        (
            lambda c: c.update(architectures=["RobertaForTokenClassification"]),
            "has no tensor 'classifier",
        ),
        (lambda c: c.update(architectures=["RobertaForQuestionAnswering"]), "the head of this roberta"),
    ],
)
def test_a_head_that_is_not_understood_is_one_line(edit: Edit, message: str, tmp_path: Path) -> None:
    save(random_model("roberta", "RobertaForSequenceClassification", num_labels=3), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        LoadedTask(str(tmp_path))


def test_predictions_of_a_foreign_model_are_those_of_its_pipeline(tmp_path: Path) -> None:
    tokenizer = unigram()
    names = dict(enumerate(("bad", "good", "odd")))
    model = random_model(
        "xlm-roberta", "XLMRobertaForSequenceClassification", vocab_size=tokenizer.get_vocab_size(),
        num_labels=3, id2label=names, label2id={v: k for k, v in names.items()},
    )  # fmt: skip
    uri = save(model, tmp_path / "m")
    write_tokenizer(tmp_path / "m", tokenizer)
    texts = ["the cat sat", "a dog", "cats on a mat"]
    file = tmp_path / "new.csv"
    file.write_text("".join(f"{row}\n" for row in ("id,review", *(f"{n},{t}" for n, t in enumerate(texts)))))
    found = list(Predictor(uri, text="review").predict(str(file)))
    expected = transformers.pipeline("text-classification", model=uri)(texts)
    assert [one["label"] for one in found] == [answer["label"] for answer in expected]
    for one, answer in zip(found, expected, strict=True):
        assert one["probabilities"][one["label"]] == pytest.approx(answer["score"], abs=1e-4)
    words = tmp_path / "words.jsonl"
    words.write_text(json.dumps({"tokens": texts[0].split()}) + "\n")
    tagger = random_model(
        "xlm-roberta", "XLMRobertaForTokenClassification", vocab_size=model.config.vocab_size
    )
    write_tokenizer(tmp_path / "t", tokenizer)
    (tagged,) = Predictor(save(tagger, tmp_path / "t"), word="tokens").predict(str(words))
    assert tagged["words"] == ["the", "cat", "sat"]
