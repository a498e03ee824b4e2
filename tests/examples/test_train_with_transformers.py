"""The Hugging Face Trainer on our shards: it learns, and resumes with the batches that come next."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.synthetic import write_corpus


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), shard_rows=(64, 64))


def losses(output: Path, step: int) -> dict[int, float]:
    state: dict[str, Any] = json.loads((output / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return {record["step"]: record["loss"] for record in state["log_history"] if "loss" in record}


def train(manifest: Path, output: Path, steps: int) -> float:
    # Here, because it takes seconds in each process that collects this test.
    from examples import train_with_transformers

    words = [str(manifest), "--output", str(output), "--steps", str(steps), "--batch-size", "16"]
    return train_with_transformers.main(
        [*words, "--max-seq-length", "32", "--hidden-size", "32", "--dropout", "0"]
    )


@pytest.mark.slow
def test_it_learns_and_a_resumed_run_sees_the_next_batches(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(manifest, tmp_path / "whole", 8)
    whole = losses(tmp_path / "whole", 8)
    assert whole[8] < whole[1]
    train(manifest, tmp_path / "parts", 4)
    train(manifest, tmp_path / "parts", 8)
    assert "resuming after step 4" in capsys.readouterr().out
    # Without dropout, whose random state belongs to the Trainer, the run continues exactly.
    assert losses(tmp_path / "parts", 8) == pytest.approx(whole, abs=1e-3)
    assert (tmp_path / "parts" / "model.safetensors").is_file()
