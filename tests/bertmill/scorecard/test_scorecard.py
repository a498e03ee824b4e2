"""A scorecard of a small model, made on the CPU through the console command."""

import json
import lzma
import multiprocessing
import os
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from bertmill.cli import main
from bertmill.scorecard.records import Settings
from bertmill.scorecard.run import make_scorecard
from tests.bertmill.scorecard.eval_sets import glue_folder, multilingual_folder
from tests.trainer.models import VOCAB, small_config
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model
from trainer.model.pretraining import BertPretraining


def command(model: str, suite: str, folder: Path, *more: str) -> list[str]:
    paths = ["--data", str(folder / "data"), "--out", str(folder / "out")]
    fixed = ["--epochs", "1", "--batch-size", "8", "--learning-rates", "1e-3", "2e-3", "--max-length", "12"]
    return ["scorecard", model, "--suite", suite, *paths, *fixed, *more]


def by_two_processes(words: list[str]) -> list[str]:
    """The command with two processes for its jobs. tests/selection.py knows this name."""
    return [*words, "--workers", "2"]


def card_of(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / "out" / "scorecard.json").read_text())
    return card


class _Checker(HTMLParser):
    """Collects the text and the external resources of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe"):
            self.loaded.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(folder: Path) -> str:
    checker = _Checker()
    checker.feed((folder / "out" / "scorecard.html").read_text())
    assert checker.loaded == []
    return "\n".join(checker.text)


def test_glue(pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glue_folder(tmp_path / "data")
    assert main(command(pretrained, "glue", tmp_path, "--seeds", "1", "2")) == 0
    printed = capsys.readouterr().out
    card = card_of(tmp_path)
    assert card["complete"]
    assert card["jobs"] == {"finished": 16, "failed": 0, "all": 16}
    assert set(card["tasks"]) == {"cola", "mrpc", "stsb", "rte"}
    assert card["missing"] == {"SST-2": "no sst2_glue/train.tsv", "QNLI": "no qnli/train.tsv"}
    assert "QNLI: not measured, no qnli/train.tsv" in printed
    assert "cola lr 0.001 seed 1: seed 1  epoch 1/1  loss" in printed
    assert card["device_hours"] > 0
    for task in card["tasks"].values():
        assert [row["learning_rate"] for row in task["grid"]] == [0.001, 0.002]
        best = max(task["grid"], key=lambda row: row["mean"])
        assert task["learning_rate"] == best["learning_rate"]
        seeds = [
            json.loads(path.read_text())["validation"][task["metric"]]
            for path in sorted(
                (tmp_path / "out" / "jobs").glob(f"*-lr{best['learning_rate']:g}-seed*/job.json")
            )
            if path.parent.name.startswith(f"{task['title'].lower().replace('-', '')}-")
        ]
        assert task["mean"]["mean"] == pytest.approx(sum(seeds) / 2)
        assert task["mean"]["deviation"] == pytest.approx(abs(seeds[0] - seeds[1]) / 2**0.5)
    _check_glue_pages(tmp_path, card)
    assert main(command(pretrained, "glue", tmp_path, "--seeds", "1", "2")) == 0
    assert "16 of 16 jobs are already done" in capsys.readouterr().out
    assert card_of(tmp_path) == card


def _check_glue_pages(folder: Path, card: dict[str, Any]) -> None:
    markdown, page = (folder / "out" / "scorecard.md").read_text(), page_of(folder)
    rte = card["tasks"]["rte"]["mean"]
    shown = f"{100 * rte['mean']:.1f} ± {100 * rte['deviation']:.1f}"
    for text in (markdown, page):
        assert shown in text
        assert "MosaicBERT-base" in text
        assert "arXiv:2312.17482" in text
        assert "QNLI (no qnli/train.tsv)" in text
        assert "CPU-hours" in text
    overview = next(line for line in markdown.splitlines() if line.startswith("| BERT-base (cased)"))
    assert overview == "| BERT-base (cased) | 56.5 | 88.8 | 88.5 | 65.7 |"


def test_multilingual_by_two_processes(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    multilingual_folder(tmp_path / "data")
    words = by_two_processes(command(pretrained, "multilingual", tmp_path, "--seeds", "1"))
    words.remove("2e-3")
    assert main(words) == 0
    assert "panx lr 0.001 seed 1: done" in capsys.readouterr().out
    tasks = card_of(tmp_path)["tasks"]
    assert {name: sorted(task["languages"]) for name, task in tasks.items()} == {
        "panx": ["de", "en"], "udpos": ["de"], "tydiqa": ["en", "fi"], "xquad": ["de"],
        "sib200": ["deu_Latn", "eng_Latn"], "tatoeba": ["deu", "fra"],
    }  # fmt: skip
    # The two sides of Tatoeba are equal here.
    assert tasks["tatoeba"]["mean"]["mean"] == 1
    assert "trained on the dev part of English EWT" in tasks["udpos"]["note"]
    assert tasks["panx"]["note"] == "without the test sets of 1 language(s), which have no tags"
    assert tasks["panx"]["mean"]["mean"] == pytest.approx(
        sum(figures["mean"] for figures in tasks["panx"]["languages"].values()) / 2
    )
    assert tasks["panx"]["mean_without_english"] == tasks["panx"]["languages"]["de"]["mean"]
    page = page_of(tmp_path)
    assert "XLM-R (large)" in page
    assert "It is trained on English TyDiQA-GoldP, because the folder has no squad/train-v1.1.json." in page


def settings(model: str, **fields: Any) -> Settings:
    made: dict[str, Any] = {
        "model": model, "tokenizer": None, "nli_model": None, "seeds": (1,), "learning_rates": (1e-3,),
        "epochs": 1, "batch_size": 8, "max_length": 12, "max_examples": 16, "use_gpu": False,
    }  # fmt: skip
    return Settings(**{**made, **fields})


def test_a_stopped_scorecard_resumes(pretrained: str, tmp_path: Path) -> None:
    glue_folder(tmp_path / "data")
    data, whole, out = (str(tmp_path / name) for name in ("data", "whole", "out"))
    polls = iter(range(9))
    stopped = make_scorecard(
        settings(pretrained), "glue", data, out, stop_requested=lambda: next(polls, None) is None
    )
    assert not stopped.complete
    assert 0 < stopped.jobs.finished < 4
    assert f"Incomplete: {stopped.jobs.finished} of 4 jobs" in (tmp_path / "out/scorecard.md").read_text()
    lines: list[str] = []
    card = make_scorecard(settings(pretrained), "glue", data, out, print_line=lines.append)
    assert f"{stopped.jobs.finished} of 4 jobs are already done" in lines
    undisturbed = make_scorecard(settings(pretrained), "glue", data, whole)
    for name, task in undisturbed.tasks.items():
        assert card.tasks[name].mean == task.mean
    assert "cut to its first 16 examples" in (tmp_path / "out" / "scorecard.md").read_text()


def test_a_failing_job_does_not_end_the_others_and_is_tried_again(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(pretrained, "glue", tmp_path, "--seeds", "1", "--tasks", "rte", "cola", "--workers", "1")
    _check_a_failing_job(words, tmp_path, capsys)


def test_a_failing_job_of_two_processes_is_tried_again(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(pretrained, "glue", tmp_path, "--seeds", "1", "--tasks", "rte", "cola")
    _check_a_failing_job(by_two_processes(words), tmp_path, capsys)


def _check_a_failing_job(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    glue_folder(tmp_path / "data")
    dev = tmp_path / "data" / "RTE" / "dev.tsv"
    good = dev.read_text()
    dev.write_text(good.replace("entailment", "entails", 1))
    words.remove("2e-3")
    assert main(words) == 1
    printed = capsys.readouterr()
    reason = f"{dev}:2: label 'not_entails' is not in the training files"
    assert f"rte lr 0.001 seed 1 failed: {reason}" in printed.err
    card = card_of(tmp_path)
    assert card["jobs"] == {"finished": 1, "failed": 1, "all": 2}
    assert card["failed"]["rte lr 0.001 seed 1"].startswith(reason)
    assert "mean" in card["tasks"]["cola"]
    markdown = (tmp_path / "out" / "scorecard.md").read_text()
    assert "| failed |" in markdown
    for text in (markdown, page_of(tmp_path)):
        assert "Incomplete: 1 of 2 jobs are finished, 1 failed." in text
        assert f"Failed: rte lr 0.001 seed 1: {reason}" in text
    dev.write_text(good)
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "1 of 2 jobs are already done" in printed.out
    assert "cola lr 0.001 seed 1: seed" not in printed.out
    card = card_of(tmp_path)
    assert card["complete"]
    assert card["failed"] == {}


def test_a_process_that_dies_costs_its_job_only(pretrained: str, tmp_path: Path) -> None:
    glue_folder(tmp_path / "data")
    lines: list[str] = []

    def print_line(line: str) -> None:
        if not lines:  # one of the jobs has reported its first epoch
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
        lines.append(line)

    made = settings(pretrained, epochs=200)
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    card = make_scorecard(made, "glue", data, out, tasks=["cola", "rte"], workers=2, print_line=print_line)
    # The other process may have been between two jobs.
    assert card.jobs.finished + card.jobs.failed == 2
    assert set(card.failed.values()) == {"its process ended with status -9"}
    assert lines[0].split(":")[0] in card.failed


def test_files_that_cannot_be_read_are_a_failed_task(pretrained: str, tmp_path: Path) -> None:
    glue_folder(tmp_path / "data")
    data, out = tmp_path / "data", str(tmp_path / "out")
    (data / "stsb" / "sts-train.csv.xz").write_bytes(lzma.compress(b"only one field\n"))
    card = make_scorecard(settings(pretrained), "glue", str(data), out, tasks=["stsb", "rte"])
    assert card.tasks["rte"].jobs.finished == 1
    assert "1 fields; a row of the STS benchmark has 7 or more" in card.failed["stsb lr 0.001 seed 1"]


def test_another_model_needs_another_folder(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glue_folder(tmp_path / "data")
    words = command(pretrained, "glue", tmp_path, "--seeds", "1", "--tasks", "rte", "--max-examples", "8")
    assert main(words) == 0
    assert main([*words, "--max-examples", "9"]) == 2
    assert f"{tmp_path}/out: holds a scorecard with another max_examples; choose" in capsys.readouterr().err
    (tmp_path / "data" / "RTE" / "dev.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
    assert main(words) == 2
    assert "another set of files for rte; choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("jobs/rte-lr0.001-seed1/job.json", "{", "Invalid JSON: "),
        ("jobs/rte-lr0.001-seed1/job.json", '{"finished": true}', "seconds: Field required; delete it"),
        (
            "jobs/rte-lr0.001-seed1/job.json",
            '{"finished": true, "seconds": 1.5}',
            "a finished job needs validation and test; delete it to run the job again",
        ),
        ("identity.json", '{"suite": 1}', "suite: Input should be a valid string; choose another --out"),
    ],
)
def test_a_damaged_file_is_one_line(
    name: str, content: str, problem: str, pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glue_folder(tmp_path / "data")
    damaged = tmp_path / "out" / name
    damaged.parent.mkdir(parents=True)
    damaged.write_text(content)
    assert main(command(pretrained, "glue", tmp_path, "--seeds", "1", "--tasks", "rte")) == 2
    error = capsys.readouterr().err
    assert f"{damaged}: damaged, or of another version: " in error
    assert problem in error
    assert error.count("\n") == 1


def test_three_tasks_start_from_an_nli_model(pretrained: str, tmp_path: Path) -> None:
    glue_folder(tmp_path / "data")
    torch.manual_seed(5)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    other = BertPretraining(small_config())
    export_model(other, str(tmp_path / "nli"), str(tokenizer), ModelCard("nli"))
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    made = settings(pretrained, nli_model=str(tmp_path / "nli"))
    card = make_scorecard(made, "glue", data, out, tasks=["cola", "rte"])
    starts = {
        name: json.loads((tmp_path / "out" / "jobs" / f"{name}-lr0.001-seed1" / "results.json").read_text())
        for name in card.tasks
    }
    assert {name: result["config"]["model"] for name, result in starts.items()} == {
        "cola": pretrained, "rte": str(tmp_path / "nli"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tasks", "mnli"], "--tasks: 'mnli' is not a task of glue: cola, sst2, mrpc, stsb, rte, qnli"),
        ([], "has no task of the suite; missing: no cola/in_domain_train.tsv; no sst2_glue/train.tsv"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], message: str, pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    assert main(command(pretrained, "glue", tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
