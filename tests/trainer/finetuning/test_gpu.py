"""Fine-tuning on a CUDA device: every kind of task, resume, predictions, and several GPUs with NCCL.

It needs torch, transformers and the packages of the trainer, no Ray, and takes less than a minute:
python3 -m pytest -c /dev/null --rootdir=. --noconftest -q tests/trainer/finetuning/test_gpu.py
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.finetuning.test_run import config, question_file, sentences, tag_file
from tests.trainer.models import VOCAB, small_config, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.run import finetune
from trainer.finetuning.saved.predict import Predictor
from trainer.model.distillation import DistillationLoss, DistillationWeights, SoftTokens
from trainer.model.objectives import batch_totals
from trainer.model.pretraining import BertPretraining

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BF16 = {"use_gpu": True, "precision": "bf16"}


@pytest.fixture(scope="module", params=["bert", "modern"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    tokenizer = write_tokenizer(folder / "tokenizer", VOCAB)
    model = BertPretraining(small_config(request.param))
    export_model(model, str(folder / "model"), str(tokenizer), ModelCard("small"))
    return str(folder / "model")


def task(base: str, folder: Path, name: str, **fields: Any) -> FinetuneConfig:
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any]
    if name == "classification":
        files = sentences(folder, lambda row: "yes" if "cat" in row[3:] else "no")
    elif name == "regression":
        files = sentences(folder, lambda row: 100 + 10 * row.count("cat"))
    else:
        write = tag_file if name == "tokens" else question_file
        files = {"train": write(folder, "train", 1), "validation": write(folder, "validation", 2)}
    return config(base, folder, name, files, **{"epochs": 4, **fields})


@pytest.mark.parametrize("name", ["classification", "regression", "tokens", "spans"])
def test_every_task_learns_as_on_the_cpu(base: str, name: str, tmp_path: Path) -> None:
    reports = {
        place: finetune(task(base, tmp_path / place, name, dropout=0.0, **fields))
        for place, fields in (("cpu", {}), ("fp32", {"use_gpu": True}), ("bf16", BF16))
    }
    losses = {place: report.seeds[0].losses for place, report in reports.items()}
    assert losses["fp32"] == pytest.approx(losses["cpu"], rel=2e-2, abs=2e-3)
    assert losses["bf16"] == pytest.approx(losses["cpu"], rel=0.2, abs=0.05)


def stop_after(polls: int) -> Callable[[], bool]:
    left = iter(range(polls))
    return lambda: next(left, None) is None


def test_a_stopped_run_resumes_here_and_on_the_cpu(base: str, tmp_path: Path) -> None:
    fields = {"dropout": 0.1, "epochs": 3}
    whole = finetune(task(base, tmp_path / "whole", "classification", use_gpu=True, **fields))
    for place, use_gpu in (("gpu", True), ("cpu", False)):
        first = task(base, tmp_path / place, "classification", use_gpu=True, **fields)
        assert not finetune(first, stop_requested=stop_after(20)).complete
        rest = finetune(task(base, tmp_path / place, "classification", use_gpu=use_gpu, **fields))
        assert rest.complete
        if use_gpu:
            losses = [report.seeds[0].losses for report in (whole, rest)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_predictions_are_those_of_the_cpu(base: str, tmp_path: Path) -> None:
    made = task(base, tmp_path, "classification", save_model=True, **BF16)
    finetune(made)
    file = made.files.validation[0]
    here, there = (list(Predictor(made.output, use_gpu=use).predict(file)) for use in (True, False))
    assert [one["row"] for one in here] == [one["row"] for one in there]
    for one, other in zip(here, there, strict=True):
        assert one["probabilities"]["yes"] == pytest.approx(other["probabilities"]["yes"], abs=0.05)


@pytest.mark.parametrize("soft_tokens", ["all", "masked"])
def test_the_distillation_loss_is_that_of_the_cpu(
    soft_tokens: SoftTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.model.distillation._CHUNK", 40)
    losses, gradients = [], []
    for device in ("cpu", "cuda"):
        student, teacher = small_model("roberta", seed=1, layers=1), small_model("roberta", seed=2)
        objective = DistillationLoss(
            student.to(device), teacher.to(device), weights=DistillationWeights(soft_tokens=soft_tokens)
        )
        batch = pack(random_rows(12, VOCAB, lengths=(6, 20), masked=(0, 5))).to(device)
        loss = objective(batch, batch_totals([batch])).loss
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append([weight.grad.cpu() for weight in student.parameters() if weight.grad is not None])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-2, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_as_one(base: str, tmp_path: Path) -> None:
    """Through torchrun, so that NCCL reduces the gradients."""
    one = finetune(task(base, tmp_path / "one", "tokens", use_gpu=True, epochs=2))
    made = task(base, tmp_path / "two", "tokens", use_gpu=True, epochs=2)
    path = tmp_path / "config.json"
    path.write_text(made.model_dump_json(exclude_none=True))
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"]
    subprocess.run(
        [
            sys.executable,
            *command,
            "-m",
            "bertmill",
            "finetune",
            "--config",
            str(path),
            "--launcher",
            "torchrun",
        ],
        check=True,
        # The packages of this process may come from a path too.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
    )
    two = json.loads((Path(made.output) / "results.json").read_text())
    assert two["seeds"][0]["losses"] == pytest.approx(one.seeds[0].losses, rel=1e-2, abs=1e-3)


def test_a_scorecard_is_made_on_the_gpu(tmp_path: Path) -> None:
    from bertmill.scorecard.records import Settings
    from bertmill.scorecard.run import make_scorecard
    from tests.bertmill.scorecard.eval_sets import glue_folder, multilingual_folder

    glue_folder(tmp_path / "glue")
    multilingual_folder(tmp_path / "multilingual")
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    model = str(tmp_path / "model")
    export_model(small_model(), model, str(tokenizer), ModelCard("small"))
    made = Settings(model, None, None, (1,), (1e-3,), 1, 8, 12, 16, use_gpu=True)
    for suite, tasks in (("glue", ["rte", "stsb"]), ("multilingual", ["panx", "tatoeba"])):
        card = make_scorecard(made, suite, str(tmp_path / suite), str(tmp_path / f"{suite}-out"), tasks=tasks)
        assert card.complete, card.failed
        assert card.device == "GPU"
