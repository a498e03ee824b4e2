"""Every shipped training config can be read, built and scheduled to its last step."""

from pathlib import Path

import pytest
import torch
import yaml

from cluster.jobs.config_file import load_config
from tests.support.ray_cluster import ROOT
from tests.trainer.orders import order_of
from tests.trainer.runs import History, phase, train_config
from tests.trainer.synthetic import write_corpus
from trainer.config import TrainConfig
from trainer.data.step_plan import TrainingPlan
from trainer.distributed.ranks import single_rank
from trainer.evaluation.held_out import ALL
from trainer.finetuning.config import METRICS, FinetuneConfig
from trainer.model.pretraining import BertPretraining, parameter_count
from trainer.run.loop import train
from trainer.startup.setup import LearningRates

CONFIGS = [
    path
    for path in sorted((ROOT / "configs").rglob("*.yaml"))
    if "phases" in yaml.safe_load(path.read_text())
]
RECIPES = [path for path in CONFIGS if path.parent.name == "recipes"]


def rates_of(config: TrainConfig) -> LearningRates:
    lengths = {phase.max_seq_length for phase in config.phases}
    return LearningRates(
        config, TrainingPlan(config.phases, {n: order_of([([1000], 1000)], 0) for n in lengths})
    )


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_config_is_sound(path: Path) -> None:
    config = load_config(TrainConfig, str(path))
    with torch.device("meta"):
        model = BertPretraining(config.model.with_vocabulary(30_522))
    assert parameter_count(model) > 1e6
    rates = rates_of(config)
    last = sum(phase.steps or 0 for phase in config.phases) - 1
    if last > 0:
        assert 0 < rates.at(last) < rates.at(last // 4)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_recipe_names_its_source(path: Path) -> None:
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("arXiv" in line or "github.com" in line for line in comment)


def test_lamb_in_two_phases_has_the_published_rates() -> None:
    config = load_config(TrainConfig, str(ROOT / "configs/recipes/bert-large-lamb.yaml"))
    rates = rates_of(config)
    # Warm-up of 2001 steps in the first phase, 200 in the second, each to its own peak.
    assert rates.at(2000) == pytest.approx(6e-3)
    assert rates.at(7037) == pytest.approx(6e-3 * (1 / (7038 - 2001)) ** 0.5)
    assert rates.at(7038) == pytest.approx(4e-3 / 200)
    assert rates.at(7038 + 199) == pytest.approx(4e-3)


def test_warm_up_of_a_phase_needs_a_schedule_by_phase(tmp_path: Path) -> None:
    changes = {"phases": [phase(32, 16, 128, steps=12, warmup=0.5)]}
    with pytest.raises(ValueError, match=r"phases\.0\.warmup: with schedule\.span run"):
        TrainConfig.model_validate(train_config(tmp_path, tmp_path / "x", **changes))


def test_held_out_figures_are_written_while_training(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", validation_rows=(9, 8))
    measured = train_config(tmp_path, manifest, evaluation={"every_steps": 5, "rows": 12})
    outcome = train(TrainConfig.model_validate(measured), single_rank())
    lines = History(Path(outcome.run_uri)).events("evaluated")
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert [line["held_out"][ALL]["sequences"] for line in lines] == [12, 12, 12]
    assert lines[-1]["held_out"][ALL]["loss"] < lines[0]["held_out"][ALL]["loss"]
    plain = train_config(tmp_path / "plain", manifest)
    assert train(TrainConfig.model_validate(plain), single_rank()).last_loss == outcome.last_loss


FINETUNINGS = sorted((ROOT / "configs" / "finetune").glob("*.yaml"))


@pytest.mark.parametrize("path", FINETUNINGS, ids=[path.stem for path in FINETUNINGS])
def test_fine_tuning_config_is_sound(path: Path) -> None:
    config = load_config(FinetuneConfig, str(path))
    assert (config.metric or METRICS[config.task][0]) in METRICS[config.task]
    assert Path(config.output).parts[0] == "results"


def test_every_task_has_an_example() -> None:
    assert {load_config(FinetuneConfig, str(path)).task for path in FINETUNINGS} == set(METRICS)
