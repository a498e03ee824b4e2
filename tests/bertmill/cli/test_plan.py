"""The forecast of a build: its arithmetic, its table, and the cost of planning a hundred thousand units."""

import bz2
import gc
import re
import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bertmill.cli import main
from bertmill.planning.forecast import (
    CorpusSize,
    build_cost,
    driver_gb,
    forecast_build,
)
from bertmill.planning.rates import load_rates
from cluster.jobs.config_file import load_config, validate
from pipeline.config import BuildConfig, Publish
from pipeline.sources.plan import plan_units

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "cluster/kuberay/overlays"
RATES = load_rates()
BUILD = load_config(BuildConfig, str(OVERLAYS / "build-large/build.yaml"))


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
