"""Fills the tables of docs/project/scaling.md from bertmill/planning/rates.json.

python -m benchmarks.rates.write_scaling [--check]
"""

import re
import sys
from functools import partial
from pathlib import Path

from bertmill.cli.plan import build_text, clock, origin_text, table, training_text
from bertmill.planning.forecast import (
    CorpusSize,
    GpuCluster,
    build_cost,
    driver_gb,
    forecast_build,
    forecast_training,
    training_cost,
)
from bertmill.planning.rates import Rates, load_rates
from cluster.jobs.config_file import load_config
from pipeline.config import BuildConfig
from trainer.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "project" / "scaling.md"
COMPRESSED_BYTES = 100e9
VOCABULARY = 119_547
CORES = ((1, 1), (64, 16), (2000, 16))
GPUS = (1, 8, 64, 256)
# The same number of rows in sixteen times larger batches.
LARGE_BATCH = ["--phases.0.steps=56250", "--phases.0.global_batch=4096",
               "--phases.1.steps=6250", "--phases.1.global_batch=4096"]  # fmt: skip
RUNS: tuple[tuple[str, str, list[str]], ...] = (
    ("base, batch 256", "configs/bert-base-multilingual.yaml", []),
    ("base, batch 4,096", "configs/bert-base-multilingual.yaml", LARGE_BATCH),
    ("large, batch 65,536", "configs/bert-large-multilingual.yaml", []),
)


def build_table() -> str:
    """Time of each stage of the 104-language build by number of cores."""
    config, rates = load_config(BuildConfig, str(ROOT / "configs/wikipedia-104.yaml")), load_rates()
    size = CorpusSize.of(config, COMPRESSED_BYTES, rates)
    columns = [forecast_build(size, cores, per_node, rates) for cores, per_node in CORES]
    rows = [
        [stages[0].name, *(clock(stage.seconds) for stage in stages)] for stages in zip(*columns, strict=True)
    ]
    rows.append(["total", *(clock(sum(stage.seconds for stage in stages)) for stages in columns)])
    costs = [build_cost(stages, cores, rates) for stages, (cores, _) in zip(columns, CORES, strict=True)]
    rows.append(["USD for cores", *(f"{cost['cores']:,.0f}" for cost in costs)])
    head = ["stage", *(f"{cores:,} core{'s' if cores > 1 else ''}" for cores, _ in CORES)]
    gets, puts, written = (
        sum(getattr(stage, name) for stage in columns[0]) for name in ("gets", "puts", "written_gb")
    )
    notes = (
        f"Driver: {driver_gb(size, columns[0], rates):.1f} GB. Requests: {gets:,} GETs and {puts:,} PUTs. "
        f"Written: {written:,.0f} GB."
    )
    return "\n".join([*table(head, rows), "", notes])


def cores_table() -> str:
    """Seconds of each stage on one core and on two, as measured."""
    speedup = load_rates().build.two_core_speedup
    rows = [
        [name, f"{one:.1f} s", f"{two:.1f} s", f"{speedup.ratios[name]:.2f}"]
        for name, (one, two) in speedup.seconds.items()
    ]
    return "\n".join([*table(["stage", "1 core", "2 cores", "ratio"], rows), "", f"By {speedup.measured}."])


def training_table() -> str:
    """Time and cost of BERT-base and BERT-large by number of GPUs."""
    rates = load_rates()
    rows = []
    for name, path, overrides in RUNS:
        config = load_config(TrainConfig, str(ROOT / path), overrides)
        for gpus in GPUS:
            phases = forecast_training(config, VOCABULARY, GpuCluster(gpus), rates)
            rows.append([
                name, str(gpus), *(f"{phase.rows_per_second:,.0f}" for phase in phases),
                f"{min(phase.efficiency for phase in phases):.0%}",
                clock(sum(phase.seconds for phase in phases)), f"{training_cost(phases, gpus, rates):,.0f}",
            ])  # fmt: skip
    return "\n".join(
        table(
            ["model", "GPUs", "sequences/s at 128", "sequences/s at 512", "efficiency", "time", "USD"], rows
        )
    )


def sources(rates: Rates) -> str:
    """The source of every rate."""
    training = [
        f"- training, {rate.model} at {rate.max_seq_length}: {origin_text(rate)}"
        for rate in rates.training.rates
    ]
    lines = [f"- build: {rates.build.measured}", f"- corpus: {rates.corpus.measured}"]
    assumed = f"- training, {rates.training.assumed}"
    return "\n".join([*lines, *training, assumed])


def _filled(part: str, match: re.Match[str]) -> str:
    return f"{match[1]}{part}\n{match[2]}"


def filled(text: str) -> str:
    """``text`` with new tables between their marks."""
    rates = load_rates()
    build, large = (load_config(BuildConfig, str(ROOT / "configs/wikipedia-104.yaml")),
                    load_config(TrainConfig, str(ROOT / "configs/bert-large-multilingual.yaml")))  # fmt: skip
    parts = {
        "build": build_table(),
        "training": training_table(),
        "cores": cores_table(),
        "sources": sources(rates),
        "plan-build": f"```\n{build_text(build, COMPRESSED_BYTES, 2000, 16, rates)}\n```",
        "plan-train": f"```\n{training_text(large, VOCABULARY, GpuCluster(64), rates)}\n```",
    }
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n)(?:.*?\n)??(<!-- end -->)"
        text, found = re.subn(pattern, partial(_filled, part), text, flags=re.S)
        if found != 1:
            raise SystemExit(f"{DOCUMENT}: mark {name} is there {found} times")
    return text


def main(argv: list[str]) -> int:
    """Rewrites the document. With --check, only returns 1 when it is out of date."""
    before = DOCUMENT.read_text(encoding="utf-8")
    after = filled(before)
    if argv == ["--check"]:
        return int(before != after)
    DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
