"""What a rank needs before the first step: the data in order, the network, the learning rates."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from schemas.errors import BertmillError, ConfigError
from schemas.plugins import load_plugin, plugin_error
from schemas.randomness import key_from_text
from trainer.checkpoint.manifest import RunState
from trainer.config import TrainConfig
from trainer.data.batches import BatchReader, FixedShape, Stream
from trainer.data.corpus import Corpus, check_model, check_shards, open_corpus
from trainer.data.disk_cache import DiskCache
from trainer.data.dynamic_masks import dynamic_masks
from trainer.data.language_choice import language_choice
from trainer.data.rows import ShardRows
from trainer.data.shared_lengths import SharedLengths
from trainer.data.step_plan import TrainingPlan
from trainer.distributed.ranks import Ranks
from trainer.distributed.seeding import seed_generators
from trainer.distributed.sharding import shard
from trainer.evaluation.held_out import HeldOut
from trainer.export.initial_weights import load_teacher, start_from
from trainer.export.load_model import content_digest, load_model
from trainer.model.attention import Kernel
from trainer.model.config import ModelConfig
from trainer.model.distillation import DistillationLoss, DistillationWeights
from trainer.model.microbatch import MicroBatch
from trainer.model.objectives import Objective, ObjectiveLoss, PretrainingLoss, checked_per_sequence
from trainer.model.pretraining import BertPretraining
from trainer.optim.ema import WeightAverage
from trainer.optim.optimizers import build_optimizer
from trainer.optim.schedule import LRSchedule, steps_of
from trainer.startup.identity import OBJECTIVE_DIGEST, START_DIGEST, TEACHER_DIGEST
from trainer.startup.kernels import FUSED, planned_kernel, precision_of

# Fused layers accept any number of tokens, but time the candidates of their products for each number.
_TOKEN_GRAIN = 1024
_INIT = key_from_text("trainer.prepare", "initial weights")


@dataclass(frozen=True)
class TrainingData:
    """The corpus, the plan of all steps, and this rank's reader."""

    corpus: Corpus
    plan: TrainingPlan
    streams: dict[int, Stream]
    """By sequence length."""
    reader: BatchReader


@dataclass(frozen=True)
class Network:
    """The model, its loss and its optimizer, on this rank's device."""

    config: ModelConfig
    model: BertPretraining
    loss: PretrainingLoss
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    kernel: Kernel
    precision: torch.dtype
    digests: dict[str, str]
    """Identity field -> SHA-256 of what the run takes from outside its config: start weights, teacher,
    source of the objective."""
    objective: Objective | None = None
    """The objective that the config adds."""
    average: WeightAverage | None = None
    """Moving average of the weights, if the config sets ``ema``."""
    sharded: bool = False
    """Whether weights, moments and average are divided over the ranks (trainer/distributed/sharding.py)."""

    def count_objective_targets(self, batches: Sequence[MicroBatch]) -> int:
        """Targets of the added objective in ``batches``, which are in host memory. 0 without an objective."""
        objective = self.objective
        if objective is None:
            return 0
        counts = (
            checked_per_sequence(objective, "count_targets", objective.count_targets(b), b) for b in batches
        )
        return sum(int(count.sum()) for count in counts)


@dataclass(frozen=True)
class LoadedObjective:
    """An objective from outside the package."""

    module: Objective
    source_sha256: str


def plan_of(config: TrainConfig, corpus: Corpus) -> TrainingPlan:
    """All steps of the run. Raises ConfigError when the corpus lacks a length."""
    lengths = sorted({phase.max_seq_length for phase in config.phases} & set(corpus.lengths()))
    window = config.data.shuffle_window
    return TrainingPlan(
        config.phases,
        {length: corpus.order(length, config.seed, window) for length in lengths},
        mask_rule=config.mask_rule,
        languages=config.language_sampling,
    )


@dataclass(frozen=True)
class RunPlan:
    """The parts of a run that follow from the config and the corpus manifest."""

    corpus: Corpus
    model: ModelConfig
    steps: TrainingPlan
    learning_rates: "LearningRates"


def preflight(config: TrainConfig) -> RunPlan:
    """Checks config and corpus manifest without reading a shard. Raises ConfigError, CorpusError."""
    corpus = open_corpus(config.data.manifest)
    model = model_config(config, corpus)
    load_objective(config, model)
    steps = plan_of(config, corpus)
    return RunPlan(corpus, model, steps, LearningRates(config, steps))


def open_data(
    config: TrainConfig, ranks: Ranks, cleanup: ExitStack, kernel: Kernel | None = None
) -> TrainingData:
    """The data of this rank. ``cleanup`` ends its threads. Raises ConfigError, CorpusError on all ranks.

    ``kernel`` is what the network runs with, by default the planned one.
    """
    data = config.data
    corpus = open_corpus(data.manifest)
    plan = plan_of(config, corpus)
    kernel = kernel or planned_kernel(config, model_config(config, corpus), ranks.device)
    disk = DiskCache(Path(data.disk_cache), data.disk_cache_bytes) if data.disk_cache else None
    fixed = config.compile if data.fixed_shapes is None else data.fixed_shapes
    grain = _TOKEN_GRAIN if kernel.name == FUSED.name else None
    streams = {
        length: Stream(
            order,
            ShardRows(corpus.passes(length), corpus.limits(length), data.cache_bytes, disk=disk),
            dynamic_masks(corpus, length, config.seed) if data.masking == "dynamic" else None,
            fixed_shape(corpus, length, grain) if fixed else None,
            language_choice(config.language_sampling, corpus, length, plan.total_steps, config.seed),
        )
        for length, order in plan.orders.items()
    }
    for phase in plan.phases:
        masks = streams[phase.phase.max_seq_length].masks
        if masks is not None:
            masks.rule(plan.at(phase.first_step).masks)
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
    """A shape with room for a quarter more rows than this length needs on average."""
    sets = [entry for entry in corpus.manifest.sets if entry.max_seq_length == max_seq_length]
    rows, tokens = sum(entry.rows for entry in sets), sum(entry.tokens for entry in sets)
    return FixedShape(1.25 * rows / tokens, corpus.manifest.masking.probability, token_grain)


def check_all_shards(corpus: Corpus, lengths: Iterable[int], ranks: Ranks) -> None:
    """Each rank checks its share of the shards. Raises CorpusError on all ranks when one check fails."""
    error = None
    try:
        check_shards(
            one_pass[index]
            for length in lengths
            for one_pass in corpus.passes(length)
            for index in range(ranks.rank, len(one_pass), ranks.world_size)
        )
    except BertmillError as caught:
        error = caught
    ranks.fail_together(error)


def open_held_out(config: TrainConfig, corpus: Corpus, ranks: Ranks) -> dict[int, HeldOut]:
    """The validation rows of each length in training, if the config evaluates on them.

    Raises CorpusError on all ranks.
    """
    settings = config.evaluation
    if settings is None:
        return {}
    budgets = {phase.max_seq_length: phase.micro_batch_tokens for phase in config.phases}
    return {
        length: HeldOut(corpus, length, budget, settings.rows, ranks) for length, budget in budgets.items()
    }


def build_network(config: TrainConfig, corpus: Corpus, ranks: Ranks, kernel: Kernel) -> Network:
    """The network with its initial weights, which depend on the seed only. Raises ConfigError."""
    seed_generators(ranks.device, config.seed, _INIT)
    shape = model_config(config, corpus)
    model = BertPretraining(shape)
    objective = load_objective(config, shape)
    loss, digests = _build_loss(config, model, objective, corpus, ranks.device)
    sharded = config.data_parallel == "fsdp" and ranks.world_size > 1
    if sharded:
        model.encoder.keeps_copies = False
        # A layer that all share is needed all the time, so it is not a separate unit.
        layers = () if shape.share_layers else tuple(model.encoder.layers)
        shard(loss, layers, ranks.device, config.gradient_exchange)
    model.to(ranks.device)
    precision = precision_of(config)
    model.use_kernel(ranks.device, precision)
    model.encoder.fused = kernel.name == FUSED.name
    model.encoder.recompute_layers = config.recompute_layers
    loss.z_loss, loss.chunk = config.stability.z_loss, config.loss_chunk
    if config.compile:
        _compile(config, loss, whole_graph=not (model.encoder.fused or sharded))
    return Network(
        config=shape,
        model=model,
        loss=loss,
        optimizer=_optimizer_of(config, model),
        parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        kernel=kernel,
        precision=precision,
        digests=digests,
        objective=objective.module if objective else None,
        average=WeightAverage(model, config.ema) if config.ema is not None else None,
        sharded=sharded,
    )


def load_start_weights(config: TrainConfig, corpus: Corpus, network: Network) -> None:
    """Reads the weights that a new run starts from, if the config names a model. Raises ConfigError."""
    if config.start_from is not None:
        network.digests[START_DIGEST] = start_from(network.model, config.start_from, corpus)


def keep_start_digest(config: TrainConfig, network: Network, state: RunState) -> None:
    """Takes the digest of the start weights from a checkpoint: a resume does not need the weights.

    They are read only if the config names another place than at the time of the checkpoint. Raises
    CheckpointError when there is no model.
    """
    recorded = state.identity.get(START_DIGEST)
    if config.start_from is None:
        return
    if config.start_from != state.config.get("start_from"):
        network.digests[START_DIGEST] = content_digest(load_model(config.start_from).model)
    elif isinstance(recorded, str):
        network.digests[START_DIGEST] = recorded


def _optimizer_of(config: TrainConfig, model: BertPretraining) -> torch.optim.Optimizer:
    settings = config.optimizer
    return build_optimizer(
        model,
        settings.kind,
        learning_rate=config.phases[0].learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def _compile(config: TrainConfig, loss: PretrainingLoss, *, whole_graph: bool) -> None:
    """Compiles ``loss``, or only what follows a fused or sharded encoder (with distillation, nothing).

    With fixed shapes every sequence length gets its own graph: by default, torch compiles the second
    length for shapes of any size, which is slower.
    """
    # Beyond this limit, torch runs further shapes uncompiled. Each length and each of a few mask rates
    # has its own shape.
    torch._dynamo.config.recompile_limit = 64
    fixed = config.data.fixed_shapes is not False
    dynamic = False if fixed else None
    loss.compile_chunks = fixed
    if whole_graph:
        loss.compile(mode=config.compile_mode, dynamic=dynamic)
    else:
        loss.compile_after_encoder(config.compile_mode, dynamic=dynamic)


def load_objective(config: TrainConfig, model: ModelConfig) -> LoadedObjective | None:
    """The objective that the config adds, with new weights. Raises ConfigError when it cannot be made."""
    section = config.objective
    if section is None:
        return None
    plugin = load_plugin(section.use, "objective.use")
    missing = sorted(getattr(plugin.object, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"objective.use: {section.use} lacks {', '.join(missing)}")
    try:
        module = plugin.object(model, **section.settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective: {section.use} does not accept the settings: {error}") from error
    except Exception as error:
        # Third-party code may raise anything.
        raise plugin_error(section.use, "objective", error) from error
    if not isinstance(module, Objective):
        raise ConfigError(f"objective.use: {section.use} is not a trainer.model.objectives.Objective")
    return LoadedObjective(module, plugin.sha256)


def _build_loss(
    config: TrainConfig,
    model: BertPretraining,
    objective: LoadedObjective | None,
    corpus: Corpus,
    device: torch.device,
) -> tuple[PretrainingLoss, dict[str, str]]:
    """The loss of ``model``, and the digests of the teacher or of the objective's source."""
    languages = len(corpus.languages)
    section = config.objective
    if objective is not None and section is not None:
        loss = ObjectiveLoss(
            model,
            objective.module,
            languages,
            weight=section.weight,
            pretraining_weight=section.pretraining_weight,
        )
        return loss, {OBJECTIVE_DIGEST: objective.source_sha256}
    distillation = config.distillation
    if distillation is None:
        return PretrainingLoss(model, languages), {}
    teacher = load_teacher(model, distillation.teacher, corpus, copy_layers=distillation.copy_layers)
    digests = {TEACHER_DIGEST: content_digest(teacher)}
    teacher.to(device).use_kernel(device, precision_of(config))
    weights = DistillationWeights(
        distillation.soft,
        distillation.token,
        distillation.hidden,
        distillation.temperature,
        distillation.soft_tokens,
    )
    return DistillationLoss(model, teacher, languages, weights), digests


def model_config(config: TrainConfig, corpus: Corpus) -> ModelConfig:
    """The model's config with the corpus' vocabulary size. Raises ConfigError when the two do not fit."""
    model = config.model
    pinned, sha256 = config.data.vocabulary_sha256, corpus.manifest.vocabulary.sha256
    if pinned not in (None, sha256):
        raise ConfigError(f"data.vocabulary_sha256: {pinned}, but the vocabulary of {corpus.uri} is {sha256}")
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
        spans_run = config.schedule.span == "run"
        self._schedules = [
            _schedule_of(config, plan.total_steps if spans_run else phase.steps, phase.phase.warmup)
            for phase in plan.phases
        ]
        self._offsets = [0 if spans_run else phase.first_step for phase in plan.phases]

    def at(self, step: int) -> float:
        """The learning rate of ``step``."""
        number = self._plan.at(step).phase
        peak = self._plan.phases[number].phase.learning_rate
        return peak * self._schedules[number].factor(step - self._offsets[number])


def _schedule_of(config: TrainConfig, total: int, warmup: float | None) -> LRSchedule:
    settings = config.schedule
    return LRSchedule(
        settings.shape,
        total,
        warmup=steps_of(settings.warmup if warmup is None else warmup, total),
        decay=steps_of(settings.decay, total),
        power=settings.power,
        end=settings.end,
    )
