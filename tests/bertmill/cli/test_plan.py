"""The forecast: its arithmetic, its table, and the cost of planning a hundred thousand units."""

import bz2
import gc
import json
import re
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rates import measure_rates, training_rates
from benchmarks.training import train_throughput
from bertmill.cli import main
from bertmill.cli.plan import origin_text
from bertmill.planning.forecast import (
    NETWORKS,
    CorpusSize,
    GpuCluster,
    build_cost,
    driver_gb,
    forecast_build,
    forecast_training,
    million_words,
    one_gpu,
    parameters,
    reduce_seconds,
    round_seconds,
    row_flops,
    serial_seconds,
    training_seconds,
)
from bertmill.planning.gpu_memory import check_memory, training_gib
from bertmill.planning.rates import RATES_PATH, Rates, TrainingRate, TrainingRates, load_rates
from cluster.jobs.config_file import load_config, validate
from pipeline.config import BuildConfig, Publish
from pipeline.sources.plan import plan_units
from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model.config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "cluster/kuberay/overlays"
RATES = load_rates()
BUILD = load_config(BuildConfig, str(OVERLAYS / "build-large/build.yaml"))


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


@given(size=st.floats(1e6, 1e12), cores=st.integers(1, 4096))
def test_more_cores_never_take_longer_and_never_less_work(size: float, cores: int) -> None:
    corpus = CorpusSize.of(BUILD, size, RATES)
    few = forecast_build(corpus, cores, 16, RATES)
    many = forecast_build(corpus, 2 * cores, 16, RATES)
    for one, two in zip(few, many, strict=True):
        assert two.seconds <= one.seconds * 1.0001 + 1e-6 or one.tasks <= 2 * cores
        assert two.core_hours == one.core_hours
        assert (two.gets, two.puts, two.written_gb) == (one.gets, one.puts, one.written_gb)
        # No stage is faster than its work on all cores.
        assert one.seconds * cores >= one.core_hours * 3600 * 0.9999 or one.name == "publish"


def test_work_grows_with_the_corpus_and_memory_does_not() -> None:
    small, large = (CorpusSize.of(BUILD, size, RATES) for size in (1e9, 1e11))
    for one, hundred in zip(
        forecast_build(small, 64, 16, RATES), forecast_build(large, 64, 16, RATES), strict=True
    ):
        assert hundred.node_gb == one.node_gb
        assert hundred.core_hours == pytest.approx(100 * one.core_hours, rel=0.2)
    small_driver, large_driver = (
        driver_gb(size, forecast_build(size, 64, 16, RATES), RATES) for size in (small, large)
    )
    assert small_driver < large_driver < 2
    ten_passes = BUILD.model_copy(update={"instances": BUILD.instances.model_copy(update={"passes": 10})})
    mission = CorpusSize.of(ten_passes, 4e11, RATES)
    assert driver_gb(mission, forecast_build(mission, 1000, 16, RATES), RATES) < 2
    assert large.written_tokens == 2 * large.shuffled_tokens
    cost = build_cost(forecast_build(large, 64, 16, RATES), 64, RATES)
    assert set(cost) == {"cores", "requests", "storage a month"}
    assert all(value > 0 for value in cost.values())


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


def test_a_partition_above_a_quarter_of_the_object_memory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terabyte of text in buckets of 64 GiB. The advice in the error is accepted."""
    config = tmp_path / "build.yaml"
    config.write_text(
        "output: out\nsources: [{name: w, kind: text, paths: [x.txt], lang: en}]\n"
        "instances: {bucket_bytes: 68719476736}\n"
    )
    command = ["plan", str(config), "--input-gb", "600", "--cores", "64", "--cores-per-node", "8"]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    advice = re.search(
        r"instances: a partition of [\d.]+ GB exceeds 2\.40 GB, a quarter of the object memory of a node"
        r" with 32 GB; set instances\.bucket_bytes to (\d+) or use nodes of at least (\d+) GB"
        r" \(--node-memory-gb\)",
        line,
    )
    assert advice is not None
    assert main([*command, "--node-memory-gb", advice[2]]) == 0
    config.write_text(config.read_text().replace("68719476736", advice[1]))
    assert main(command) == 0


def test_published_documents_are_part_of_what_is_written() -> None:
    publishing = BUILD.model_copy(update={"publish": Publish(documents=True)})
    without, with_them = (
        {stage.name: stage.written_gb for stage in forecast_build(size, 64, 16, RATES)}
        for size in (CorpusSize.of(config, 1e9, RATES) for config in (BUILD, publishing))
    )
    assert without["publish"] == 0
    assert with_them == without | {"publish": without["extract"]}
    assert without["extract"] > 0


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


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        (_train(), 0, "at least 1"),
        (_train(batch=8), 16, "has no sequence for some of 16 GPUs"),
        (_train(steps=None), 8, "needs steps"),
    ],
)
def test_impossible_runs_are_refused(config: TrainConfig, gpus: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forecast_training(config, 119_547, GpuCluster(gpus), RATES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["configs/demo.yaml", "--cores", "-1"], "--cores and --cores-per-node must be at least 1"),
        (["configs/demo.yaml", "--cores-per-node", "0"], "--cores and --cores-per-node must be at least 1"),
        (
            ["configs/demo-train.yaml", "--gpus-per-node", "0"],
            "--gpus and --gpus-per-node must be at least 1",
        ),
        (["configs/finetune/mrpc.yaml"], "mrpc.yaml: neither a build (sources) nor a training run (phases)"),
    ],
)
def test_impossible_numbers_and_other_configs_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(ROOT / words[0]), *words[1:]]) == 2
    assert capsys.readouterr().err.strip().endswith(message)


def test_command_on_real_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "build.yaml"
    dumps = str(ROOT / "sample/dumps/*.xml.bz2")
    config.write_text(yaml.safe_dump({
        "output": "/corpus", "sources": [{"name": "w", "kind": "wikimedia", "paths": [dumps]}],
    }))  # fmt: skip
    assert main(["plan", str(config), "--cores", "2"]) == 0
    text = capsys.readouterr().out
    size = sum(
        path.stat().st_size for path in ROOT.glob("sample/dumps/*.xml.bz2") if "index" not in path.name
    )
    assert text.startswith(f"{size / 1e9:,.1f} GB compressed")
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| ")] == [
        "stage", "templates", "extract", "dedup", "vocabulary", "instances", "publish",
    ]  # fmt: skip


def test_optional_rounds_have_separate_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "build.yaml"
    config.write_text(yaml.safe_dump({
        "output": "/corpus", "sources": [{"name": "w", "kind": "wikimedia", "paths": ["/dumps"]}],
        "dedup": {"max_templated": 1000, "near": True},
    }))  # fmt: skip
    assert main(["plan", str(config), "--input-gb", "100", "--cores", "2000"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows] == [
        "stage", "templates", "extract", "dedup", "stubs", "near", "vocabulary", "instances", "publish",
    ]  # fmt: skip
    # Tasks: a round reads every unit once more, and near dedup twice.
    first, stubs, near = (int(row[3].replace(",", "")) for row in rows[3:6])
    assert (stubs, near) == (first, 2 * first)


def test_copies_of_pages_take_space_only_beside_an_earlier_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "build.yaml"
    fields: dict[str, object] = {
        "output": "/corpus", "sources": [{"name": "w", "kind": "wikimedia", "paths": ["/dumps"]}]
    }  # fmt: skip

    def moved(**more: object) -> float:
        config.write_text(yaml.safe_dump(fields | more))
        assert main(["plan", str(config), "--input-gb", "100"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (extract,) = (line.split("|") for line in lines if line.startswith("| extract"))
        return float(extract[6].split()[0])

    assert moved() == moved(previous="/old", extraction={"learn_templates": False}) == 0
    assert 100 < moved(previous="/old") < 200
    fields["sources"] = [{"name": "t", "kind": "text", "paths": ["/texts"], "lang": "en"}]
    assert moved(previous="/old") == 0


def test_command_on_files_that_are_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(OVERLAYS / "build-large/build.yaml")]
    assert main([*words, "--input-gb", "100", "--cores", "2000"]) == 0
    assert capsys.readouterr().out.startswith("100.0 GB compressed")
    assert main([*words, "--input-gb", "100", "--cores", "0"]) == 2
    assert main(["plan", "no-such.yaml"]) == 2
    assert main(["plan", str(OVERLAYS / "pretrain-8gpu/pretrain.yaml"), "--gpus", "8"]) == 0
    assert re.search(r"^\| 512 ", capsys.readouterr().out, re.M)


@pytest.mark.slow
def test_planning_sixty_million_pages(tmp_path: Path) -> None:
    """104 dumps of a gigabyte each as sparse files with real heads."""
    head = b'<mediawiki><siteinfo><dbname>%swiki</dbname><base>https://%s.wikipedia.org/wiki/A</base>' \
        b'<namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>\n'  # fmt: skip
    for number in range(104):
        lang = bytes([97 + number // 26, 97 + number % 26])
        path = tmp_path / f"{lang.decode()}wiki-20260801-pages-articles-multistream.xml.bz2"
        with path.open("wb") as file:
            file.write(bz2.compress(head % (lang, lang)))
            file.write(bz2.compress(b"<page></page>\n"))
            file.truncate(962_000_000)
    fields = {
        "output": "/corpus",
        "sources": [{"name": "w", "kind": "wikimedia", "paths": [f"{tmp_path}/*.bz2"]}],
        "extraction": {"unit_bytes": 4_000_000},
    }
    config = validate(BuildConfig, fields, "config")
    began = time.monotonic()
    gc.collect()
    tracemalloc.start()
    units = plan_units(config)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seconds = time.monotonic() - began
    print(f"{len(units):,} units: {seconds:.1f} s, {kept / 1e6:.0f} MB kept, {peak / 1e6:.0f} MB at most")
    assert len(units) >= 25_000
    assert len({unit.unit_id for unit in units[::101]}) == len(units[::101])
    # The forecast's memory for a unit on the driver, and at most 500 MB for 100,000 units.
    assert kept / len(units) < RATES.driver.kb_per_unit * 1e3
    assert peak / len(units) < 5e3


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
