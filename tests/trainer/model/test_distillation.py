"""The distillation loss against a plain computation, its layers, and starts from other models."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from schemas.errors import ConfigError
from schemas.versions import CODE_VERSION
from tests.trainer.models import VOCAB, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.runs import train_config
from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer
from trainer.checkpoint.folders import read_manifest
from trainer.checkpoint.reading import latest_verified
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.export.directory import ModelCard, export_model
from trainer.export.load_model import content_digest, load_model
from trainer.model.distillation import (
    DistillationLoss,
    DistillationWeights,
    SoftTokens,
    copy_from_teacher,
    layers_for_student,
)
from trainer.model.objectives import batch_totals
from trainer.model.pretraining import BertPretraining
from trainer.run.loop import train

ROWS = random_rows(12, VOCAB, lengths=(6, 20), masked=(0, 5))


def models() -> tuple[BertPretraining, BertPretraining]:
    return small_model("roberta", seed=1, layers=1), small_model("roberta", seed=2, layers=3)


@pytest.mark.parametrize("soft_tokens", ["all", "masked"])
def test_the_loss_is_the_published_one(soft_tokens: SoftTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.model.distillation._CHUNK", 50)
    student, teacher = models()
    batch = pack(ROWS)
    loss, statistics = DistillationLoss(student, teacher, 3, DistillationWeights(5, 2, 1, 2, soft_tokens))(
        batch, batch_totals([batch])
    )
    states = student.encode(batch), teacher.encode(batch)
    where = batch.masked_index if soft_tokens == "masked" else slice(None)
    ours, theirs = (
        model.token_head(state[where], model.word_weight)[:, :VOCAB]
        for model, state in zip((student, teacher), states, strict=True)
    )
    p, q = (theirs / 2).softmax(-1), (ours / 2).softmax(-1)
    soft = 4 * (p * (p / q).log()).sum(-1).mean()
    logits = student(batch).padded_token_logits[:, :VOCAB]
    token = torch.nn.functional.cross_entropy(logits, batch.masked_ids)
    angle = 1 - torch.nn.functional.cosine_similarity(*states, dim=-1)
    torch.testing.assert_close(loss, 5 * soft + 2 * token + angle.mean())
    assert statistics[:, 1].sum() == len(batch.masked_ids)


@pytest.mark.parametrize("soft_tokens", ["all", "masked"])
def test_gradients_do_not_depend_on_micro_batches(
    soft_tokens: SoftTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for chunk, splits in ((1000, [ROWS]), (7, [ROWS[:1], ROWS[1:9], ROWS[9:]])):
        monkeypatch.setattr("trainer.model.distillation._CHUNK", chunk)
        student, teacher = models()
        objective = DistillationLoss(student, teacher, weights=DistillationWeights(soft_tokens=soft_tokens))
        batches = [pack(rows) for rows in splits]
        for batch in batches:
            objective(batch, batch_totals(batches)).loss.backward()
        results.append([p.grad for p in student.parameters()])
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("soft_tokens", ["all", "masked"])
def test_fillers_teach_nothing(soft_tokens: SoftTokens) -> None:
    batch = pack(ROWS)
    fixed = batch.padded_to(tokens=batch.tokens + 50, sequences=20, masked=64)
    found = []
    for one in (batch, fixed):
        student, teacher = models()
        objective = DistillationLoss(student, teacher, weights=DistillationWeights(soft_tokens=soft_tokens))
        found.append(objective(one, batch_totals([one])).loss)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


def test_the_teacher_neither_trains_nor_is_saved() -> None:
    student, teacher = models()
    objective = DistillationLoss(student, teacher).train()
    assert {id(p) for p in objective.parameters()} == {id(p) for p in student.parameters()}
    assert not any("teacher" in name for name in objective.state_dict())
    assert not teacher.training
    batch = pack(ROWS)
    objective(batch, batch_totals([batch])).loss.backward()
    assert all(p.grad is None for p in teacher.parameters())


def test_a_student_takes_layers_evenly() -> None:
    assert layers_for_student(6, 12) == [0, 2, 4, 7, 9, 11]
    assert layers_for_student(1, 12) == [0]
    student, teacher = small_model(layers=2, seed=1), small_model(layers=4, seed=2)
    copy_from_teacher(student, teacher)
    for ours, theirs in ((0, 0), (1, 3)):
        first, second = student.encoder.layers[ours], teacher.encoder.layers[theirs]
        for mine, other in zip(first.parameters(), second.parameters(), strict=True):
            assert mine.equal(other)
    assert student.word_weight.equal(teacher.word_weight)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 99}, "teacher: its vocabulary has 101 entries, the student's 99"),
        ({"max_positions": 64}, "teacher: it has 40 positions, the student 64"),
        ({"hidden_size": 32}, "distillation.hidden: the student's hidden size is 32, the teacher's 64"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistillationLoss(small_model(**fields), small_model())
    with pytest.raises(ConfigError, match="the teacher has no"):
        copy_from_teacher(small_model(**fields), small_model())


# -- in the training loop -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose manifest has the hash of the test tokenizer's vocabulary."""
    return write_corpus_with_tokenizer(tmp_path_factory.mktemp("corpus"), VOCAB)


def config(folder: Path, corpus: Path, **changes: Any) -> TrainConfig:
    shape = small_model().config.model_dump() | {"vocab_size": 0, "layers": 1}
    changes = {"model": shape, **changes}
    return TrainConfig.model_validate(train_config(folder, corpus, **changes))


def exported(folder: Path, corpus: Path, **fields: Any) -> str:
    model = small_model(seed=7, **fields)
    export_model(model, str(folder / "hf"), str(corpus.parent / "tokenizer"), ModelCard("m"))
    return str(folder / "hf")


def test_training_continues_from_an_imported_model(tmp_path: Path, corpus: Path) -> None:
    uri = exported(tmp_path, corpus, layers=1)
    still = {"phases": [{"max_seq_length": 32, "global_batch": 16, "micro_batch_tokens": 128, "steps": 1,
                         "learning_rate": 1e-9}]}  # fmt: skip
    outcome = train(config(tmp_path, corpus, start_from=uri, **still), single_rank())
    saved = load_model(outcome.run_uri)
    assert saved.step == 1
    assert saved.run is not None
    assert saved.run.config["start_from"] == uri
    imported = load_model(uri).model.state_dict()
    for name, value in saved.model.state_dict().items():
        torch.testing.assert_close(value, imported[name], rtol=0, atol=1e-6)


def test_a_student_is_trained_by_the_loop(tmp_path: Path, corpus: Path) -> None:
    distillation = {"teacher": exported(tmp_path, corpus, layers=3), "token": 0.0}
    outcome = train(config(tmp_path, corpus, distillation=distillation), single_rank())
    assert outcome.status == "finished"
    found = latest_verified(outcome.run_uri)
    assert found is not None
    assert not any("layers.1." in name for name in found.load().model)


def test_a_resume_needs_no_start_weights_but_remembers_them(tmp_path: Path, corpus: Path) -> None:
    uri = exported(tmp_path, corpus, layers=1)
    first = train(config(tmp_path, corpus, start_from=uri), single_rank())
    saved = latest_verified(first.run_uri)
    assert saved is not None
    assert saved.run.identity["start_from_sha256"] == content_digest(load_model(uri).model)
    assert read_manifest(saved.uri).code_version == CODE_VERSION
    shutil.rmtree(uri)
    again = train(config(tmp_path, corpus, start_from=uri), single_rank())
    assert (again.step, again.checkpoint) == (first.step, first.checkpoint)
    with pytest.raises(ConfigError, match=r"start_from_sha256: was \w+, is None"):
        train(config(tmp_path, corpus), single_rank())
    other = exported(tmp_path / "other", corpus, layers=1, norm_eps=1e-6)
    with pytest.raises(ConfigError, match=r"start_from_sha256: was \w+, is \w+"):
        train(config(tmp_path, corpus, start_from=other), single_rank())


def test_a_run_does_not_resume_with_another_teacher(tmp_path: Path, corpus: Path) -> None:
    uri = exported(tmp_path, corpus, layers=2)
    train(config(tmp_path, corpus, distillation={"teacher": uri}), single_rank())
    moved = tmp_path / "moved"
    shutil.move(uri, moved)
    train(config(tmp_path, corpus, distillation={"teacher": str(moved)}), single_rank())
    path = moved / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["cls.predictions.bias"] += 1
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"distillation.teacher_sha256: was \w+, is \w+"):
        train(config(tmp_path, corpus, distillation={"teacher": str(moved)}), single_rank())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 2}, r"start_from: encoder\.layers\.1\..* has \[.*\], the model has no such tensor"),
        ({"layers": 1, "pair_objective": "none"}, r"pair_head.bias: .* has no such tensor, the model has"),
    ],
)
def test_starts_that_do_not_fit_are_refused(
    fields: dict[str, Any], message: str, tmp_path: Path, corpus: Path
) -> None:
    uri = exported(tmp_path, corpus, **fields)
    with pytest.raises(ConfigError, match=message):
        train(config(tmp_path, corpus, start_from=uri), single_rank())


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path, corpus: Path) -> None:
    uri = exported(tmp_path, corpus, layers=1)
    vocabulary = Path(uri) / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("cat", "cow"))
    with pytest.raises(ConfigError, match="has another vocabulary"):
        train(config(tmp_path, corpus, start_from=uri), single_rank())


def test_two_starts_are_refused(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ValueError, match="copy_layers already sets the initial weights"):
        config(tmp_path, corpus, start_from="a", distillation={"teacher": "b"})
