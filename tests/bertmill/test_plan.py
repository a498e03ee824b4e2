"""The forecast: its arithmetic, its table, and what it costs to plan a hundred thousand units."""

import bz2
import gc
import json
import re
import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import training_rates
from bertmill.cli import main
from bertmill.forecast import (
    CorpusSize,
    build_cost,
    driver_gb,
    forecast_build,
    forecast_training,
    load_rates,
    one_gpu,
    parameters,
    reduce_seconds,
    row_flops,
)
from bertmill.plan import origin_text
from cluster.config_file import load_config, validate
from pipeline.config import BuildConfig
from pipeline.plan import plan_units
from pipeline.ray_stage import MAX_PARTITIONS
from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model_config import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
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
        driver_gb(size, forecast_build(size, 64, 16, RATES), 4, RATES) for size in (small, large)
    )
    # The lists are megabytes; what Ray keeps of a shuffle grows with what moves. The head has 16 GiB.
    assert small_driver < 0.2 < large_driver < 10
    assert RATES["driver"]["most_partitions"] == MAX_PARTITIONS
    assert large.made_tokens == 2 * large.shuffled_tokens
    cost = build_cost(forecast_build(large, 64, 16, RATES), 64, RATES)
    assert set(cost) == {"cores", "requests", "storage a month"}
    assert all(value > 0 for value in cost.values())


def test_weights_and_arithmetic_of_bert_base() -> None:
    model = ModelConfig(size="base", vocab_size=30_522)
    # 110 M in the paper (Devlin et al. 2019), rounded.
    assert parameters(model) == pytest.approx(110e6, rel=0.015)
    # ALBERT-base has 12 M, its twelve layers being one (Lan et al. 2020, table 1).
    albert = ModelConfig(style="albert", size="base", embedding_size=128, vocab_size=30_000)
    assert parameters(albert) == pytest.approx(12e6, rel=0.03)
    encoder_alone = 6 * 128 * 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert 1.05 < row_flops(model, 128) / encoder_alone < 1.2
    assert parameters(ModelConfig(size="large", vocab_size=30_522)) == pytest.approx(336e6, rel=0.015)


def test_more_gpus_are_faster_but_never_more_than_their_number() -> None:
    before = 0.0
    for gpus in (1, 8, 64, 256):
        (phase,) = forecast_training(_train(), 119_547, gpus, 8, RATES)
        assert before < phase.rows_per_second
        assert phase.efficiency <= 1.0001
        assert phase.source["origin"] in ("ours", "reference")
        before = phase.rows_per_second
    assert reduce_seconds(1e8, 1, 8, RATES["training"]) == 0
    assert reduce_seconds(1e8, 16, 8, RATES["training"]) > reduce_seconds(1e8, 8, 8, RATES["training"])
    (unknown,) = forecast_training(_train("small"), 119_547, 8, 8, RATES)
    assert unknown.source["origin"] == "assumed"
    assert "small at 128" in unknown.source["what"]


@pytest.mark.parametrize(
    ("config", "gpus", "message"),
    [
        (_train(), 0, "at least 1"),
        (_train(batch=8), 16, "cannot feed 16 GPUs"),
        (_train(steps=None), 8, "needs steps"),
    ],
)
def test_impossible_runs_are_refused(config: TrainConfig, gpus: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forecast_training(config, 119_547, gpus, 8, RATES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["configs/demo.yaml", "--cores", "-1"], "--cores and --cores-per-node: at least 1"),
        (["configs/demo.yaml", "--cores-per-node", "0"], "--cores and --cores-per-node: at least 1"),
        (["configs/demo-train.yaml", "--gpus-per-node", "0"], "--gpus and --gpus-per-node: at least 1"),
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
        "stage", "extract", "dedup", "vocabulary", "instances", "publish",
    ]  # fmt: skip


def test_the_round_of_bot_stubs_is_a_row_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "build.yaml"
    config.write_text(yaml.safe_dump({
        "output": "/corpus", "sources": [{"name": "w", "kind": "wikimedia", "paths": ["/dumps"]}],
        "dedup": {"max_templated": 1000},
    }))  # fmt: skip
    assert main(["plan", str(config), "--input-gb", "100", "--cores", "2000"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows] == [
        "stage", "extract", "dedup", "stubs", "vocabulary", "instances", "publish",
    ]  # fmt: skip
    assert rows[3][3] == rows[2][3]  # tasks: it reads every unit once more


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
    """104 dumps of a gigabyte each as sparse files: real heads, and nothing on the disk behind them."""
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
        "extraction": {"unit_bytes": 1_000_000},
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
    assert len(units) >= 100_000
    assert len({unit.unit_id for unit in units[::101]}) == len(units[::101])
    # What the forecast counts for a unit on the driver, and far from any machine's memory.
    assert kept / len(units) < RATES["driver"]["kb_per_unit"] * 1e3
    assert peak < 500e6


def test_every_training_rate_says_where_it_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    for rate in RATES["training"]["rates"]:
        assert rate["origin"] in ("ours", "reference", "scaled")
        assert rate["what"]
        assert rate["origin"] != "ours" or {"device", "date"} <= rate.keys()
    assert main(["plan", str(OVERLAYS / "pretrain-8gpu/pretrain.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for length in ("128", "512"):
        (line,) = [line for line in lines if line.startswith(f"{length}: ")]
        assert "rows/s with" in line or "assumed" in line
    assert any(line.startswith("assumed: ") for line in lines)


def test_measured_rates_replace_those_of_other_programs(tmp_path: Path) -> None:
    training = json.loads(json.dumps(RATES["training"]))
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
    rate, source = one_gpu(ModelConfig(size="base", vocab_size=30_528), 128, training)
    assert (rate, source["date"]) == (6500, "2026-11-28")
    assert "2026-11-28" in origin_text(source)
    # A larger vocabulary makes a row more work; the nearest one counts.
    assert 6000 < one_gpu(ModelConfig(size="base", vocab_size=40_000), 128, training)[0] < 6500
    assert 5500 < one_gpu(ModelConfig(size="base", vocab_size=119_547), 128, training)[0] < 5501
    path.write_text(json.dumps({**line, "card": 3}) + "\n")
    with pytest.raises(SystemExit, match=r"train\.jsonl:1: card"):
        training_rates.read(path, training["device"])
