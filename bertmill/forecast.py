"""How long a build or a training takes on N cores or M GPUs: measured rates, multiplied out.

Nothing is simulated. A stage is work divided by rate, plus what one machine does alone, plus the last
task that the others wait for, and never faster than the driver can hand out tasks.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pipeline.config import BuildConfig
from schemas.errors import ConfigError
from trainer.config import Phase, TrainConfig
from trainer.flops import training_flops
from trainer.model_config import ModelConfig

Rates = Mapping[str, Any]


def load_rates() -> dict[str, Any]:
    """The rates that come with this version."""
    rates: dict[str, Any] = json.loads((files("bertmill") / "rates.json").read_text(encoding="utf-8"))
    return rates


@dataclass(frozen=True)
class CorpusSize:
    """What a build reads and makes; megabytes are 10^6 bytes."""

    compressed_mb: float
    documents: float
    text_mb: float
    shuffled_tokens: float
    """Tokens that move to their buckets: all of them, once for every pass."""
    made_tokens: float
    """Tokens written, for every pass and every length."""
    units: int
    buckets: int
    stubs: bool = False
    """Whether a round of its own caps the pages of one sentence pattern (dedup.max_templated)."""

    @staticmethod
    def of(config: BuildConfig, compressed_bytes: float, rates: Rates) -> "CorpusSize":
        """From the bytes of the sources, by the measured ratios. Raises ConfigError for no size."""
        if not 0 <= compressed_bytes < math.inf:
            raise ConfigError(f"--input-gb: {compressed_bytes / 1e9:g} is no size")
        ratio, settings = rates["corpus"], config.instances
        compressed_mb = compressed_bytes / 1e6
        text_mb = compressed_mb * ratio["text_mb_per_compressed_mb"]
        shuffled = text_mb * 1e6 * ratio["tokens_per_text_byte"] * settings.passes
        return CorpusSize(
            compressed_mb=compressed_mb,
            documents=compressed_mb * ratio["documents_per_compressed_mb"],
            text_mb=text_mb,
            shuffled_tokens=shuffled,
            made_tokens=shuffled * len(settings.lengths),
            units=max(1, math.ceil(compressed_bytes / config.extraction.unit_bytes)),
            buckets=max(1, math.ceil(text_mb * 1e6 / settings.bucket_bytes)) * settings.passes,
            stubs=config.dedup.max_templated is not None,
        )


@dataclass(frozen=True)
class StageForecast:
    """One stage of a build."""

    name: str
    tasks: int
    seconds: float
    core_hours: float
    gets: int
    puts: int
    node_gb: float
    """Memory of a node whose cores all run this stage."""
    moved_gb: float
    """What passes through Ray's object store from task to task, on all nodes."""
    spilled_gb: float
    """Of that, what does not fit into a node's share of the object store and goes to its disk."""
    written_gb: float


def forecast_build(size: CorpusSize, cores: int, cores_per_node: int, rates: Rates) -> list[StageForecast]:
    """Every stage on ``cores`` cores. Raises ConfigError when there is no core."""
    if cores < 1 or cores_per_node < 1:
        raise ConfigError("--cores and --cores-per-node: at least 1")
    round_tasks = size.units + max(1, math.ceil(size.documents / 2e6))
    tasks = {
        "extract": size.units,
        "dedup": round_tasks,
        **({"stubs": round_tasks} if size.stubs else {}),
        "vocabulary": size.units,
        "instances": size.units + size.buckets,
        "publish": size.units + size.buckets,
    }
    return [
        _stage(name, size, tasks[name], cores=cores, cores_per_node=cores_per_node, rates=rates)
        for name in tasks
    ]


def _stage(
    name: str, size: CorpusSize, tasks: int, *, cores: int, cores_per_node: int, rates: Rates
) -> StageForecast:
    stage, driver = rates["build"]["stages"][name], rates["driver"]
    amount = float(tasks) if stage["amount"] == "tasks" else getattr(size, stage["amount"])
    # Rates are CPU seconds of the transforms; moving data and starting tasks come on top.
    work = amount / stage["per_core_second"] * driver["overhead"]
    busy = 1 if name == "publish" else min(cores, tasks)
    # The last task begins when the others end: one more task's time on top of an even share.
    last = work / tasks if busy < tasks else 0.0
    seconds = stage["serial_seconds"] + max(work / busy + last, tasks / driver["tasks_per_second"])
    node_cores = min(cores_per_node, cores)
    nodes = math.ceil(cores / node_cores)
    ratio = rates["corpus"]
    written = {
        "extract": size.text_mb * ratio["documents_mb_per_text_mb"] / 1e3,
        "instances": size.made_tokens * ratio["shard_bytes_per_token"] / 1e9,
    }
    moved = {
        "dedup": size.documents * 2 * 60 / 1e9,
        "stubs": size.documents * 60 / 1e9,
        "instances": size.shuffled_tokens * 4.5 / 1e9,
    }
    return StageForecast(
        name=name,
        tasks=tasks,
        seconds=seconds,
        core_hours=work / 3600,
        gets=tasks * stage["gets_per_task"],
        puts=tasks * stage["puts_per_task"],
        node_gb=stage["task_gb"] * node_cores,
        moved_gb=moved.get(name, 0.0),
        spilled_gb=max(
            0.0, moved.get(name, 0.0) / nodes - rates["driver"]["object_store_gb_per_core"] * node_cores
        ),
        written_gb=written.get(name, 0.0),
    )


def driver_gb(size: CorpusSize, stages: list[StageForecast], nodes: int, rates: Rates) -> float:
    """Memory of the driver: lists of units and markers, and what Ray keeps for the largest shuffle.

    A shuffle's tasks take a gigabyte each, at least one on a node, and cut it into pieces by partition.
    """
    driver = rates["driver"]
    moved = max(stage.moved_gb for stage in stages)
    tasks = min(size.units, math.ceil(moved / driver["gb_per_shuffle_task"]) + nodes)
    pieces = tasks * min(size.buckets, driver["most_partitions"])
    kilobytes = (size.units + size.buckets) * driver["kb_per_unit"] + pieces * driver["kb_per_piece"]
    return float(kilobytes / 1e6)


def build_cost(stages: list[StageForecast], cores: int, rates: Rates) -> dict[str, float]:
    """USD for the cores while the build runs, for requests, and for a month of what it wrote."""
    price = rates["prices"]
    hours = sum(stage.seconds for stage in stages) / 3600
    requests = (
        sum(stage.puts for stage in stages) * price["put_thousand"]
        + sum(stage.gets for stage in stages) * price["get_thousand"]
    ) / 1000
    kept = sum(stage.written_gb for stage in stages) * price["gb_month"]
    return {"cores": hours * cores * price["core_hour"], "requests": requests, "storage a month": kept}


@dataclass(frozen=True)
class PhaseForecast:
    """One phase of a training run."""

    max_seq_length: int
    rows: int
    rows_per_second: float
    """Over all devices."""
    step_seconds: float
    efficiency: float
    """Share of ``gpus`` times one GPU's rate."""
    seconds: float
    source: Mapping[str, Any]
    """The rate of one GPU as rates.json has it, with its origin; of an assumed one the origin alone."""


def forecast_training(
    config: TrainConfig, vocab_size: int, gpus: int, gpus_per_node: int, rates: Rates
) -> list[PhaseForecast]:
    """Every phase on ``gpus`` devices. Raises ConfigError for a phase whose steps are not given."""
    if gpus < 1 or gpus_per_node < 1:
        raise ConfigError("--gpus and --gpus-per-node: at least 1")
    if vocab_size < 1:
        raise ConfigError("--vocab-size: at least 1")
    return [
        _phase(config, phase, vocab_size, gpus=gpus, gpus_per_node=gpus_per_node, rates=rates)
        for phase in config.phases
    ]


def _phase(
    config: TrainConfig, phase: Phase, vocab_size: int, *, gpus: int, gpus_per_node: int, rates: Rates
) -> PhaseForecast:
    if phase.steps is None:
        raise ConfigError("phases: a forecast needs steps; epochs depend on the corpus")
    if phase.global_batch < gpus:
        raise ConfigError(f"phases: global_batch {phase.global_batch} cannot feed {gpus} GPUs")
    training = rates["training"]
    model, length = config.model.with_vocabulary(vocab_size), phase.max_seq_length
    one, source = one_gpu(model, length, training)
    compute = math.ceil(phase.global_batch / gpus) / one
    reduction = reduce_seconds(parameters(model), gpus, gpus_per_node, training)
    step = compute + max(0.0, reduction - training["hidden_communication"] * compute)
    return PhaseForecast(
        max_seq_length=length,
        rows=phase.steps * phase.global_batch,
        rows_per_second=phase.global_batch / step,
        step_seconds=step,
        efficiency=phase.global_batch / step / (one * gpus),
        seconds=step * phase.steps,
        source=source,
    )


def one_gpu(model: ModelConfig, length: int, training: Rates) -> tuple[float, Mapping[str, Any]]:
    """Full rows a second of one GPU, and where that is from.

    The rate of the nearest vocabulary is turned for this one by the arithmetic of a row; without a rate of
    this model at this length the arithmetic is taken at a fixed share of the peak.
    """
    fitting = [
        rate
        for rate in training["rates"]
        if (rate["model"], rate["max_seq_length"], model.style) == (model.size, length, "bert")
    ]
    if fitting:
        rate = min(fitting, key=lambda one: abs(one["vocab_size"] - model.vocab_size))
        theirs = row_flops(model.with_vocabulary(rate["vocab_size"]), length)
        return rate["rows_per_second"] * theirs / row_flops(model, length), rate
    peak, share = training["peak_tflops"] * 1e12, training["fallback_mfu"]
    what = f"no rate of {model.size} at {length}: {share:.0%} of {peak / 1e12:,.0f} TFLOP/s"
    return share * peak / row_flops(model, length), {"origin": "assumed", "what": what}


def reduce_seconds(parameter_count: float, gpus: int, gpus_per_node: int, training: Rates) -> float:
    """Seconds of one sum of fp32 gradients over all devices, as a ring."""
    if gpus == 1:
        return 0.0
    speed = training["node_allreduce_gb_s" if gpus <= gpus_per_node else "network_allreduce_gb_s"]
    return float(2 * (gpus - 1) / gpus * parameter_count * 4 / (speed * 1e9))


def parameters(model: ModelConfig) -> int:
    """Weights of the network, counted without giving them memory: shared ones once."""
    import torch

    from trainer.model import BertPretraining

    with torch.device("meta"):
        return sum(weight.numel() for weight in BertPretraining(model).parameters())


def row_flops(model: ModelConfig, length: int, masked_share: float = 0.15) -> float:
    """Arithmetic of a full row, forward and backward, with the head on masked positions only."""
    return training_flops(model, length, length**2, masked_share * length)


def training_cost(phases: list[PhaseForecast], gpus: int, rates: Rates) -> float:
    """USD for the devices."""
    return float(sum(phase.seconds for phase in phases) / 3600 * gpus * rates["prices"]["gpu_hour"])
