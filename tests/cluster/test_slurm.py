"""Runs the batch scripts unchanged, with replacements of SLURM's commands for a single machine."""

import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster import fake_slurm
from tests.support.s3_server import free_ports
from tests.support.waiting import HANG_SECONDS, wait_until
from tests.trainer.runs import History, phase, train_config, write_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders

SLURM = fake_slurm.ROOT / "cluster" / "slurm"


@pytest.mark.process
def test_a_training_that_is_gets_sigterm_saves_and_is_queued_again(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", lengths=(32,))
    config = train_config(
        tmp_path, manifest, phases=[phase(32, 16, 128, steps=100_000)], checkpoints={"every_steps": 10}
    )
    environment = fake_slurm.install(tmp_path) | {
        "SLURM_JOB_ID": str(free_ports(1)[0]),
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "USE_GPU": "false",
    }
    script = subprocess.Popen(
        ["bash", SLURM / "pretrain.sbatch", write_config(tmp_path, config), "--seed=7"],
        cwd=fake_slurm.ROOT,
        env=environment,
    )
    run = tmp_path / "runs" / "run"
    try:
        wait_until(lambda: run.exists() and bool(list_folders(str(run))), what="a checkpoint")
    finally:
        script.send_signal(signal.SIGTERM)
        status = script.wait(HANG_SECONDS)
    assert status == 143
    assert (tmp_path / "queued-again").read_text() == environment["SLURM_JOB_ID"]
    steps = History(run).losses()
    newest = max(folder.step for folder in list_folders(str(run)))
    assert newest == len(steps) >= 10


@pytest.mark.parametrize("name", ["build.sbatch", "pretrain.sbatch"])
def test_a_script_without_a_config_says_how_it_is_used(name: str) -> None:
    done = subprocess.run(["bash", SLURM / name], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbatch ")
    assert subprocess.run(["bash", "-n", SLURM / name], check=False).returncode == 0


@pytest.mark.parametrize("name", ["build.yaml", "pretrain.yaml"])
def test_skypilot_tasks_use_variables_that_they_declare(name: str) -> None:
    task = yaml.safe_load((fake_slurm.ROOT / "cluster" / "skypilot" / name).read_text())
    used = {word for word in ("CONFIG", "STORAGE", "MANIFEST", "OUTPUT") if f"${word}" in task["run"]}
    assert used == set(task["envs"])
    assert (fake_slurm.ROOT / task["envs"]["CONFIG"]).is_file()
