"""evaluate, export and finetune from a trained run to figures, through the console command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bertmill.cli import main
from bertmill.cli.models.evaluate import table
from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS
from tests.trainer.runs import TINY, phase, train_config
from tests.trainer.synthetic import LANGUAGES
from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.export.load_model import load_model
from trainer.monitoring.records import PretrainingMetrics
from trainer.run.loop import train

VOCAB = 120


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus_with_tokenizer(tmp_path_factory.mktemp("corpus"), VOCAB, validation_rows=(20, 9))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> str:
    folder = tmp_path_factory.mktemp("run")
    config = train_config(folder, corpus, model=TINY, phases=[phase(32, 16, 512, steps=6)])
    return train(TrainConfig.model_validate(config), single_rank()).run_uri


def figures(capsys: pytest.CaptureFixture[str], model: str, corpus: Path, *words: str) -> dict[str, Any]:
    assert main(["evaluate", model, "--corpus", str(corpus), "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_run_and_export_measure_alike(
    run: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_run = figures(capsys, run, corpus)
    assert main(["export", run, "--to", str(tmp_path / "model"), "--evaluate", "29"]) == 0
    assert capsys.readouterr().out == f"step 6 exported to {tmp_path}/model\n"
    of_export = figures(capsys, str(tmp_path / "model"), corpus)
    assert set(of_run) == {"all", *LANGUAGES}
    for language, row in of_run.items():
        assert of_export[language] == pytest.approx(row, abs=1e-4)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| all | 29 | {of_run['all']['masked_tokens']:,} |" in card
    assert f"{of_run['all']['perplexity']:.4f}" in card


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Lets torch compute with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_processes_of_torchrun_give_the_figures_of_one(
    run: str, corpus: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal to the bit with one thread per process. Other numbers of threads round products differently."""
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", "bertmill"]
    words = ["--micro-batch-tokens", "64"]
    command = ["evaluate", run, "--corpus", str(corpus), "--json", *words, "--launcher", "torchrun"]
    done = subprocess.run(
        [sys.executable, *elastic, *command],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert json.loads(done.stdout) == figures(capsys, run, corpus, *words)


def test_part_of_the_rows_and_a_table(run: str, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys, run, corpus, "--rows", "12", "--length", "32")["all"]["sequences"] == 12
    assert main(["evaluate", run, "--corpus", str(corpus)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["language", "all", *LANGUAGES]
    assert len({len(line) for line in lines}) == 1


def test_table_leaves_out_what_a_language_has_not() -> None:
    whole = PretrainingMetrics(loss=2.5, sequences=9, masked_tokens=1234, pairs=7, mlm_loss=2.5)
    german = PretrainingMetrics(loss=0.0, sequences=1, masked_tokens=0, pairs=0)
    assert table({"all": whole, "de": german}) == [
        "language  sequences  masked_tokens  pairs    loss  mlm_loss",
        "     all          9          1,234      7  2.5000    2.5000",
        "      de          1              0      0  0.0000          ",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "512"], "max_positions 64 is too small for max_seq_length 512"),
        (["--length", "64"], "no validation rows of length 64"),
        (["--corpus", "/no/such.json"], "/no/such.json: no such corpus manifest"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    words: list[str], message: str, run: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", run, "--corpus", str(corpus), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_export_is_not_a_run(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", run, "--to", str(tmp_path / "model")]) == 0
    assert main(["export", str(tmp_path / "model"), "--to", str(tmp_path / "again")]) == 2
    assert "an exported model already" in capsys.readouterr().err


def test_a_checkpoint_loads_like_its_run(run: str) -> None:
    whole = load_model(run)
    one = load_model(whole.uri)
    assert whole.step == one.step == 6
    assert all(value.equal(one.model.state_dict()[name]) for name, value in whole.model.state_dict().items())


def test_finetune_from_a_run(
    run: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"the {animal} {verb}\t{animal}\n" for animal in ("cat", "dog") for verb in ("sat", "ran")]
    (tmp_path / "data.tsv").write_text("".join(rows * 4))
    files = {"train": [str(tmp_path / "data.tsv")], "validation": [str(tmp_path / "data.tsv")]}
    config = {
        "model": run, "tokenizer": str(corpus.parent / "tokenizer"), "output": str(tmp_path / "out"),
        "task": "classification", "files": files, "max_seq_length": 16, "epochs": 1,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["finetune", "--config", str(tmp_path / "config.yaml")]
    assert main([*words, "--", "--learning_rate=0.01", "--epochs=20", "--batch_size=8"]) == 0
    assert "validation  accuracy: median 1.0000" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["config"]["epochs"] == 20
    assert main([*words, "--", "--task=reading"]) == 2
    assert "config.yaml: task: " in capsys.readouterr().err
