"""``bertmill plan``: the time, memory, storage and cost of a build or a training run."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertmill.cli.argument_types import Commands, amount, positive
from bertmill.planning.forecast import (
    NETWORKS,
    CorpusSize,
    GpuCluster,
    PhaseForecast,
    StageForecast,
    build_cost,
    driver_gb,
    forecast_build,
    forecast_training,
    parameters,
    training_cost,
)
from bertmill.planning.gpu_memory import check_memory, micro_batch_tokens, training_gib
from bertmill.planning.node_memory import check_partitions
from bertmill.planning.rates import RATES_PATH, Rates, TrainingRate, load_rates
from cluster import storage
from cluster.jobs.config_file import load_config, parse_yaml
from pipeline.config import BuildConfig
from pipeline.sources.plan import source_files
from schemas.errors import BertmillError, ConfigError
from trainer.config import TrainConfig
from trainer.recipe_config import Phase

_GB_PER_CORE = 4.0
"""Memory per core of common cloud machines (m7i, n2-standard)."""


def add_parser(commands: Commands) -> None:
    """Adds ``plan`` to the console command."""
    parser = commands.add_parser(
        "plan",
        help="predict time, memory, storage and cost",
        description="Predicts a build on N cores or a training run on M GPUs from measured rates "
        "(bertmill/planning/rates.json gives their sources). Reads only the names and sizes of the sources.",
    )
    parser.add_argument("config", metavar="CONFIG", help="config of a build or of a training run")
    parser.add_argument("--cores", type=int, default=64, metavar="N", help="cores of the build (default: 64)")
    parser.add_argument(
        "--cores-per-node", type=int, default=16, metavar="N", help="cores of a node (default: 16)"
    )
    parser.add_argument(
        "--node-memory-gb",
        type=amount,
        metavar="GB",
        help="memory of a build node; a build that does not fit exits with status 2 (default: 4 GB per core)",
    )
    parser.add_argument(
        "--input-gb",
        type=amount,
        metavar="GB",
        help="compressed size of the sources (default: that of the files)",
    )
    parser.add_argument(
        "--gpus", type=int, default=8, metavar="N", help="GPUs of the training run (default: 8)"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, default=8, metavar="N", help="GPUs of a node (default: 8)"
    )
    parser.add_argument(
        "--gpu-memory-gb",
        type=amount,
        metavar="GB",
        help="memory of a GPU, as its vendor states it; a config that does not fit exits with status 2",
    )
    parser.add_argument(
        "--network",
        choices=NETWORKS,
        default=GpuCluster.network,
        help="network between the GPU nodes (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=positive,
        default=119_547,
        metavar="N",
        help="size of the vocabulary (default: 119547)",
    )
    parser.add_argument(
        "--rates",
        type=Path,
        default=RATES_PATH,
        metavar="FILE",
        help="rates of your machines, from `python -m benchmarks.rates.measure_rates --output` "
        "(default: those of this version)",
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the forecast."""
    fields = parse_yaml(storage.read_bytes(_existing(arguments.config)), arguments.config)
    rates = load_rates(arguments.rates)
    if "phases" in fields:
        training = load_config(TrainConfig, arguments.config)
        cluster = GpuCluster(arguments.gpus, arguments.gpus_per_node, arguments.network)
        text = training_text(training, arguments.vocab_size, cluster, rates)
        if arguments.gpu_memory_gb is not None:
            memory_gb, memory = arguments.gpu_memory_gb, rates.training.memory
            check_memory(training, arguments.vocab_size, cluster.gpus, memory_gb, memory)
    elif "sources" in fields:
        config = load_config(BuildConfig, arguments.config)
        size = arguments.input_gb * 1e9 if arguments.input_gb is not None else sources_bytes(config)
        cores, cores_per_node = arguments.cores, arguments.cores_per_node
        text = build_text(config, size, cores, cores_per_node, rates, arguments.node_memory_gb)
    else:
        raise ConfigError(f"{arguments.config}: neither a build (sources) nor a training run (phases)")
    print(text)
    return 0


def _existing(uri: str) -> str:
    if not storage.exists(uri):
        raise ConfigError(f"{uri}: no such config file")
    return uri


def sources_bytes(config: BuildConfig) -> int:
    """Bytes of all files of all sources. Raises ConfigError when they cannot be listed."""
    try:
        return sum(storage.size(file.uri) for source in config.sources for file in source_files(source))
    except BertmillError as error:
        raise ConfigError(f"{error}; or pass the size as --input-gb") from error


def build_text(
    config: BuildConfig,
    compressed_bytes: float,
    cores: int,
    cores_per_node: int,
    rates: Rates,
    node_memory_gb: float | None = None,
) -> str:
    """The forecast of a build as a table. Raises ConfigError when a shuffle does not fit into a node."""
    size = CorpusSize.of(config, compressed_bytes, rates)
    stages = forecast_build(size, cores, cores_per_node, rates)
    if node_memory_gb is None:
        node_memory_gb = _GB_PER_CORE * cores_per_node
    check_partitions(config, size, stages, node_memory_gb)
    nodes = -(-cores // cores_per_node)
    lines = [
        f"{size.compressed_mb / 1e3:,.1f} GB compressed, {size.documents / 1e6:,.2f} M documents, "
        f"{size.text_mb / 1e3:,.1f} GB of text, {size.written_tokens / 1e9:,.2f} G tokens to write "
        f"({size.units:,} units, {size.buckets:,} buckets)",
        f"{cores:,} cores on {nodes:,} nodes of {cores_per_node}",
        "",
        *table(_STAGE_HEAD, [_stage_row(stage) for stage in stages]),
        "",
        f"total {clock(sum(stage.seconds for stage in stages))}, "
        f"driver {driver_gb(size, stages, rates):.2f} GB, "
        f"{sum(stage.gets for stage in stages):,} GETs, {sum(stage.puts for stage in stages):,} PUTs, "
        f"{sum(stage.written_gb for stage in stages):,.1f} GB written",
        "cost in USD: "
        + ", ".join(f"{name} {value:,.2f}" for name, value in build_cost(stages, cores, rates).items()),
        f"rates: {rates.build.measured}; {rates.corpus.measured}",
    ]
    return "\n".join(lines)


_STAGE_HEAD = ("stage", "tasks", "time", "core-hours", "node memory", "moved", "written")


def _stage_row(stage: StageForecast) -> tuple[str, ...]:
    return (
        stage.name,
        f"{stage.tasks:,}",
        clock(stage.seconds),
        f"{stage.core_hours:,.1f}",
        f"{stage.node_gb:,.0f} GB",
        f"{stage.moved_gb + stage.copied_gb:,.1f} GB",
        f"{stage.written_gb:,.1f} GB",
    )


def training_text(config: TrainConfig, vocab_size: int, cluster: GpuCluster, rates: Rates) -> str:
    """The forecast of a training run as a table."""
    gpus = cluster.gpus
    phases = forecast_training(config, vocab_size, cluster, rates)
    weights = parameters(config.model.with_vocabulary(vocab_size))
    checkpoint = weights * 12 / 1e9  # fp32 weights and the optimizer's two moments
    lines = [
        f"BERT-{config.model.size}, {weights / 1e6:,.0f} M parameters, {vocab_size:,} subwords, "
        f"on {gpus:,} x {rates.training.device}",
        "",
        *table(_PHASE_HEAD, [_phase_row(phase) for phase in phases]),
        "",
        *(_memory_line(config, phase, vocab_size, gpus, rates) for phase in config.phases),
        "",
        f"total {clock(sum(phase.seconds for phase in phases))}, "
        f"{sum(phase.seconds for phase in phases) / 3600 * gpus:,.0f} GPU-hours, "
        f"USD {training_cost(phases, gpus, rates):,.0f}; a checkpoint is {checkpoint:.1f} GB and takes "
        f"{checkpoint / rates.training.checkpoint_gb_s:.0f} s in the background",
        *(f"{phase.max_seq_length}: {origin_text(phase.source)}" for phase in phases),
        f"assumed: {rates.training.assumed.removeprefix('not measured: ')}",
    ]
    return "\n".join(lines)


def _memory_line(config: TrainConfig, phase: Phase, vocab_size: int, gpus: int, rates: Rates) -> str:
    memory = rates.training.memory
    tokens = micro_batch_tokens(phase, gpus)
    needed = training_gib(config, vocab_size, tokens, memory, gpus) + memory.reserved_gib
    return f"memory at {phase.max_seq_length}: {needed:.1f} GiB with micro-batches of {tokens:,} tokens"


_PHASE_HEAD = ("length", "sequences", "sequences/s", "step", "efficiency", "time", "from")


def _phase_row(phase: PhaseForecast) -> tuple[str, ...]:
    return (
        str(phase.max_seq_length),
        f"{phase.rows / 1e6:,.1f} M",
        f"{phase.rows_per_second:,.0f}",
        f"{phase.step_seconds:.3f} s",
        f"{phase.efficiency:.0%}",
        clock(phase.seconds),
        phase.source.origin if isinstance(phase.source, TrainingRate) else "assumed",
    )


def origin_text(source: TrainingRate | str) -> str:
    """The source of a GPU's rate as a sentence."""
    if isinstance(source, str):
        return f"assumed: {source}"
    origins = {"ours": "measured with this trainer", "reference": "measured with another program"}
    origin = origins.get(source.origin, source.origin)
    figure = f"{source.rows_per_second:,.0f} sequences/s with {source.vocab_size:,} subwords"
    dated = f", {source.device}, {source.date}" if source.origin == "ours" else ""
    return f"{origin}: {figure}{dated} ({source.what})"


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
