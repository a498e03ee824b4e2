"""Every task is learned on synthetic files in its layout, through the public function."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import ConfigError, InputError
from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from trainer.export.tokenizer_folder import load_tokenizer
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.heads.features import FeatureMix, extract_features
from trainer.finetuning.heads.model import TaskModel, freeze, reinitialize
from trainer.finetuning.inputs.encoding import encode_questions
from trainer.finetuning.inputs.examples import QuestionExample
from trainer.finetuning.run import finetune

WORDS = ["cat", "dog", "mat", "sat", "ran", "on", "w3", "w4", "w5", "w6"]


def words(count: int, seed: int, length: int = 6) -> list[list[str]]:
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, len(WORDS), (count, length), generator=generator).tolist()
    return [[WORDS[pick] for pick in row] for row in picks]


def sentence_file(folder: Path, name: str, seed: int, label: Any) -> list[str]:
    lines = ["sentence\tsentence2\tlabel"]
    lines += [f"{' '.join(row[:3])}\t{' '.join(row[3:])}\t{label(row)}" for row in words(96, seed)]
    path = folder / f"{name}.tsv"
    path.write_text("\n".join(lines) + "\n")
    return [str(path)]


def tag_file(folder: Path, name: str, seed: int) -> list[str]:
    kinds = {"cat": "B-PER", "dog": "B-LOC"}
    text = "\n\n".join("\n".join(f"{w}\t{kinds.get(w, 'O')}" for w in row) for row in words(64, seed))
    path = folder / f"{name}.conll"
    path.write_text(text + "\n")
    return [str(path)]


def question_file(folder: Path, name: str, seed: int) -> list[str]:
    paragraphs = []
    for number, row in enumerate(words(96, seed, length=12)):
        others = [word for word in row if word != "cat"] or ["mat"]
        place = number % len(others)
        context = " ".join([*others[:place], "cat", *others[place:]])
        answer = {"text": "cat", "answer_start": context.index("cat")}
        qas = [{"id": f"{name}-{number}", "question": "w5 w6", "answers": [answer]}]
        paragraphs.append({"context": context, "qas": qas})
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return [str(path)]


def config(pretrained: str, folder: Path, task: str, files: dict[str, Any], **fields: Any) -> FinetuneConfig:
    settings = {
        "model": pretrained, "output": str(folder / "out"), "task": task, "files": files, "epochs": 8,
        "batch_size": 8, "learning_rate": 2e-3, "max_seq_length": 24, "stride": 4, "dropout": 0.0,
    }  # fmt: skip
    return FinetuneConfig.model_validate(settings | fields)


def sentences(folder: Path, label: Any) -> dict[str, Any]:
    return {
        "train": sentence_file(folder, "train", 1, label),
        "validation": sentence_file(folder, "validation", 2, label),
        "test": {"xx": sentence_file(folder, "test", 3, label)},
        "text": "sentence", "pair": "sentence2", "label": "label",
    }  # fmt: skip


def test_pairs_are_classified(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    report = finetune(config(pretrained, tmp_path, "classification", files, seeds=[1, 2], epochs=5))
    assert report.summary["validation"]["accuracy"].median > 0.95
    assert report.summary["test/xx"]["matthews"].mean > 0.9
    assert report.examples == {"train": 96, "validation": 96, "test/xx": 96}
    assert report.to_json() == json.loads((tmp_path / "out" / "results.json").read_text())


def test_parts_of_speech_are_measured_by_accuracy(pretrained: str, tmp_path: Path) -> None:
    path = tmp_path / "pos.conll"
    path.write_text("the\tDET\ncat\tNOUN\n\ndog\tNOUN\n")
    files = {"train": [str(path)], "validation": [str(path)]}
    with pytest.raises(ConfigError, match=r"metric: entity_f1 needs tags .* but the tags are DET, NOUN"):
        finetune(config(pretrained, tmp_path, "tokens", files, metric="entity_f1"))
    report = finetune(config(pretrained, tmp_path, "tokens", files, epochs=1))
    assert report.metric == "accuracy"
    assert list(report.summary["validation"]) == ["accuracy"]


def test_a_test_set_is_divided_by_language(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: row[0])
    rows = [f"{lang}\tcat dog\tmat\tcat" for lang in ("de", "de", "ur")]
    (tmp_path / "xnli.tsv").write_text("\n".join(["language\tsentence\tsentence2\tlabel", *rows]) + "\n")
    files |= {"test": {"xnli": [str(tmp_path / "xnli.tsv")]}, "split_test_by": "language"}
    report = finetune(config(pretrained, tmp_path, "classification", files, epochs=1))
    assert report.examples == {"train": 96, "validation": 96, "test/xnli/de": 2, "test/xnli/ur": 1}
    assert set(report.seeds[0].test) == {"xnli/de", "xnli/ur"}


def test_numbers_are_found(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: 0.5 * row.count("cat") + 0.1 * row.count("dog"))
    report = finetune(config(pretrained, tmp_path, "regression", files))
    assert report.summary["validation"]["pearson"].median > 0.9
    assert report.summary["validation"]["spearman"].median > 0.7


def test_words_are_tagged(pretrained: str, tmp_path: Path) -> None:
    files = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    report = finetune(config(pretrained, tmp_path, "tokens", files, epochs=4))
    assert report.summary["validation"]["entity_f1"].median > 0.95


def test_words_beyond_the_length_count_as_outside(pretrained: str, tmp_path: Path) -> None:
    files = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    cut = tmp_path / "long.conll"
    cut.write_text("\n".join(["cat\tB-PER"] * 12) + "\n")
    tested = {**files, "test": {"long": [str(cut)]}}
    report = finetune(config(pretrained, tmp_path, "tokens", tested, epochs=4, max_seq_length=8))
    assert report.summary["test/long"]["accuracy"].median <= 6 / 12


def test_answers_are_found(pretrained: str, tmp_path: Path) -> None:
    files = {"train": question_file(tmp_path, "a", 1), "validation": question_file(tmp_path, "b", 2)}
    report = finetune(config(pretrained, tmp_path, "spans", files, max_seq_length=14, epochs=10))
    assert report.summary["validation"]["exact"].median > 0.9


def test_the_same_seed_gives_the_same_figures(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: row[0])
    settings = config(pretrained, tmp_path, "classification", files, epochs=2, dropout=0.1)
    first, second = finetune(settings), finetune(settings.model_copy(update={"output": str(tmp_path / "2")}))
    assert first.seeds == second.seeds
    other = finetune(settings.model_copy(update={"seeds": [9]}))
    assert other.seeds[0].losses != first.seeds[0].losses


def test_early_stop_keeps_the_best_epoch(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    settings = config(pretrained, tmp_path, "classification", files, epochs=40, early_stop=2)
    (seed,) = finetune(settings).seeds
    scores = [epoch["accuracy"] for epoch in seed.epochs]
    assert len(scores) < 40
    assert seed.best_epoch == scores.index(max(scores)) + 1 == len(scores) - 2
    assert seed.validation["accuracy"] == max(scores)


@pytest.mark.parametrize("features", ["second_to_last", "concat_last_four", "weighted_last_four"])
def test_frozen_features_are_enough_for_a_head(features: str, pretrained: str, tmp_path: Path) -> None:
    files = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    frozen = {"freeze_embeddings": True, "freeze_layers": 2, "learning_rate": 2e-2}
    report = finetune(config(pretrained, tmp_path, "tokens", files, features=features, **frozen))
    assert report.summary["validation"]["entity_f1"].median > 0.9


def test_frozen_parts_do_not_move() -> None:
    base = small_model()
    freeze(base, embeddings=True, layers=1)
    model = TaskModel(base, "sequence", 2, 0.0)
    still = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert still
    assert all("embeddings" in name or "layers.0." in name for name in still)
    model(pack(random_rows(3, VOCAB))).sum().backward()
    assert base.get_parameter("encoder.layers.1.attention.qkv.weight").grad is not None
    assert base.word_weight.grad is None


def test_reinitialised_layers_are_new_and_the_others_old() -> None:
    model, before = small_model(), small_model().state_dict()
    reinitialize(model, 1)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert changed
    assert all(name.startswith(("encoder.layers.1.", "pooler.")) for name in changed)
    assert model.get_parameter("encoder.layers.1.attention_norm.weight").eq(1).all()


@pytest.mark.parametrize(
    ("style", "action", "message"),
    [
        (
            "bert",
            lambda m: freeze(m, embeddings=False, layers=3),
            "freeze_layers: 3, but the model has 2 layers",
        ),
        ("albert", lambda m: reinitialize(m, 1), "share one set of weights"),
    ],
)
def test_layers_that_are_not_there_are_refused(style: str, action: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action(small_model(style))


def test_features_are_those_of_the_layers() -> None:
    model, rows = small_model(layers=5), random_rows(3, VOCAB)
    states = model.hidden_states(pack(rows))
    assert torch.cat(extract_features(model, pack(rows), "last")).equal(states[-1])
    assert torch.cat(extract_features(model, pack(rows), "second_to_last")).equal(states[-2])
    assert torch.cat(extract_features(model, pack(rows), "concat_last_four")).equal(
        torch.cat(states[-4:], dim=-1)
    )
    mean = torch.stack(states[-4:]).mean(0)
    torch.testing.assert_close(torch.cat(extract_features(model, pack(rows), "weighted_last_four")), mean)
    torch.testing.assert_close(torch.cat(extract_features(model, pack(rows), "sum_last_four")), 4 * mean)
    assert [len(one) for one in extract_features(model, pack(rows))] == [len(row.ids) for row in rows]
    assert FeatureMix("concat_last_four", 3, 64).size == 192


def test_windows_cover_the_context(pretrained: str) -> None:
    tokenizer = load_tokenizer(pretrained)
    context = " ".join(WORDS * 3)
    example = QuestionExample("a", "w5", context, ("w6",), context.rindex("w6"), "here")
    windows = encode_questions(tokenizer, [example], max_length=16, stride=4)
    assert len(windows) > 2
    covered = {low for one in windows for low, _ in one.offsets if low >= 0}
    assert covered == {0, *(place + 1 for place, letter in enumerate(context) if letter == " ")}
    with_answer = [one for one in windows if one.targets != (0, 0)]
    assert with_answer
    for one in with_answer:
        first, last = (one.offsets[int(place)] for place in one.targets)
        assert context[first[0] : last[1]] == "w6"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_seq_length": 41}, "max_seq_length: 41, but the model has 40 positions"),
        ({"metric": "pearson"}, "metric: pearson is not one of accuracy"),
    ],
)
def test_impossible_settings_are_refused(
    change: dict[str, Any], message: str, pretrained: str, tmp_path: Path
) -> None:
    files = sentences(tmp_path, lambda row: row[0])
    with pytest.raises((ConfigError, ValueError), match=message):
        finetune(config(pretrained, tmp_path, "classification", files, **change))


def test_bad_labels_are_named(pretrained: str, tmp_path: Path) -> None:
    files = sentences(tmp_path, lambda row: row[0])
    odd = tmp_path / "odd.tsv"
    odd.write_text("sentence\tsentence2\tlabel\na\tb\tzebra\n")
    with pytest.raises(InputError, match=r"odd\.tsv:2: label 'zebra' is not in the training files"):
        finetune(config(pretrained, tmp_path, "classification", files | {"validation": [str(odd)]}))
    with pytest.raises(InputError, match=r"train\.tsv:2: label '\w+' is not a number"):
        finetune(config(pretrained, tmp_path, "regression", files))
