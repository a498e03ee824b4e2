"""What a rank needs before the first step: the data in order, the network, its rates."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from schemas.errors import BertmillError, ConfigError
from schemas.randomness import draws, key_from_text
from trainer.attention import Kernel, choose_kernel, fused_obstacle
from trainer.batches import BatchReader, FixedShape, Stream
from trainer.config import TrainConfig
from trainer.corpus import Corpus, check_model, check_shards, open_corpus
from trainer.disk_cache import DiskCache
from trainer.distill import DistillationLoss, Weights
from trainer.dynamic_masks import dynamic_masks
from trainer.evaluate import HeldOut
from trainer.initial_weights import load_teacher, start_from
from trainer.model import BertPretraining
from trainer.model_config import ModelConfig
from trainer.objectives import PretrainingLoss
from trainer.optim import build_optimizer
from trainer.plan import TrainingPlan
from trainer.ranks import Ranks
from trainer.rows import ShardRows
from trainer.schedule import Schedule, steps_of
from trainer.shared_lengths import SharedLengths
from trainer.start_times import use_compile_cache

# Fused layers take any number of tokens, but time their products' candidates for each anew.
_TOKEN_GRAIN = 1024
_INIT = key_from_text("trainer.prepare", "initial weights")


@dataclass(frozen=True)
class TrainingData:
    """The corpus, the plan of all steps, and this rank's reader."""

    corpus: Corpus
    plan: TrainingPlan
    streams: dict[int, Stream]
    reader: BatchReader


@dataclass(frozen=True)
class Network:
    """The model, its loss, and its optimizer, on this rank's device."""

    config: ModelConfig
    model: BertPretraining
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    kernel: Kernel
    precision: torch.dtype


def plan_of(config: TrainConfig, corpus: Corpus) -> TrainingPlan:
    """All steps of the run. Raises ConfigError when the corpus lacks a length."""
    lengths = sorted({phase.max_seq_length for phase in config.phases} & set(corpus.lengths()))
    window = config.data.shuffle_window
    return TrainingPlan(
        config.phases, {length: corpus.order(length, config.seed, window) for length in lengths}
    )


def preflight(config: TrainConfig) -> tuple[Corpus, ModelConfig, TrainingPlan, "LearningRates"]:
    """What the run is made of, without reading a shard: raises ConfigError, CorpusError early and cheaply."""
    corpus = open_corpus(config.data.manifest)
    shape = model_config(config, corpus)
    plan = plan_of(config, corpus)
    return corpus, shape, plan, LearningRates(config, plan)


def open_data(config: TrainConfig, ranks: Ranks, cleanup: ExitStack) -> TrainingData:
    """The data of this rank; ``cleanup`` ends its threads. Raises ConfigError, CorpusError on all ranks."""
    data = config.data
    corpus = open_corpus(data.manifest)
    shape = model_config(config, corpus)
    plan = plan_of(config, corpus)
    disk = DiskCache(Path(data.disk_cache), data.disk_cache_bytes) if data.disk_cache else None
    dynamic = data.masking == "dynamic"
    fixed = config.compile if data.fixed_shapes is None else data.fixed_shapes
    grain = _TOKEN_GRAIN if kernel_of(config, shape, ranks.device).name == "fused" else None
    streams = {
        length: Stream(
            order,
            ShardRows(corpus.passes(length), corpus.limits(length), data.cache_bytes, disk=disk),
            dynamic_masks(corpus, length, config.seed) if dynamic else None,
            fixed_shape(corpus, length, grain) if fixed else None,
        )
        for length, order in plan.orders.items()
    }
    reader = BatchReader(
        plan,
        streams,
        ranks.rank,
        ranks.world_size,
        threads=data.read_threads,
        ahead=data.read_ahead,
        pin=ranks.device.type == "cuda",
        shared=SharedLengths(ranks.rank, ranks.reading) if ranks.reading is not None else None,
    )
    cleanup.callback(reader.close)
    return TrainingData(corpus, plan, streams, reader)


def fixed_shape(corpus: Corpus, max_seq_length: int, token_grain: int | None = None) -> FixedShape:
    """A shape with room for a quarter more rows than the average of this length needs."""
    sets = [one for one in corpus.manifest["sets"] if one["max_seq_length"] == max_seq_length]
    rows, tokens = sum(one["rows"] for one in sets), sum(one["tokens"] for one in sets)
    return FixedShape(1.25 * rows / tokens, corpus.manifest["masking"]["probability"], token_grain)


def check_all_shards(corpus: Corpus, lengths: Iterable[int], ranks: Ranks) -> None:
    """Each rank opens its share of the shards. Raises CorpusError on all ranks when one is at fault."""
    places = [place for length in lengths for shards in corpus.passes(length) for place in shards]
    error = None
    try:
        check_shards(places[ranks.rank :: ranks.world_size])
    except BertmillError as caught:
        error = caught
    ranks.fail_together(error)


def open_held_out(config: TrainConfig, corpus: Corpus, ranks: Ranks) -> dict[int, HeldOut]:
    """The validation rows of each length in training, when the config measures them.

    Raises CorpusError on all ranks.
    """
    settings = config.evaluation
    if settings is None:
        return {}
    budgets = {phase.max_seq_length: phase.micro_batch_tokens for phase in config.phases}
    return {
        length: HeldOut(corpus, length, budget, settings.rows, ranks) for length, budget in budgets.items()
    }


def build_network(config: TrainConfig, corpus: Corpus, ranks: Ranks) -> Network:
    """The network with its initial weights, which depend on the seed only."""
    torch.manual_seed(seed_of(config.seed, _INIT))
    shape = model_config(config, corpus)
    model = BertPretraining(shape)
    loss = _loss(config, model, corpus, ranks.device)
    model.to(ranks.device)
    precision = _precision(config)
    model.use_kernel(ranks.device, precision)
    kernel = kernel_of(config, shape, ranks.device)
    model.encoder.fused = kernel.name == "fused"
    if config.compile:
        use_compile_cache(config.compile_cache)
        _compile(loss, config.compile_mode, fused=kernel.name == "fused")
    settings = config.optimizer
    optimizer = build_optimizer(
        model,
        settings.kind,
        learning_rate=config.phases[0].learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Network(shape, model, loss, optimizer, parameters, kernel, precision)


def _precision(config: TrainConfig) -> torch.dtype:
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def kernel_of(config: TrainConfig, model: ModelConfig, device: torch.device) -> Kernel:
    """The kernels of ``model`` on ``device``. Raises ConfigError when those wanted cannot be had."""
    kernel = choose_kernel(model, device, _precision(config))
    if config.kernels == "plain":
        return kernel
    obstacle = fused_obstacle(model, kernel, _precision(config))
    if obstacle is None:
        return Kernel("fused", "varlen attention, BERT's layers each as one function, bf16 between them")
    if config.kernels == "fused":
        raise ConfigError(f"kernels: fused layers are not possible: {obstacle}")
    return kernel


def _compile(loss: PretrainingLoss, mode: str, *, fused: bool) -> None:
    """Compiles ``loss``, of a fused encoder only what follows it (a distillation's runs uncompiled then)."""
    if fused:
        loss.compile_after_encoder(mode)
    else:
        loss.compile(mode=mode)


def _loss(
    config: TrainConfig, model: BertPretraining, corpus: Corpus, device: torch.device
) -> PretrainingLoss:
    """The loss of ``model``, which gets its first weights from elsewhere where the config says so."""
    languages = len(corpus.languages)
    if config.start_from is not None:
        start_from(model, config.start_from, corpus)
    lesson = config.distillation
    if lesson is None:
        return PretrainingLoss(model, languages)
    teacher = load_teacher(model, lesson.teacher, corpus, copy_layers=lesson.copy_layers).to(device)
    teacher.use_kernel(device, _precision(config))
    weights = Weights(lesson.soft, lesson.token, lesson.hidden, lesson.temperature)
    return DistillationLoss(model, teacher, languages, weights)


def model_config(config: TrainConfig, corpus: Corpus) -> ModelConfig:
    """The model's config with the corpus' vocabulary. Raises ConfigError when the two do not fit."""
    model = config.model
    pinned, found = config.data.vocabulary_sha256, corpus.manifest["vocabulary"]["sha256"]
    if pinned not in (None, found):
        raise ConfigError(f"data.vocabulary_sha256: {pinned}, but the vocabulary of {corpus.uri} is {found}")
    check_model(
        corpus,
        vocab_size=model.vocab_size or corpus.vocab_size,
        pairs=model.pair_objective != "none",
        max_positions=model.max_positions,
        lengths=[phase.max_seq_length for phase in config.phases],
    )
    if model.pair_objective not in ("none", corpus.objective):
        raise ConfigError(
            f"model.pair_objective: {model.pair_objective}, but {corpus.uri} was built for {corpus.objective}"
        )
    return model if model.vocab_size else model.with_vocabulary(corpus.vocab_size)


class LearningRates:
    """The learning rate as a pure function of the step. Raises ConfigError."""

    def __init__(self, config: TrainConfig, plan: TrainingPlan) -> None:
        self._plan = plan
        whole = config.schedule.span == "run"
        self._schedules = [
            _schedule(config, plan.total_steps if whole else phase.steps, phase.phase.warmup)
            for phase in plan.phases
        ]
        self._offsets = [0 if whole else phase.first_step for phase in plan.phases]

    def at(self, step: int) -> float:
        """The rate of ``step``."""
        number = self._plan.at(step).phase
        peak = self._plan.phases[number].phase.learning_rate
        return peak * self._schedules[number].factor(step - self._offsets[number])


def _schedule(config: TrainConfig, total: int, warmup: float | None) -> Schedule:
    settings = config.schedule
    return Schedule(
        settings.shape,
        total,
        warmup=steps_of(settings.warmup if warmup is None else warmup, total),
        decay=steps_of(settings.decay, total),
        power=settings.power,
        end=settings.end,
    )


def seed_of(seed: int, *words: int) -> int:
    """A seed for torch, in [0, 2^63), keyed by ``words``."""
    return int(draws(seed, *words)) >> 1
