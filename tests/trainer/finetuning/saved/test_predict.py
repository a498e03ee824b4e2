"""Predictions of saved models equal those of transformers from the same folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from schemas.errors import BertmillError
from tests.trainer.finetuning.test_run import config, question_file, sentences, tag_file, words
from trainer.finetuning.run import finetune
from trainer.finetuning.saved.predict import Predictor, lines_of


@pytest.fixture(scope="module")
def classifier(pretrained: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    files = sentences(folder, lambda row: "yes" if "cat" in row[3:] else "no")
    finetune(config(pretrained, folder, "classification", files, epochs=3, save_model=True))
    return folder


def unlabelled(folder: Path) -> str:
    rows = ["sentence\tsentence2", *(f"{' '.join(row[:3])}\t{' '.join(row[3:])}" for row in words(70, 9))]
    path = folder / "new.tsv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_sequences_are_those_of_transformers(classifier: Path, tmp_path: Path) -> None:
    file = unlabelled(tmp_path)
    found = list(Predictor(str(classifier / "out")).predict(file))
    assert [one["row"] for one in found] == list(range(2, 72))
    classify = transformers.pipeline("text-classification", model=str(classifier / "out" / "model"))
    pairs = [line.split("\t") for line in Path(file).read_text().splitlines()[1:]]
    answers = classify([{"text": text, "text_pair": pair} for text, pair in pairs])
    assert [one["label"] for one in found] == [answer["label"] for answer in answers]
    shares = [one["probabilities"][one["label"]] for one in found]
    assert shares == pytest.approx([answer["score"] for answer in answers], abs=1e-4)


def test_lines_are_tsv_or_json(classifier: Path, tmp_path: Path) -> None:
    predictor, file = Predictor(str(classifier / "out" / "model")), unlabelled(tmp_path)
    header, *rows = [line.split("\t") for line in lines_of(predictor.predict(file), "tsv")]
    assert header == ["row", "label", "p(no)", "p(yes)"]
    objects = [json.loads(line) for line in lines_of(predictor.predict(file), "jsonl")]
    assert [row[1] for row in rows] == [one["label"] for one in objects]


def test_numbers_are_in_the_unit_of_the_files(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: 100 + 10 * row.count("cat"))
    finetune(config(pretrained, tmp_path, "regression", files, save_model=True))
    path = tmp_path / "one.tsv"
    path.write_text("sentence\tsentence2\ncat dog mat\tw3 w4 cat\n")
    (found,) = Predictor(str(tmp_path / "out")).predict(str(path))
    assert found["row"] == 2
    assert 100 < found["value"] < 140  # the model learns on values with mean 0 and deviation 1


def test_every_word_of_a_long_sentence_gets_a_tag(pretrained: str, tmp_path: Path) -> None:
    files = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    finetune(config(pretrained, tmp_path, "tokens", files, epochs=4, max_seq_length=10, save_model=True))
    sentence = ["dog", "mat", "cat"] * 9
    (tmp_path / "new.conll").write_text("\n".join([*sentence, "", "cat"]) + "\n")
    predictor = Predictor(str(tmp_path / "out"))
    long, short = predictor.predict(str(tmp_path / "new.conll"))
    assert long == {"words": sentence, "tags": ["B-LOC", "O", "B-PER"] * 9}
    assert short == {"words": ["cat"], "tags": ["B-PER"]}
    lines = list(lines_of(iter([long, short]), "tsv"))
    assert lines[:2] == ["dog\tB-LOC", "mat\tO"]
    assert lines[-3:] == ["", "cat\tB-PER", ""]


def test_questions_without_answers_are_answered(pretrained: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "train": question_file(tmp_path, "a", 1), "validation": question_file(tmp_path, "b", 2),
    }  # fmt: skip
    settings = {"epochs": 10, "max_seq_length": 14, "save_model": True}
    finetune(config(pretrained, tmp_path, "spans", files, **settings))
    blind = json.loads(Path(files["validation"][0]).read_text())
    for paragraph in blind["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    (tmp_path / "blind.json").write_text(json.dumps(blind))
    found = list(Predictor(str(tmp_path / "out")).predict(str(tmp_path / "blind.json")))
    assert [one["id"] for one in found][:2] == ["b-0", "b-1"]
    assert sum(one["answer"] == "cat" for one in found) > 0.9 * len(found)


def test_what_cannot_predict_is_one_line(pretrained: str, classifier: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BertmillError, match=r"architectures names BertForPreTraining, which is not fine-tuned"
    ):
        Predictor(pretrained)
    with pytest.raises(BertmillError, match=r"config\.json: no such file; MODEL is a folder"):
        Predictor(str(tmp_path))
    with pytest.raises(BertmillError, match="--max-length: 41, but the model has 40 positions"):
        Predictor(str(classifier / "out"), max_length=41)
    (tmp_path / "x.tsv").write_text("a\tb\nc\td\n")
    with pytest.raises(BertmillError, match=r"x\.tsv:1: no column 'sentence'"):
        list(Predictor(str(classifier / "out")).predict(str(tmp_path / "x.tsv")))
    assert len(list(Predictor(str(classifier / "out"), text=0, pair=1).predict(str(tmp_path / "x.tsv")))) == 2
