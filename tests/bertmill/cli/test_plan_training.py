"""The forecast of a training run, and of the memory of its GPUs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import train_throughput
from bertmill.cli import main
from bertmill.planning.forecast import (
    NETWORKS,
    GpuCluster,
    forecast_training,
    parameters,
    reduce_seconds,
    row_flops,
)
from bertmill.planning.gpu_memory import check_memory, training_gib
from bertmill.planning.rates import TrainingRate, load_rates
from cluster.jobs.config_file import load_config, validate
from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model.config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "cluster/kuberay/overlays"
RATES = load_rates()


def _train(size: str = "base", batch: int = 4096, steps: int | None = 100) -> TrainConfig:
    phase = {"max_seq_length": 128, "global_batch": batch, "micro_batch_tokens": 8192, "learning_rate": 1e-4}
    length = {"steps": steps} if steps else {"epochs": 1}
    fields = {
        "run": {"name": "x", "storage": "/runs"},
        "model": {"size": size},
        "data": {"manifest": "/corpus/manifest.json"},
        "phases": [{**phase, **length}],
    }
    return validate(TrainConfig, fields, "train.yaml")


def test_weights_and_arithmetic_of_bert_base() -> None:
    model = ModelConfig(size="base", vocab_size=30_522)
    # 110 M in the paper (Devlin et al. 2019), rounded.
    assert parameters(model) == pytest.approx(110e6, rel=0.015)
    # ALBERT-base has 12 M, because its twelve layers share their weights (Lan et al. 2020, table 1).
    albert = ModelConfig(style="albert", size="base", embedding_size=128, vocab_size=30_000)
    assert parameters(albert) == pytest.approx(12e6, rel=0.03)
    encoder_alone = 6 * 128 * 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert 1.05 < row_flops(model, 128) / encoder_alone < 1.2
    assert parameters(ModelConfig(size="large", vocab_size=30_522)) == pytest.approx(336e6, rel=0.015)


def test_more_gpus_are_faster_but_never_more_than_their_number() -> None:
    before = 0.0
    for gpus in (1, 8, 64, 256):
        (phase,) = forecast_training(_train(), 119_547, GpuCluster(gpus, network="efa"), RATES)
        assert before < phase.rows_per_second
        assert phase.efficiency <= 1.0001
        assert isinstance(phase.source, TrainingRate)
        assert phase.source.origin in ("ours", "reference")
        before = phase.rows_per_second
    assert reduce_seconds(1e8, GpuCluster(1), RATES.training) == 0
    by_network = [
        reduce_seconds(1e8, GpuCluster(16, 8, network), RATES.training)
        for network in ("nvlink", "efa", "tcp100", "tcp25")
    ]
    assert reduce_seconds(1e8, GpuCluster(8), RATES.training) < by_network[0]
    assert by_network == sorted(by_network)
    (unknown,) = forecast_training(_train("small"), 119_547, GpuCluster(8), RATES)
    assert isinstance(unknown.source, str)
    assert "small at 128" in unknown.source


def test_two_gpus_of_a_host_are_as_fast_as_measured() -> None:
    lines = (ROOT / "benchmarks/results/several_cards.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    alone = min(rate for each in found if len(each.get("each", [])) == 2 for rate in each["each"])
    measured = [
        each["rows_per_second_and_card"]
        for each in found
        if (each["measurement"], each["cards"]) == ("base fp32-after", 2)
    ]
    (phase,) = forecast_training(_train(batch=1024), 30_528, GpuCluster(2), RATES)
    assert phase.efficiency == pytest.approx(sum(measured) / len(measured) / alone, abs=0.03)
    (other,) = forecast_training(_train(batch=1024), 30_528, GpuCluster(2, 1), RATES)
    assert other.step_seconds > phase.step_seconds


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        (_train(), 0, "at least 1"),
        (_train(batch=8), 16, "global_batch 8 is below the number of GPUs, 16"),
        (_train(steps=None), 8, "needs steps"),
    ],
)
def test_impossible_runs_are_refused(config: TrainConfig, gpus: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forecast_training(config, 119_547, GpuCluster(gpus), RATES)


def test_gpu_memory_is_what_was_measured() -> None:
    """Peaks of the throughput benchmark: kernels, sizes, vocabularies, styles, recomputation."""
    variants: dict[str, dict[str, Any]] = {
        "ours": {},
        "plain-dropout-0": {"kernels": "plain"},
        "ours-recompute": {"recompute_layers": 12},
        "modern": {"model": {"style": "modern"}},
        "modern-plain": {"kernels": "plain", "model": {"style": "modern"}},
    }
    compared = 0
    for line in (ROOT / "benchmarks/results/train_throughput.jsonl").read_text().splitlines():
        measured = json.loads(line)
        case, variant = measured["case"], measured["variant"]
        if variant not in variants or measured["ranks"] > 1 or case not in train_throughput.CASES:
            continue
        size, length, vocabulary, _, tokens, *_ = train_throughput.CASES[case]
        phase = {"max_seq_length": length, "steps": 1, "global_batch": 4096, "micro_batch_tokens": tokens}
        fields: dict[str, Any] = {
            "run": {"name": "x", "storage": "/runs"}, "data": {"manifest": "/corpus/manifest.json"},
            "precision": "bf16", "phases": [{**phase, "learning_rate": 1e-4}], **variants[variant],
        }  # fmt: skip
        fields["model"] = {"size": size, "max_positions": 1024, **variants[variant].get("model", {})}
        config = validate(TrainConfig, fields, "train.yaml")
        found = training_gib(config, vocabulary, tokens, RATES.training.memory)
        assert found == pytest.approx(measured["peak_memory_gib"], rel=0.08), (case, variant)
        compared += 1
    assert compared >= 15


def test_what_does_not_fit_into_a_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "configs/bert-large-multilingual.yaml")
    assert main(["plan", config, "--gpus", "64", "--gpu-memory-gb", "40"]) == 2
    error = capsys.readouterr().err
    assert re.search(
        r"phases\.0\.micro_batch_tokens: 65,536 tokens of BERT-large with 119,547 subwords need 59\.\d GiB,"
        r" the GPU has 40; set it to 32768$",
        error.strip(),
    )
    assert main(["plan", config, "--gpus", "64", "--gpu-memory-gb", "80"]) == 0
    assert main(["plan", config, "--gpu-memory-gb", "6"]) == 2
    error = capsys.readouterr().err
    assert "even one sequence does not fit; set data_parallel: fsdp, recompute_layers: 24, or use" in error


@pytest.mark.parametrize(
    ("overlay", "gpus"), [("pretrain-8gpu", 8), ("pretrain-64gpu", 64), ("pretrain-spot", 64)]
)
def test_the_manifests_fit_into_the_gpus_they_ask_for(overlay: str, gpus: int) -> None:
    """p4d.24xlarge and a2-highgpu-8g have A100 with 40 GB."""
    config = load_config(TrainConfig, str(OVERLAYS / overlay / "pretrain.yaml"))
    check_memory(config, 119_547, gpus, 40, RATES.training.memory)


def test_every_network_has_a_rate() -> None:
    assert set(NETWORKS) == set(RATES.training.network_allreduce_gb_s)
