"""finetune as a job: progress, SIGTERM and resume, several processes. Then the command predict."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertmill.cli import main
from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS
from tests.trainer.finetuning.test_run import config, sentences, tag_file

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def write_config(pretrained: str, folder: Path, task: str, files: dict[str, Any], **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    made = config(pretrained, folder, task, files, **fields).model_dump(mode="json")
    path = folder / "finetune.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "results.json").read_text())
    return found


def test_sigterm_keeps_finished_seeds_and_the_same_command_resumes(
    pretrained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    fields = {"seeds": [1, 2], "epochs": 3, "log_every": 4, "dropout": 0.1, "save_model": True}
    path = write_config(pretrained, tmp_path / "stopped", "classification", files, **fields)
    command = [sys.executable, "-m", "bertmill", "finetune", "--config", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        # The first line of the second seed: the first one is finished.
        if line.startswith("seed 2") and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            break
    rest = process.communicate(timeout=HANG_SECONDS)[0]
    assert process.returncode == 143
    assert printed[0].startswith("seed 1  epoch 1  step 4/36  loss ")
    assert " lr " in printed[0]
    assert " examples/s  ETA " in printed[0]
    assert "stopped with 1 of 2 seed(s) finished; rerun the same command to resume" in rest
    assert [seed["seed"] for seed in results(tmp_path / "stopped")["seeds"]] == [1]
    first = results(tmp_path / "stopped")["seeds"]
    assert main(["finetune", "--config", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("seed 1  done before: best epoch")
    assert not any(line.startswith("seed 1  epoch") for line in printed)
    assert results(tmp_path / "stopped")["seeds"][:1] == first
    assert [seed["seed"] for seed in results(tmp_path / "stopped")["seeds"]] == [1, 2]
    _predict(tmp_path, capsys)


def _predict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Predictions of the saved model, as TSV on standard output and as JSON Lines in a file."""
    (folder / "new.tsv").write_text("sentence\tsentence2\ndog mat\tw3 cat w4\nw5\tw6\n")
    model, to = str(folder / "stopped" / "out"), str(folder / "new.jsonl")
    assert main(["predict", model, str(folder / "new.tsv")]) == 0
    table = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in table] == ["row", "2", "3"]
    assert main(["predict", model, str(folder / "new.tsv"), "--to", to, "--text", "0", "--pair", "1"]) == 0
    objects = [json.loads(line) for line in Path(to).read_text().splitlines()]
    assert [one["row"] for one in objects] == [1, 2, 3]
    assert [one["label"] for one in objects[1:]] == [row[1] for row in table[1:]]
    capsys.readouterr()
    assert main(["predict", model, str(folder / "none.tsv")]) == 2
    assert capsys.readouterr().err == f"bertmill: {folder}/none.tsv: no such file\n"


def test_two_processes_train_as_one(pretrained: str, tmp_path: Path) -> None:
    """Equal global batches: losses differ by rounding only. The last batch of an epoch has one example."""
    files: dict[str, Any] = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    files["test"] = {"xx": files["validation"]}
    fields = {"epochs": 3, "batch_size": 9}
    one, two = (write_config(pretrained, tmp_path / n, "tokens", files, **fields) for n in "12")
    assert main(["finetune", "--config", str(one)]) == 0
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertmill"]
    done = subprocess.run(
        [sys.executable, *elastic, "finetune", "--config", str(two), "--launcher", "torchrun"],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.stdout.count("seed 1  done: best epoch") == 1
    expected, found = (results(tmp_path / n)["seeds"][0] for n in "12")
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-4)
    assert found["best_epoch"] == expected["best_epoch"]
    assert found["validation"] == pytest.approx(expected["validation"], abs=0.02)
    assert found["test"]["xx"] == found["validation"]
