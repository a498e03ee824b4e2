"""Submits both jobs to a running Ray, in the two ways of the guides."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.builds import DUMPS, ROOT
from tests.support.checkout import copy_checkout
from tests.support.ray_head import RayHead
from tests.support.waiting import HANG_SECONDS

STEPS, LONG_STEPS = 40, 2
"""Steps of the run at 128, and then at 512."""
_BUILD = ("--vocabulary.size=3000", "--vocabulary.min_count=1", "--instances.bucket_bytes=100000",
          "--instances.validation_share=0.1")  # fmt: skip
_TRAIN = ("--logging.every_steps=1", "--checkpoints.every_steps=10", "--run.accept_changes=[phases]")


def copy_jobs(folder: Path) -> None:
    """Copies the checkout that is submitted into ``folder``, which is empty."""
    checkout = copy_checkout(folder / "checkout")
    (folder / "home").mkdir()
    dumps = checkout / "sample" / "dumps"
    dumps.mkdir(parents=True)
    for name in DUMPS:
        shutil.copy(ROOT / "sample" / "dumps" / f"{name}.xml.bz2", dumps)


def submit_jobs(head: RayHead, folder: Path) -> Path:
    """Builds a corpus, trains on it, and resumes with a longer phase, after ``copy_jobs``.

    Returns the home folder of the jobs: relative paths are those below it.
    """
    checkout, home = folder / "checkout", folder / "home"
    assert "tokens_left_over" in build(head, folder)
    phases = _phases(STEPS, 0)
    trained = _ray_job(head, checkout, home, "trainer/pretrain.py", "demo-train.yaml", phases, *_TRAIN)
    assert "finished" in trained
    runs = home / "runs" / "demo"
    resumed = _bertmill(
        head, checkout, "pretrain", "demo-train.yaml", _phases(STEPS, LONG_STEPS), *_TRAIN,
        f"--run.storage={runs}", f"--data.manifest={runs}/corpus/manifest.json",
    )  # fmt: skip
    assert "finished" in resumed
    return home


def build(head: RayHead, folder: Path) -> str:
    """Submits the build of submit_jobs, in the checkout of ``copy_jobs``. Returns the output of the job.

    A repeated build only reads what the first one committed.
    """
    sources = _sources("wikipedia", "wikimedia", [f"sample/dumps/{name}.xml.bz2" for name in DUMPS])
    return _ray_job(
        head, folder / "checkout", folder / "home", "pipeline/build_corpus.py", "demo.yaml", sources, *_BUILD
    )


def fail_build(head: RayHead, folder: Path) -> None:
    """Submits a build of a broken file, after ``copy_jobs``."""
    broken = folder / "broken.jsonl"
    broken.write_text('{"text": "A line."}\n{"text": "Not closed.\n')
    sources = _sources("notes", "jsonl", [str(broken)], lang="en")
    output = f"--output={folder}/home/broken"
    with pytest.raises(RuntimeError, match=r"broken\.jsonl"):
        _bertmill(head, folder / "checkout", "build", "demo.yaml", sources, output)


def _sources(name: str, kind: str, paths: list[str], **fields: Any) -> str:
    return f"--sources={json.dumps([{'name': name, 'kind': kind, 'paths': paths, **fields}])}"


def _phases(*steps: int) -> str:
    common = {"global_batch": 16, "micro_batch_tokens": 2048, "learning_rate": 1e-3}
    phases = [
        {"max_seq_length": length, "steps": count, **common}
        for length, count in zip((128, 512), steps, strict=True)
        if count
    ]
    return f"--phases={json.dumps(phases)}"


def _ray_job(head: RayHead, checkout: Path, home: Path, script: str, config: str, *overrides: str) -> str:
    runtime_env = {"env_vars": {"BERTMILL_HOME": str(home)}}
    job = ["python", script, "--config", f"configs/{config}", *overrides]
    words = ["--working-dir", ".", "--runtime-env-json", json.dumps(runtime_env), "--", *job]
    return _submitted(["ray", "job", "submit", *words], checkout, head.environment)


def _bertmill(head: RayHead, checkout: Path, kind: str, config: str, *overrides: str) -> str:
    words = ["submit", kind, "--config", f"configs/{config}", "--", *overrides]
    environment = {**head.environment, "PYTHONPATH": str(ROOT)}
    return _submitted([sys.executable, "-m", "bertmill", *words], checkout, environment)


def _submitted(command: list[str], checkout: Path, environment: dict[str, str]) -> str:
    """The output of the job. Raises RuntimeError with it when the job fails."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        done = subprocess.run(
            command, env=environment, cwd=checkout, capture_output=True, text=True, check=False,
            timeout=HANG_SECONDS,
        )  # fmt: skip
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            break
        time.sleep(1)  # the agent that runs jobs starts seconds after the cluster
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout
