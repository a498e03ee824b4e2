"""Rates of the forecast: measured ones, their origins, and the wall times of a large build."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rates import measure_rates, training_rates
from bertmill.cli import main
from bertmill.cli.plan import origin_text
from bertmill.planning.forecast import (
    CorpusSize,
    forecast_build,
    million_words,
    one_gpu,
    round_seconds,
    serial_seconds,
    training_seconds,
)
from bertmill.planning.rates import RATES_PATH, Rates, TrainingRates, load_rates
from cluster.jobs.config_file import validate
from pipeline.config import BuildConfig
from trainer.model.config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "cluster/kuberay/overlays"
RATES = load_rates()


BUILD_CPU_SECONDS = {
    "templates": 2168, "extract": 5551, "dedup": 46, "near": 739, "vocabulary": 499, "instances": 5381,
}  # fmt: skip
"""CPU seconds of the 20 GB build, all cores together (benchmarks/results/large_build.md)."""
BUILD_WALL_SECONDS = {
    "templates": 66, "extract": 113, "dedup": 11, "near": 35, "vocabulary": 43, "instances": 128,
}  # fmt: skip


def _rates_of(cpu_seconds: Mapping[str, float], size: CorpusSize) -> Rates:
    """The rates with which the forecast has these CPU seconds. A stage's parts keep their proportions."""
    fields = RATES.model_dump()
    for forecast in forecast_build(size, 54, 54, RATES):
        if forecast.name not in cpu_seconds:
            continue
        stage = fields["build"]["stages"][forecast.name]
        serial = serial_seconds(forecast.name, size, RATES)
        slowness = cpu_seconds[forecast.name] / (forecast.core_hours * 3600 + serial)
        stage["per_core_second"] /= slowness
        stage["serial_seconds"] *= slowness
    # The last part of the stage is the training.
    for name in ("base_seconds", "seconds_per_million_words"):
        fields["build"]["vocabulary_training"][name] *= (
            RATES.build.stages["vocabulary"].per_core_second
            / fields["build"]["stages"]["vocabulary"]["per_core_second"]
        )
    return Rates.model_validate(fields)


def test_the_wall_times_of_a_build_on_54_cores_follow_from_its_cpu_times() -> None:
    fields = {
        "output": "/corpus",
        "sources": [{"name": "large", "kind": "wikimedia", "paths": ["/dumps"]}],
        "extraction": {"unit_bytes": 8 << 20},
        "dedup": {"near": True},
        "instances": {"passes": 4},
    }
    size = CorpusSize.of(validate(BuildConfig, fields, "config"), 4886e6, RATES)
    rates = _rates_of(BUILD_CPU_SECONDS, size)
    stages = {stage.name: stage.seconds for stage in forecast_build(size, 54, 54, rates)}
    for name, seconds in BUILD_WALL_SECONDS.items():
        assert stages[name] == pytest.approx(seconds, rel=0.3), name
    total = sum(stages[name] for name in BUILD_WALL_SECONDS)
    assert total == pytest.approx(sum(BUILD_WALL_SECONDS.values()), rel=0.15)


@given(st.floats(0, 1e7), st.floats(1, 10))
def test_the_training_of_a_vocabulary_takes_longer_with_more_text_up_to_a_bound(
    text_mb: float, factor: float
) -> None:
    training = RATES.build.vocabulary_training
    words, more = million_words(text_mb, RATES), million_words(text_mb * factor, RATES)
    assert 0 <= words <= more <= training.most_million_words
    assert training.base_seconds <= training_seconds(words, RATES) <= training_seconds(more, RATES)


def test_the_training_of_a_vocabulary_takes_as_long_as_measured() -> None:
    """CPU seconds of smoothing and training (benchmarks/results/vocabulary.md)."""
    assert training_seconds(0.164, RATES) == pytest.approx(4.1, rel=0.05)
    assert training_seconds(2.91, RATES) == pytest.approx(14 + 1.42 * 2.91, rel=0.05)
    assert million_words(374, RATES) == 2.91


def test_rounds_take_longer_on_nodes_with_more_cores() -> None:
    assert round_seconds(1, RATES) < round_seconds(16, RATES) < round_seconds(64, RATES) < 5


def test_measured_rates_of_a_machine_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that measure_rates.py writes. A machine of half the speed takes twice the core-hours."""
    config = tmp_path / "build.yaml"
    config.write_text(
        yaml.safe_dump({
            "output": "/corpus", "sources": [{"name": "w", "kind": "wikimedia", "paths": ["/dumps"]}]
        })
    )  # fmt: skip
    amounts = {"compressed_mb": 10.0, "text_mb": 16.0, "documents": 6000, "written_tokens": 1e7}
    shipped = {name: amounts[stage.amount] / stage.per_core_second
               for name, stage in RATES.build.stages.items() if stage.amount in amounts}  # fmt: skip
    found = {
        **amounts,
        "seconds": {name: 2 * seconds for name, seconds in shipped.items()},
        "vocabulary_words": 300_000,
        "vocabulary_training_seconds": 2 * training_seconds(0.3, RATES),
    }
    path = tmp_path / "rates.json"
    measure_rates.write(RATES_PATH, path, found, corpus=False, processes=54)
    slow = load_rates(path)
    assert training_seconds(2.9, slow) == pytest.approx(2 * training_seconds(2.9, RATES), rel=0.02)
    assert "54 processes at the same time" in slow.build.measured

    def core_hours(*words: str) -> list[float]:
        assert main(["plan", str(config), "--input-gb", "100", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [float(line.split("|")[4]) for line in lines if line.startswith(("| extract", "| instances"))]

    assert core_hours("--rates", str(path)) == pytest.approx([2 * hours for hours in core_hours()], rel=0.02)
    path.write_text('{"about": 3}')
    assert main(["plan", str(config), "--input-gb", "1", "--rates", str(path)]) == 2
    assert f"{path}: about: Input should be a valid string" in capsys.readouterr().err
    assert main(["plan", str(config), "--input-gb", "1", "--rates", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err


def test_the_rates_of_several_processes_are_medians() -> None:
    """The one that trained the vocabulary alone gives the time of the training."""
    every = [
        {"seconds": {"near": seconds}, "vocabulary_training_seconds": 9.0, "documents": 2}
        for seconds in (7.0, 1.0, 2.0)
    ]
    every[1]["trained_alone"] = 5.0
    assert measure_rates.medians(every) == {
        "seconds": {"near": 2.0}, "vocabulary_training_seconds": 5.0, "documents": 2,
    }  # fmt: skip


def test_processes_measure_at_the_same_time_without_ray() -> None:
    dump = str(ROOT / "sample/dumps/afwiki-minidump-pages-articles.xml.bz2")
    fields = {"sources": [{"name": "w", "kind": "wikimedia", "paths": [dump]}], "vocabulary": {"size": 1000}}
    found = measure_rates.measure_together(fields, 2)
    assert found["documents"] > 0
    assert found["vocabulary_words"] > 0
    assert found["vocabulary_training_seconds"] > 0
    assert all(seconds > 0 for seconds in found["seconds"].values())


def test_every_training_rate_says_where_it_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    for rate in RATES.training.rates:
        assert rate.what
        assert rate.origin != "ours" or (rate.device and rate.date)
    assert main(["plan", str(OVERLAYS / "pretrain-8gpu/pretrain.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for length in ("128", "512"):
        (line,) = [line for line in lines if line.startswith(f"{length}: ")]
        assert "sequences/s with" in line or "assumed" in line
    assert any(line.startswith("assumed: ") for line in lines)


def test_measured_rates_replace_those_of_other_programs(tmp_path: Path) -> None:
    training = json.loads(RATES_PATH.read_text())["training"]
    # As if this vocabulary had not been measured yet.
    known = [rate for rate in training["rates"] if rate["vocab_size"] != 30528]
    training["rates"] = list(known)
    line = {"case": "base-128", "variant": "ours", "card": training["device"], "date": "2026-11-28",
            "rows_per_second": 6500.4, "ranks": 1, "mfu": 0.46}  # fmt: skip
    lines = [
        {**line, "rows_per_second": 6000},
        line,
        {**line, "case": "base-128-119k", "rows_per_second": 5500},
        {**line, "case": "base-128-drawn", "rows_per_second": 1},
        {**line, "variant": "transformers", "rows_per_second": 2},
        {**line, "card": "NVIDIA A100", "rows_per_second": 3},
        {**line, "ranks": 4, "rows_per_second": 4},
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    ours = training_rates.read(path, training["device"])
    assert [(rate["vocab_size"], rate["rows_per_second"]) for rate in ours] == [(30528, 6500), (119552, 5500)]
    training_rates.update(training, ours)
    assert len(training["rates"]) == len(known) + 1
    updated = TrainingRates.model_validate(training)
    rate, source = one_gpu(ModelConfig(size="base", vocab_size=30_528), 128, updated)
    assert rate == 6500
    assert "NVIDIA H100 80GB HBM3, 2026-11-28" in origin_text(source)
    # A larger vocabulary makes a row more work. The rate of the nearest size counts.
    assert 6000 < one_gpu(ModelConfig(size="base", vocab_size=40_000), 128, updated)[0] < 6500
    assert 5500 < one_gpu(ModelConfig(size="base", vocab_size=119_547), 128, updated)[0] < 5501
    path.write_text(json.dumps({**line, "card": 3}) + "\n")
    with pytest.raises(SystemExit, match=r"train\.jsonl:1: card"):
        training_rates.read(path, training["device"])
