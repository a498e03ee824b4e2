"""Predicts how long a build or a training run takes on N cores or M GPUs, from measured rates.

It simulates nothing. A stage takes its work divided by its rate, plus what does not shrink with more cores:
its serial part, the start and end of its rounds of tasks, and half of the last task, for which the others
wait. It is never faster than the driver starts tasks.
"""

import math
from dataclasses import dataclass
from functools import cache

from bertmill.planning.rates import Rates, TrainingRate, TrainingRates
from pipeline.config import BuildConfig
from pipeline.engine.partitions import MOST_MAP_TASKS, partition_count
from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model.config import ModelConfig
from trainer.monitoring.flops import training_flops
from trainer.recipe_config import Phase

NETWORKS = ("efa", "nvlink", "tcp100", "tcp25")
_SHUFFLED = ("dedup", "stubs", "near", "vocabulary", "instances")


@dataclass(frozen=True)
class CorpusSize:
    """What a build reads and writes. A megabyte is 10^6 bytes."""

    compressed_mb: float
    documents: float
    text_mb: float
    shuffled_tokens: float
    """Tokens that the shuffle moves to buckets: all of them, once for every pass."""
    written_tokens: float
    """Tokens written, for every pass and every length."""
    units: int
    buckets: int
    stubs: bool = False
    """Whether a separate round caps the pages of one sentence pattern (dedup.max_templated)."""
    published: bool = False
    """Whether the build also writes the documents as a dataset (publish.documents)."""
    near: bool = False
    """Whether near duplicates are removed (dedup.near)."""
    templates: bool = False
    """Whether the build learns templates from its dumps (extraction.learn_templates)."""
    copied: bool = False
    """Whether the pages of dumps are copied between two stages (previous)."""

    @staticmethod
    def of(config: BuildConfig, compressed_bytes: float, rates: Rates) -> "CorpusSize":
        """From the bytes of the sources, by the measured ratios. Raises ConfigError for an invalid size."""
        if not 0 <= compressed_bytes < math.inf:
            raise ConfigError(f"--input-gb: {compressed_bytes / 1e9:g} must be finite and non-negative")
        ratio, settings = rates.corpus, config.instances
        compressed_mb = compressed_bytes / 1e6
        templates = config.extraction.learn_templates and any(
            source.kind == "wikimedia" for source in config.sources
        )
        text_mb = compressed_mb * ratio.text_mb_per_compressed_mb
        shuffled = text_mb * 1e6 * ratio.tokens_per_text_byte * settings.passes
        return CorpusSize(
            compressed_mb=compressed_mb,
            documents=compressed_mb * ratio.documents_per_compressed_mb,
            text_mb=text_mb,
            shuffled_tokens=shuffled,
            written_tokens=shuffled * len(settings.lengths),
            units=max(1, math.ceil(compressed_bytes / config.extraction.unit_bytes)),
            buckets=max(1, math.ceil(text_mb * 1e6 / settings.bucket_bytes)) * settings.passes,
            stubs=config.dedup.max_templated is not None,
            published=config.publish.documents,
            near=config.dedup.near,
            templates=templates,
            copied=config.previous is not None and templates,
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
    """Memory of a node that runs this stage on all its cores."""
    moved_gb: float
    """Gigabytes that a shuffle writes to the output's storage, reads once, and removes."""
    written_gb: float
    copied_gb: float = 0.0
    """Gigabytes of the copies of pages that the stage reads, which are removed then."""


def forecast_build(size: CorpusSize, cores: int, cores_per_node: int, rates: Rates) -> list[StageForecast]:
    """A forecast of every stage on ``cores`` cores. Raises ConfigError if ``cores`` is not positive."""
    if cores < 1 or cores_per_node < 1:
        raise ConfigError("--cores and --cores-per-node must be at least 1")
    round_tasks = size.units + max(1, math.ceil(size.documents / 2e6))
    tasks = {
        # Every unit, then the tables of its wiki.
        **({"templates": size.units} if size.templates else {}),
        "extract": size.units,
        "dedup": round_tasks,
        **({"stubs": round_tasks} if size.stubs else {}),
        # Signatures and sketches read every unit. Pairs and members of clusters are small.
        **({"near": 2 * round_tasks} if size.near else {}),
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
    stage, driver = rates.build.stages[name], rates.driver
    amount = float(tasks) if stage.amount == "tasks" else getattr(size, stage.amount)
    # Rates count the CPU time of the transforms. Moving data and starting tasks are added.
    work = amount / stage.per_core_second * driver.overhead
    busy = 1 if name == "publish" else min(cores, tasks)
    # The last task starts when the others run or end, so it adds half of a task's time to an even share.
    last = work / tasks / 2 if busy < tasks else 0.0
    seconds = (
        serial_seconds(name, size, rates)
        + stage.rounds * round_seconds(min(cores, cores_per_node), rates)
        + max(work / busy + last, tasks / driver.tasks_per_second)
    )
    ratio = rates.corpus
    documents = size.text_mb * ratio.documents_mb_per_text_mb / 1e3
    written = {
        "extract": documents,
        # The same text in the same compression, before dedup removes any of it.
        "publish": documents if size.published else 0.0,
        "instances": size.written_tokens * ratio.shard_bytes_per_token / 1e9,
    }
    moved = {
        "dedup": size.documents * 2 * 60 / 1e9,
        "stubs": size.documents * 60 / 1e9,
        # Bands, and two sketches for about one candidate pair a document (docs/concepts/dedup.md).
        "near": size.documents * 5300 / 1e9,
        "instances": size.shuffled_tokens * ratio.moved_bytes_per_token / 1e9,
    }
    copied = size.compressed_mb * ratio.copied_mb_per_compressed_mb / 1e3 if size.copied else 0.0
    maps, partitions = shuffle_tasks(name, size, moved.get(name, 0.0)) if name in _SHUFFLED else (0, 0)
    return StageForecast(
        name=name,
        tasks=tasks,
        seconds=seconds,
        core_hours=work / 3600,
        # Every partition reads a range of every map task's file, and its offsets. Every map task writes its
        # rows and their index, which the driver reads twice.
        gets=tasks * stage.gets_per_task + (maps + 1) * partitions + 2 * maps,
        puts=tasks * stage.puts_per_task + 2 * maps,
        node_gb=stage.task_gb * min(cores_per_node, cores),
        moved_gb=moved.get(name, 0.0),
        written_gb=written.get(name, 0.0),
        copied_gb=copied if name == "extract" else 0.0,
    )


def serial_seconds(name: str, size: CorpusSize, rates: Rates) -> float:
    """Seconds of a stage that keep one core busy. They do not depend on the number of cores."""
    serial = rates.build.stages[name].serial_seconds
    return serial + (
        training_seconds(million_words(size.text_mb, rates), rates) if name == "vocabulary" else 0
    )


def million_words(text_mb: float, rates: Rates) -> float:
    """Millions of distinct words from which the vocabulary of a text is trained.

    They grow about as the square root of the text, until vocabulary.max_letters bounds them. A text in few
    languages has fewer.
    """
    training = rates.build.vocabulary_training
    return training.most_million_words * math.sqrt(min(1.0, text_mb / training.bounded_text_mb))


def training_seconds(words: float, rates: Rates) -> float:
    """Seconds of the one task that trains the vocabulary from ``words`` million distinct words."""
    training = rates.build.vocabulary_training
    return training.base_seconds + training.seconds_per_million_words * words


def round_seconds(cores: int, rates: Rates) -> float:
    """Seconds in which a round of tasks starts and ends on a node with ``cores`` cores.

    Ray starts a process for each core, and a few tasks end last.
    """
    costs = rates.build.round_costs
    return costs.seconds + costs.seconds_per_core * cores


def shuffle_buckets(name: str, size: CorpusSize) -> int:
    """Buckets of the shuffle of a stage, or of the largest of them."""
    if name == "instances":
        return size.buckets
    # DOCUMENTS_PER_BUCKET and ROWS_PER_BUCKET in pipeline/stages/near.py and dedup.py.
    return max(1, math.ceil(size.documents / (5e5 if name == "near" else 2e6)))


def shuffle_tasks(name: str, size: CorpusSize, moved_gb: float) -> tuple[int, int]:
    """Map tasks and partitions of the shuffle of a stage, which moves ``moved_gb``."""
    return min(size.units, MOST_MAP_TASKS), partition_count(moved_gb * 1e9, shuffle_buckets(name, size))


def driver_gb(size: CorpusSize, stages: list[StageForecast], rates: Rates) -> float:
    """Memory of the driver: lists of units and markers, and the table of offsets of the largest shuffle.

    The table has two numbers of 8 bytes for each map task and partition, and memory holds it twice while it
    is written.
    """
    largest = max(stages, key=lambda stage: stage.moved_gb)
    maps, partitions = shuffle_tasks(largest.name, size, largest.moved_gb)
    lists = (size.units + size.buckets) * rates.driver.kb_per_unit / 1e6
    return rates.driver.base_gb + lists + 2 * 16 * maps * partitions / 1e9


def build_cost(stages: list[StageForecast], cores: int, rates: Rates) -> dict[str, float]:
    """USD for the cores while the build runs, for its requests, and for a month of storage."""
    price = rates.prices
    hours = sum(stage.seconds for stage in stages) / 3600
    requests = (
        sum(stage.puts for stage in stages) * price.put_thousand
        + sum(stage.gets for stage in stages) * price.get_thousand
    ) / 1000
    kept = sum(stage.written_gb for stage in stages) * price.gb_month
    return {"cores": hours * cores * price.core_hour, "requests": requests, "storage a month": kept}


@dataclass(frozen=True)
class GpuCluster:
    """The GPUs of a training run and what connects their nodes."""

    gpus: int
    gpus_per_node: int = 8
    network: str = "tcp100"
    """One of NETWORKS. efa needs the cards of infra/terraform/aws and cluster/kuberay/components/efa."""


@dataclass(frozen=True)
class PhaseForecast:
    """One phase of a training run."""

    max_seq_length: int
    rows: int
    rows_per_second: float
    """Over all devices."""
    step_seconds: float
    efficiency: float
    """Rate over ``gpus`` times one GPU's rate."""
    seconds: float
    source: TrainingRate | str
    """The rate of one GPU, or how it was assumed."""


def forecast_training(
    config: TrainConfig, vocab_size: int, cluster: GpuCluster, rates: Rates
) -> list[PhaseForecast]:
    """A forecast of every phase. Raises ConfigError for a phase without steps."""
    gpus, gpus_per_node = cluster.gpus, cluster.gpus_per_node
    if gpus < 1 or gpus_per_node < 1:
        raise ConfigError("--gpus and --gpus-per-node must be at least 1")
    if vocab_size < 1:
        raise ConfigError("--vocab-size must be at least 1")
    return [_phase(config, phase, vocab_size, cluster, rates) for phase in config.phases]


def _phase(
    config: TrainConfig, phase: Phase, vocab_size: int, cluster: GpuCluster, rates: Rates
) -> PhaseForecast:
    gpus = cluster.gpus
    if phase.steps is None:
        raise ConfigError(
            "phases: a forecast needs steps, because epochs depend on the corpus; set phases.N.steps"
        )
    if phase.global_batch < gpus:
        raise ConfigError(
            f"phases: global_batch {phase.global_batch} is below the number of GPUs, {gpus}; raise it or"
            " lower --gpus"
        )
    training = rates.training
    model, length = config.model.with_vocabulary(vocab_size), phase.max_seq_length
    gpu_rate, source = one_gpu(model, length, training)
    compute = math.ceil(phase.global_batch / gpus) / gpu_rate
    reduction = reduce_seconds(parameters(model), cluster, training)
    if config.data_parallel == "fsdp":
        # In every micro-batch weights are gathered twice and gradients summed: three halves of an all-reduce.
        reduction *= 1.5 * math.ceil(phase.global_batch * length / gpus / phase.micro_batch_tokens)
    hidden = training.hidden_communication * compute if _overlaps(config, cluster) else 0.0
    step = compute + max(0.0, reduction - hidden)
    return PhaseForecast(
        max_seq_length=length,
        rows=phase.steps * phase.global_batch,
        rows_per_second=phase.global_batch / step,
        step_seconds=step,
        efficiency=phase.global_batch / step / (gpu_rate * gpus),
        seconds=step * phase.steps,
        source=source,
    )


def _overlaps(config: TrainConfig, cluster: GpuCluster) -> bool:
    """Whether GPUs exchange gradients beside the backward pass: by default unless all are in one node."""
    if config.data_parallel == "fsdp":
        return True
    if config.overlap_gradients is not None:
        return config.overlap_gradients
    return cluster.gpus > cluster.gpus_per_node


def one_gpu(model: ModelConfig, length: int, training: TrainingRates) -> tuple[float, TrainingRate | str]:
    """Full sequences per second of one GPU, and the source of this rate.

    The rate of the nearest vocabulary size is scaled by the FLOPs of a sequence. Without a rate of this
    model at this length, the FLOPs run at a fixed share of the peak.
    """
    fitting = [
        rate
        for rate in training.rates
        if (rate.model, rate.max_seq_length, model.style) == (model.size, length, "bert")
    ]
    if fitting:
        rate = min(fitting, key=lambda each: abs(each.vocab_size - model.vocab_size))
        measured = row_flops(model.with_vocabulary(rate.vocab_size), length)
        return rate.rows_per_second * measured / row_flops(model, length), rate
    peak, share = training.peak_tflops * 1e12, training.fallback_mfu
    assumption = f"no rate of {model.size} at {length}: {share:.0%} of {peak / 1e12:,.0f} TFLOP/s"
    return share * peak / row_flops(model, length), assumption


def reduce_seconds(parameter_count: float, cluster: GpuCluster, training: TrainingRates) -> float:
    """Seconds of one ring all-reduce of the fp32 gradients over all devices."""
    gpus = cluster.gpus
    if gpus == 1:
        return 0.0
    one_node = gpus <= cluster.gpus_per_node
    network = training.network_allreduce_gb_s[cluster.network]
    speed = training.node_allreduce_gb_s if one_node else network
    return 2 * (gpus - 1) / gpus * parameter_count * 4 / (speed * 1e9)


@cache
def parameters(model: ModelConfig) -> int:
    """Number of parameters, counted without allocating them. Shared parameters count once."""
    import torch

    from trainer.model.pretraining import BertPretraining

    with torch.device("meta"):
        return sum(weight.numel() for weight in BertPretraining(model).parameters())


def row_flops(model: ModelConfig, length: int, masked_share: float = 0.15) -> float:
    """FLOPs of a full sequence, forward and backward, with the MLM head on masked positions only."""
    return training_flops(model, length, length**2, masked_share * length)


def training_cost(phases: list[PhaseForecast], gpus: int, rates: Rates) -> float:
    """USD for the devices."""
    return float(sum(phase.seconds for phase in phases) / 3600 * gpus * rates.prices.gpu_hour)
