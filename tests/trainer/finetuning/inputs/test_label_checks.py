"""Labels from which a model would silently learn wrongly give one line with file and row."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InputError
from tests.trainer.finetuning.test_run import config, question_file
from trainer.finetuning.run import finetune

GOOD = "cat\tyes\ndog\tno\n" * 3


def refused(pretrained: str, folder: Path, task: str, files: dict[str, Any]) -> str:
    with pytest.raises(InputError) as raised:
        finetune(config(pretrained, folder, task, files, epochs=1))
    assert "\n" not in str(raised.value)
    return str(raised.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("classification", "cat\tyes\ndog\t\n", "a.tsv:2: has no label"),
        ("classification", GOOD + "mat\tYse\n", "a.tsv:7: label 'Yse' has one example in the training files"),
        (
            "classification",
            "text\tlabel\n" + GOOD,
            "a.tsv:1: only the first line has the label 'label'; is the",
        ),
        ("classification", GOOD + "mat\tnan\nmat\tNaN\n", "a.tsv:8: label 'NaN' is not a class"),
        ("classification", "cat\tyes\ndog\tyes\n", "a.tsv:1: all examples have the label 'yes'"),
        ("classification", 'cat\tyes\n"a\tb"\tno\ndog\tno\n', "a.tsv:2: a tab inside quotes splits a field"),
        ("regression", "cat\t1\ndog\tinf\n", "a.tsv:2: label 'inf' is not a finite number"),
        ("regression", "cat\t1\ndog\tnan\n", "a.tsv:2: label 'nan' is not a finite number"),
        (
            "regression",
            "text\tscore\ncat\t1\n",
            "a.tsv:1: label 'score' is not a number; is the line a header?",
        ),
        ("tokens", "word\ttag\ncat\tB-X\n\ndog\tO\n", "a.tsv:1: 'word' has the tag 'tag'; remove the header"),
        ("tokens", "cat\tB-X\ndog\t\n", "a.tsv:1: word 2 of the sentence has no tag"),
    ],
)
def test_labels_are_checked(task: str, content: str, message: str, pretrained: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(content)
    assert refused(pretrained, tmp_path, task, {"train": [str(path)], "validation": [str(path)]}).startswith(
        message
    )


def test_a_header_of_a_validation_file_is_named(pretrained: str, tmp_path: Path) -> None:
    train, validation = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text(GOOD)
    validation.write_text("text\tlabel\n" + GOOD)
    files = {"train": [str(train)], "validation": [str(validation)]}
    message = "dev.tsv:1: label 'label' is not in the training files; is the line a header? Give the columns"
    assert refused(pretrained, tmp_path, "classification", files) == f"{message} by name"


def test_a_row_wider_than_the_header_is_named_or_skipped(pretrained: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"a\tb"\tyes\n' + GOOD + "cat\tyes\t\n")
    files = {"train": [str(path)], "validation": [str(path)], "text": "text", "label": "label"}
    message = refused(pretrained, tmp_path, "classification", files)
    assert message.startswith("a.tsv:2: 3 fields, but the header has 2; if a tab is inside quotes, write")
    report = finetune(
        config(
            pretrained, tmp_path, "classification", {**files, "skip_bad_lines": True}, epochs=1
        )
    )  # fmt: skip
    assert report.examples["train"] == 6


def test_one_example_of_a_class_can_be_allowed(pretrained: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("cat\tyes\ndog\tno\n")
    files = {"train": [str(path)], "validation": [str(path)]}
    report = finetune(config(pretrained, tmp_path, "classification", files, epochs=1, min_class_examples=1))
    assert report.examples == {"train": 2, "validation": 2}


def test_spans_without_answers_are_refused(pretrained: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "train": question_file(tmp_path, "a", 1), "validation": question_file(tmp_path, "b", 2),
    }  # fmt: skip
    blind = json.loads(Path(files["validation"][0]).read_text())
    for paragraph in blind["data"][0]["paragraphs"]:
        paragraph["qas"][0]["answers"] = []
    (tmp_path / "blind.json").write_text(json.dumps(blind))
    files["test"] = {"blind": [str(tmp_path / "blind.json")]}
    message = refused(pretrained, tmp_path, "spans", files)
    assert message.startswith("blind.json: no question has an answer, so nothing can be measured")
