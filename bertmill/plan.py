"""``bertmill plan``: what a build or a training run will take, before it is started."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertmill.argument_types import amount, positive
from bertmill.forecast import (
    CorpusSize,
    PhaseForecast,
    StageForecast,
    build_cost,
    driver_gb,
    forecast_build,
    forecast_training,
    load_rates,
    parameters,
    training_cost,
)
from cluster import storage
from cluster.config_file import load_config, parse_yaml
from pipeline.config import BuildConfig
from pipeline.plan import source_files
from schemas.errors import BertmillError, ConfigError
from trainer.config import TrainConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``plan`` to the console command."""
    parser = commands.add_parser(
        "plan",
        help="predict time, memory, storage and cost",
        description="Predicts a build on N cores or a training run on M GPUs from measured rates "
        "(bertmill/rates.json says where each comes from). Reads names and sizes of the sources only.",
    )
    parser.add_argument("config", metavar="CONFIG", help="config of a build or of a training run")
    parser.add_argument("--cores", type=int, default=64, help="cores of the build (default 64)")
    parser.add_argument("--cores-per-node", type=int, default=16, help="cores of a node (default 16)")
    parser.add_argument("--input-gb", type=amount, help="compressed size of the sources, instead of looking")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of the training run (default 8)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node (default 8)")
    parser.add_argument(
        "--vocab-size", type=positive, default=119_547, help="pieces (training; default 119547)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the forecast."""
    fields = parse_yaml(storage.read_bytes(_existing(arguments.config)), arguments.config)
    if "phases" in fields:
        text = training_text(
            load_config(TrainConfig, arguments.config),
            arguments.vocab_size, arguments.gpus, arguments.gpus_per_node,
        )  # fmt: skip
    elif "sources" in fields:
        config = load_config(BuildConfig, arguments.config)
        size = arguments.input_gb * 1e9 if arguments.input_gb is not None else sources_bytes(config)
        text = build_text(config, size, arguments.cores, arguments.cores_per_node)
    else:
        raise ConfigError(f"{arguments.config}: neither a build (sources) nor a training run (phases)")
    print(text)
    return 0


def _existing(uri: str) -> str:
    if not storage.exists(uri):
        raise ConfigError(f"{uri}: no such config file")
    return uri


def sources_bytes(config: BuildConfig) -> int:
    """Bytes of all files of all sources. Raises ConfigError, with a word on --input-gb, when not seen."""
    try:
        return sum(storage.size(file.uri) for source in config.sources for file in source_files(source))
    except BertmillError as error:
        raise ConfigError(f"{error}; give the size with --input-gb") from error


def build_text(config: BuildConfig, compressed_bytes: float, cores: int, cores_per_node: int) -> str:
    """The forecast of a build as a table."""
    rates = load_rates()
    size = CorpusSize.of(config, compressed_bytes, rates)
    stages = forecast_build(size, cores, cores_per_node, rates)
    nodes = -(-cores // cores_per_node)
    lines = [
        f"{size.compressed_mb / 1e3:,.1f} GB compressed, {size.documents / 1e6:,.2f} M documents, "
        f"{size.text_mb / 1e3:,.1f} GB of text, {size.made_tokens / 1e9:,.2f} G tokens to write "
        f"({size.units:,} units, {size.buckets:,} buckets)",
        f"{cores:,} cores on {nodes:,} nodes of {cores_per_node}",
        "",
        *table(_STAGE_HEAD, [_stage_row(stage) for stage in stages]),
        "",
        f"in all {clock(sum(stage.seconds for stage in stages))}, "
        f"driver {driver_gb(size, stages, nodes, rates):.2f} GB, "
        f"{sum(stage.gets for stage in stages):,} GETs, {sum(stage.puts for stage in stages):,} PUTs, "
        f"{sum(stage.written_gb for stage in stages):,.1f} GB written",
        "cost in USD: "
        + ", ".join(f"{name} {value:,.2f}" for name, value in build_cost(stages, cores, rates).items()),
        f"rates: {rates['build']['measured']}; {rates['corpus']['measured']}",
    ]
    return "\n".join(lines)


_STAGE_HEAD = ("stage", "tasks", "time", "core-hours", "node memory", "moved", "spilled by a node", "written")


def _stage_row(stage: StageForecast) -> tuple[str, ...]:
    return (
        stage.name,
        f"{stage.tasks:,}",
        clock(stage.seconds),
        f"{stage.core_hours:,.1f}",
        f"{stage.node_gb:,.0f} GB",
        f"{stage.moved_gb:,.1f} GB",
        f"{stage.spilled_gb:,.1f} GB",
        f"{stage.written_gb:,.1f} GB",
    )


def training_text(config: TrainConfig, vocab_size: int, gpus: int, gpus_per_node: int) -> str:
    """The forecast of a training run as a table."""
    rates = load_rates()
    phases = forecast_training(config, vocab_size, gpus, gpus_per_node, rates)
    weights = parameters(config.model.with_vocabulary(vocab_size))
    checkpoint = weights * 12 / 1e9  # fp32 weights and the optimizer's two moments
    lines = [
        f"BERT-{config.model.size}, {weights / 1e6:,.0f} M weights, {vocab_size:,} pieces, "
        f"on {gpus:,} x {rates['training']['device']}",
        "",
        *table(_PHASE_HEAD, [_phase_row(phase) for phase in phases]),
        "",
        f"in all {clock(sum(phase.seconds for phase in phases))}, "
        f"{sum(phase.seconds for phase in phases) / 3600 * gpus:,.0f} GPU-hours, "
        f"USD {training_cost(phases, gpus, rates):,.0f}; a checkpoint is {checkpoint:.1f} GB and takes "
        f"{checkpoint / rates['training']['checkpoint_gb_s']:.0f} s in the background",
        *(f"{phase.max_seq_length}: {origin_text(phase.source)}" for phase in phases),
        f"assumed: {rates['training']['assumed'].removeprefix('not measured: ')}",
    ]
    return "\n".join(lines)


_PHASE_HEAD = ("length", "rows", "rows/s", "step", "efficiency", "time", "from")


def _phase_row(phase: PhaseForecast) -> tuple[str, ...]:
    return (
        str(phase.max_seq_length),
        f"{phase.rows / 1e6:,.1f} M",
        f"{phase.rows_per_second:,.0f}",
        f"{phase.step_seconds:.3f} s",
        f"{phase.efficiency:.0%}",
        clock(phase.seconds),
        phase.source["origin"],
    )


def origin_text(rate: Mapping[str, Any]) -> str:
    """Where the rate of one GPU is from, in words."""
    words = {"ours": "measured with this trainer", "reference": "measured with another program"}
    where = words.get(rate["origin"], rate["origin"])
    if "rows_per_second" not in rate:
        return f"{where}: {rate['what']}"
    figure = f"{rate['rows_per_second']:,.0f} rows/s with {rate['vocab_size']:,} pieces"
    dated = f", {rate['device']}, {rate['date']}" if rate["origin"] == "ours" else ""
    return f"{where}: {figure}{dated} ({rate['what']})"


def clock(seconds: float) -> str:
    """``h:mm:ss``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown, columns as wide as their widest cell."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]
