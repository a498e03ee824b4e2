"""A fine-tuning run that was stopped or killed resumes, and ends with the bytes of an undisturbed one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from schemas.errors import CheckpointError, ConfigError
from tests.trainer.finetuning.test_run import config, sentences, tag_file
from trainer.finetuning.config import FinetuneConfig
from trainer.finetuning.progress import EpochDone, Event, SeedDone, StepDone
from trainer.finetuning.run import finetune


class KilledError(Exception):
    """Stands for SIGKILL: nothing is saved after it."""


def stop_after(polls: int) -> Callable[[], bool]:
    """Returns true from the ``polls``-th call on. Each step or evaluation batch calls it once."""
    asked = iter(range(polls - 1))
    return lambda: next(asked, None) is None


def kill_at(epoch: int, seed: int) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if isinstance(event, EpochDone) and (event.seed, event.epoch) == (seed, epoch):
            raise KilledError

    return on_event


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")


def settings(pretrained: str, folder: Path, files: dict[str, Any], **fields: Any) -> FinetuneConfig:
    fields = {"epochs": 3, "dropout": 0.1, "seeds": [1, 2], "save_model": True, **fields}
    return config(pretrained, folder, "classification", files, **fields)


def results(run: FinetuneConfig) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((Path(run.output) / "results.json").read_text())
    report["config"].pop("output")
    return report


def test_a_run_stopped_anywhere_resumes_to_the_same_bytes(
    pretrained: str, tmp_path: Path, files: dict[str, Any]
) -> None:
    """Stops in the first step, between steps, in a validation, in the test set and in the second seed."""
    whole = settings(pretrained, tmp_path / "whole", files)
    assert finetune(whole).complete
    model = safetensors.torch.load_file(tmp_path / "whole" / "out" / "model" / "model.safetensors")
    for polls in (1, 8, 13, 43, 60):
        run = settings(pretrained, tmp_path / str(polls), files)
        report = finetune(run, stop_requested=stop_after(polls))
        assert not report.complete
        assert len(report.seeds) == (polls > 50)
        assert report.to_json() == json.loads((Path(run.output) / "results.json").read_text())
        assert finetune(run).complete
        assert results(run) == results(whole)
        saved = safetensors.torch.load_file(Path(run.output) / "model" / "model.safetensors")
        assert all(value.equal(saved[name]) for name, value in model.items())
        assert not list(Path(run.output).glob("seeds/*.state"))


def test_a_killed_run_repeats_only_the_epoch(pretrained: str, tmp_path: Path, files: dict[str, Any]) -> None:
    whole, run = (settings(pretrained, tmp_path / name, files) for name in ("whole", "killed"))
    finetune(whole)
    with pytest.raises(KilledError):
        finetune(run, on_event=kill_at(epoch=2, seed=2))
    assert [seed["seed"] for seed in results(run)["seeds"]] == [1]
    events: list[Event] = []
    finetune(run, on_event=events.append)
    assert next(event for event in events if isinstance(event, SeedDone) and event.resumed).seed == 1
    trained = [(event.seed, event.epoch) for event in events if isinstance(event, EpochDone)]
    assert trained == [(2, 2), (2, 3)]
    assert results(run) == results(whole)


def test_a_finished_run_repeats_nothing(pretrained: str, tmp_path: Path, files: dict[str, Any]) -> None:
    run = settings(pretrained, tmp_path, files, epochs=1)
    first = finetune(run)
    events: list[Event] = []
    assert finetune(run, on_event=events.append) == first
    assert all(isinstance(event, SeedDone) and event.resumed for event in events)
    more = finetune(run.model_copy(update={"seeds": [1, 2, 3]}), on_event=events.append)
    assert more.seeds[:2] == first.seeds
    assert [event.seed for event in events if isinstance(event, EpochDone)] == [3]


def test_progress_has_loss_rate_and_remaining_time(
    pretrained: str, tmp_path: Path, files: dict[str, Any]
) -> None:
    events: list[Event] = []
    run = settings(pretrained, tmp_path, files, epochs=2, log_every=5)
    finetune(run, on_event=events.append)
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [(event.seed, event.step) for event in steps] == [(s, n) for s in (1, 2) for n in (5, 10, 15, 20)]
    assert all(event.loss > 0 and event.examples_per_second > 0 for event in steps)
    assert steps[0].eta_seconds > steps[-1].eta_seconds > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"learning_rate": 1e-3},
            r"run\.json: this folder has results of another learning_rate \(0\.002, now",
        ),
        ({"max_train_examples": 90}, "of another max_train_examples"),
    ],
)
def test_results_of_other_settings_are_not_mixed(
    change: dict[str, Any], message: str, pretrained: str, tmp_path: Path, files: dict[str, Any]
) -> None:
    run = settings(pretrained, tmp_path, files, epochs=1)
    finetune(run)
    with pytest.raises(ConfigError, match=message):
        finetune(run.model_copy(update=change))


def test_changed_files_are_noticed(pretrained: str, tmp_path: Path, files: dict[str, Any]) -> None:
    run = settings(pretrained, tmp_path, files, epochs=1)
    finetune(run)
    with Path(files["validation"][0]).open("a") as file:
        file.write("w3\tw4\tno\n")
    with pytest.raises(ConfigError, match=r"has results of another files\.validation; choose"):
        finetune(run)


def test_a_damaged_state_is_one_line(pretrained: str, tmp_path: Path, files: dict[str, Any]) -> None:
    run = settings(pretrained, tmp_path, files)
    finetune(run, stop_requested=stop_after(5))
    (Path(run.output) / "seeds" / "seed-1.state").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"seed-1\.state: damaged; delete it"):
        finetune(run)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("seeds/seed-1.json", '{"seed": 1', "Invalid JSON.*; delete it to train the seed again"),
        ("seeds/seed-1.json", "[]", "Input should be an object"),
        ("seeds/seed-1.json", '{"seed": 1}', "best_epoch: Field required"),
        ("seeds/seed-1.json", '{"seed": "1"}', "seed: Input should be a valid integer"),
        ("run.json", "[]", "Input should be an object.*; choose another output, or delete the folder"),
    ],
)
def test_a_damaged_result_is_one_line(
    name: str, content: str, problem: str, pretrained: str, tmp_path: Path, files: dict[str, Any]
) -> None:
    run = settings(pretrained, tmp_path, files)
    (tmp_path / "out" / "seeds").mkdir(parents=True)
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name}: damaged, or of another version: {problem}"):
        finetune(run)


def test_another_model_in_the_output_is_kept(pretrained: str, tmp_path: Path, files: dict[str, Any]) -> None:
    run = settings(pretrained, tmp_path, files)
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="out/model: holds another model; choose another output"):
        finetune(run)
    assert (tmp_path / "out" / "model" / "config.json").read_text() == "{}"


def test_tags_resume_too(pretrained: str, tmp_path: Path) -> None:
    files = {"train": tag_file(tmp_path, "a", 1), "validation": tag_file(tmp_path, "b", 2)}
    fields = {"epochs": 2, "early_stop": 1, "dropout": 0.1, "save_every": None}
    whole, run = (config(pretrained, tmp_path / name, "tokens", files, **fields) for name in "ab")
    finetune(whole)
    finetune(run, stop_requested=stop_after(12))
    finetune(run)
    assert results(run) == results(whole)
