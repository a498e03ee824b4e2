"""The config of a training run: every field, its default, its range and what it does."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from cluster import storage
from cluster.jobs.lease import LEASE_SECONDS
from cluster.jobs.paths import Location
from trainer.model.config import MayChange, MayDiffer, ModelConfig
from trainer.recipe_config import LanguageSampling, MaskRule, Phase, Positive, Section


def _no_fp16(value: Any) -> Any:
    """Raises ValueError for half precision, whose range would need a scaled loss."""
    if str(value).lower() in ("fp16", "float16", "half"):
        raise ValueError(
            "fp16 is not supported: small gradients vanish in it unless the loss is scaled, and the scale can"
            " collapse; use bf16, which has the range of fp32, or fp32 on GPUs without bf16"
        )
    return value


Precision = Annotated[Literal["fp32", "bf16"], BeforeValidator(_no_fp16)]


class Run(Section):
    """The name of a run and where it is stored."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name of the run. A run with the same name resumes. A new name starts at step 0."""
    storage: Location
    """Folder or URI that holds the run's folder. Every worker must be able to reach it."""
    accept_changes: list[str] = Field(default=[])
    """Fields (dotted) or sections that may differ from those with which the run was started."""
    restart: bool = False
    """Restart at step 0 if the run has checkpoints but none of them can be used."""
    take_over: bool = False
    """Replace a process that is training this run now. ``--take-over`` sets it."""
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] = LEASE_SECONDS
    """Seconds without a heartbeat after which the process that trains the run counts as dead."""

    @property
    def uri(self) -> str:
        """The folder of the run."""
        return storage.join(self.storage, self.name)


class Data(Section):
    """The corpus and how it is read."""

    manifest: MayDiffer[Location]
    """Path or URI of the corpus manifest. The corpus may move between resumes, but not change."""
    vocabulary_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Refuse a corpus whose vocabulary has another SHA-256."""
    masking: Literal["static", "dynamic"] = "static"
    """static uses the masks of the shards. dynamic draws new masks in every epoch, by ``mask_rule`` and the
    masking rule of the corpus."""
    shuffle_window: Annotated[int, Field(ge=1, le=1024)] = 8
    """Row groups whose rows are shuffled together. A larger window mixes better and reads more row groups."""
    read_threads: MayDiffer[Annotated[int, Field(ge=1, le=256)]] = 2
    """Threads in each worker that read and pack batches."""
    read_ahead: MayChange[Annotated[int, Field(ge=0, le=1024)]] = 2
    """Steps to read ahead."""
    cache_bytes: MayDiffer[Annotated[int, Field(ge=1 << 20)]] = 512 << 20
    """Memory for decoded row groups, in each worker."""
    disk_cache: MayDiffer[Location | None] = None
    """Local folder that caches row groups of remote shards. The ranks of a node share it."""
    disk_cache_bytes: MayDiffer[Annotated[int, Field(ge=1 << 20)]] = 32 << 30
    """Largest size of the disk cache."""
    fixed_shapes: MayChange[bool | None] = None
    """Pad every micro-batch of a length to one shape, so that torch.compile compiles the network once.
    Defaults to the value of ``compile``."""
    check_shards: MayChange[bool] = True
    """Before step 0, compare size, columns and row counts of every shard with the manifest."""


class Distillation(Section):
    """Distillation from a teacher, in addition to the pretraining loss (DistilBERT)."""

    teacher: MayDiffer[Location]
    """Hugging Face directory, run or checkpoint of the teacher. Its content identifies it, so it may move."""
    copy_layers: bool = True
    """Initialize the student with the teacher's embeddings, heads and evenly chosen layers."""
    soft: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the KL divergence from the teacher's predictions (soft targets)."""
    soft_tokens: Literal["all", "masked"] = "all"
    """Tokens with soft targets: all, as in DistilBERT, or only masked ones, which takes about a seventh of
    the products with the vocabulary."""
    token: Annotated[float, Field(ge=0)] = 2.0
    """Weight of the pretraining loss."""
    hidden: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the cosine loss between the last hidden states."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Temperature of both softmaxes in the soft targets."""


class ObjectiveSection(Section):
    """An objective from outside the package, in addition to MLM and NSP."""

    use: str
    """``package.module:Name`` of a subclass of trainer.model.objectives.Objective. Its source is part of the
    identity of the run."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the objective's loss."""
    pretraining_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the pretraining loss. 0 trains the objective alone, and still measures MLM and NSP."""
    settings: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the class."""


class Optimizer(Section):
    """The optimizer. Biases and norms get no weight decay."""

    kind: Literal["adamw", "lamb", "muon", "stable_adamw"] = "adamw"
    """AdamW, LAMB, Muon for the matrices with AdamW for the rest, or AdamW with update clipping."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the first and second moments."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the square root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""


class Schedule(Section):
    """The learning rate schedule: a factor on the peak learning rate at each step."""

    shape: Literal["linear", "polynomial", "cosine", "wsd", "wsd_sqrt", "constant"] = "linear"
    """Shape of the decay. ``wsd`` is warm-up, stable, linear decay. ``wsd_sqrt`` decays by 1 - sqrt."""
    span: Literal["run", "phase"] = "run"
    """One warm-up and decay over the whole run (BERT 2018), or one in each phase (LAMB in two phases)."""
    warmup: Annotated[float, Field(ge=0)] = 0.01
    """Warm-up: a share of the span if below 1, otherwise a number of steps."""
    decay: Annotated[float, Field(gt=0)] = 0.2
    """For wsd and wsd_sqrt, the final decay: a share of the span if below 1, otherwise a number of steps."""
    power: Annotated[float, Field(gt=0)] = 1.0
    """For polynomial, the exponent."""
    end: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end."""


class Alarm(Section):
    """What happens when the loss rises and stays high, as it does after a divergence."""

    action: Literal["stop", "warn", "off"] = "warn"
    """``warn`` logs, ``stop`` also ends the run. Both keep the last checkpoint before the rise."""
    rise: Annotated[float, Field(gt=0)] = 0.5
    """Nats above the lowest loss of the phase."""
    lines: Annotated[int, Field(ge=2, le=1000)] = 10
    """Consecutive log lines above that limit. A held-out loss counts after two evaluations."""


class Stability(Section):
    """Gradient clipping, and when steps are skipped."""

    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient of all parameters together, or null for no clipping."""
    spike_sigma: Annotated[float, Field(gt=0)] | None = 6.0
    """Skip a step whose gradient norm is this many standard deviations above the mean of the last norms, or
    null to never skip for a spike."""
    spike_window: Annotated[int, Field(ge=8, le=4096)] = 128
    """Number of gradient norms in that mean."""
    z_loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of the squared log of the MLM softmax's sum, which keeps logits from drifting (PaLM: 1e-4)."""
    max_skipped: MayChange[Positive] = 20
    """Skipped steps in a row after which the run stops."""
    alarm: MayChange[Alarm] = Alarm()
    """What to do when the training or held-out loss rises and stays high."""
    check_ranks_every: MayChange[Annotated[int, Field(ge=0)] | None] = None
    """Steps between comparisons of the parameters of all ranks. By default they are compared before each
    checkpoint. 0 turns the comparison off."""


class Profile(Section):
    """A window of steps that torch.profiler traces on rank 0."""

    at_step: Positive
    """First step to trace, counted from 1. The first steps of an attempt are slower than the rest."""
    steps: Annotated[int, Field(ge=1, le=100)] = 3
    """Steps to trace. A trace of a step takes megabytes."""


class Evaluation(Section):
    """Evaluation on the corpus' validation sequences, of the length in training."""

    every_steps: Positive
    """Optimizer steps between evaluations. The last step is always evaluated."""
    rows: Positive | None = 20_000
    """Most sequences to evaluate, of all languages, or null for all."""
    ema: bool = False
    """Also evaluate the moving average of the weights. Needs ``ema``."""


class Checkpoints(Section):
    """When checkpoints are saved and how many are kept."""

    every_steps: Positive | None = 1000
    """Steps between checkpoints."""
    every_seconds: Annotated[float, Field(gt=0)] | None = 600.0
    """Seconds between checkpoints. A checkpoint is saved when either limit is reached."""
    keep: Positive = 3
    """Newest verified checkpoints to keep. The last one before a rise of the loss is also kept, and so is the
    one with the lowest held-out loss, which is saved when it is measured."""
    keep_every: Positive | None = None
    """Also keep each checkpoint whose step is a multiple of this."""
    max_failed: Positive = 3
    """Failed saves in a row after which the run stops."""
    format: Literal["auto", "whole", "sharded"] = "auto"
    """whole: rank 0 saves everything. sharded: every rank saves a part. auto: sharded if several ranks save
    more than 1 GB, or if there are at least 16."""


class Workers(Section):
    """The processes that train together."""

    num_workers: Positive | Annotated[list[Positive], Field(min_length=2, max_length=2)] = 1
    """Number of ranks. Under Ray also [least, most]: a start uses all ranks in this range that fit into the
    cluster. The global batches do not depend on it."""
    use_gpu: bool = False
    """Use one GPU per rank."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1
    """CPUs that Ray reserves for each rank, and the rank's number of threads."""
    max_failures: Annotated[int, Field(ge=-1)] = 3
    """Restarts of the workers after failures without a new checkpoint in between, or -1 for no limit. Drained
    or preempted nodes do not count. A step that fails twice in the same way ends the run."""
    resize_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Under Ray with a range of ranks: seconds between two looks for CPUs and GPUs that a running group could
    use. To grow, all ranks restart, which costs the steps since the last checkpoint."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] | None = 3600.0
    """Under Ray: seconds to wait for the workers' CPUs and GPUs, or null for no limit."""
    collective_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Time after which a rank that does not answer counts as dead."""

    @model_validator(mode="after")
    def _range_is_ascending(self) -> "Workers":
        if self.least > self.most:
            raise ValueError(f"num_workers: the range [{self.least}, {self.most}] is descending")
        return self

    @property
    def least(self) -> int:
        """The fewest ranks that may train."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def most(self) -> int:
        """The most ranks that may train."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]


class Logging(Section):
    """The log of the run."""

    every_steps: Positive = 10
    """Steps between lines of the log and points in TensorBoard."""
    trackers: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(default=["tensorboard"])
    """Where metrics go in addition to the JSON lines. wandb and mlflow are optional extras of the package,
    and take addresses and keys from their environment variables (WANDB_MODE, MLFLOW_TRACKING_URI). A resumed
    run continues the same run there."""
    project: Annotated[str, Field(min_length=1)] = "bertmill"
    """Project in wandb, experiment in MLflow."""
    samples: bool = False
    """Log the row ids of every global batch, which proves the data order but makes the log large."""


class TrainConfig(Section):
    """A training run, from shards to checkpoints."""

    run: MayChange[Run]
    """Name and storage of the run."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 12345
    """Seed of every random choice."""
    model: ModelConfig = ModelConfig()
    """The network. Its vocabulary size comes from the corpus."""
    start_from: MayDiffer[Location | None] = None
    """Continued pretraining: Hugging Face directory, run or checkpoint with the initial weights. They are
    read at step 0 only. Their content identifies them, so they may move."""
    distillation: Distillation | None = None
    """Learn from a teacher."""
    objective: ObjectiveSection | None = None
    """Train an additional objective."""
    data: Data
    """The corpus."""
    mask_rule: MaskRule | None = None
    """With data.masking dynamic: another mask rate, or another rule, than that of the corpus."""
    language_sampling: LanguageSampling | None = None
    """Train languages in other proportions than those of the corpus."""
    phases: Annotated[list[Phase], Field(min_length=1)]
    """The phases, trained one after another."""
    optimizer: Optimizer = Optimizer()
    """The optimizer."""
    schedule: Schedule = Schedule()
    """The learning rate schedule."""
    stability: Stability = Stability()
    """Clipping and skipped steps."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights, for example 0.999, or null for none. After n
    steps the decay is at most (1 + n) / (10 + n), so that initial weights do not count for long. Checkpoints
    hold the average. ``bertmill export --ema`` exports it."""
    precision: Precision = "fp32"
    """bf16 runs the network under autocast. Weights and optimizer stay in fp32."""
    compile: MayChange[bool] = False
    """Compile the network with torch.compile."""
    compile_cache: MayDiffer[Location | None] = None
    """Folder that keeps compiled code for the next start. If nodes are replaced, choose storage that outlives
    a node. The folder holds code, so only trusted users may have write access. The default is a temporary
    folder of the host."""
    compile_mode: MayChange[Literal["default", "max-autotune-no-cudagraphs"]] = "default"
    """Mode of torch.compile. ``max-autotune`` tries kernels for minutes before the first step."""
    kernels: MayChange[Literal["auto", "fused", "plain"]] = "auto"
    """fused: layers as hand-written kernels with bf16 between them (needs bf16, a GPU with Triton, and no
    attention dropout). plain: torch's operations. auto: fused if a trial at the start works."""
    recompute_layers: MayChange[Annotated[int, Field(ge=0)]] = 0
    """The number of first layers that recompute activations in the backward pass instead of keeping them
    (activation checkpointing): less memory, up to a third more computation."""
    fit_micro_batch: MayChange[bool | None] = None
    """Try the largest micro-batch before the first step of each phase, and halve it on all ranks while one of
    them runs out of memory. The global batch does not change. Defaults to true on GPUs with data_parallel
    ddp."""
    loss_chunk: MayChange[Annotated[int, Field(ge=0)]] = 0
    """Masked tokens whose logits are computed at a time, for large vocabularies: 4096 with 119,547 subwords
    save a few GB of memory. 0 computes all logits of a micro-batch together."""
    data_parallel: MayChange[Literal["ddp", "fsdp"]] = "ddp"
    """How ranks share the work. ddp: each rank holds all weights, gradients and moments. fsdp
    (torch's fully_shard): each rank holds its share of them, and gathers the weights of a layer when it runs,
    for models that do not fit into the memory of one GPU. Losses are the same up to rounding."""
    gradient_exchange: MayChange[Literal["fp32", "bf16"]] = "fp32"
    """Type in which ranks send each other gradients. bf16 halves the bytes: each rank rounds its gradients
    once, the sum is in fp32, and its mean is rounded again. With one rank nothing is sent."""
    overlap_gradients: MayChange[bool | None] = None
    """Whether ddp exchanges gradients while the backward pass computes others. That hides the time of a slow
    network, but takes multiprocessors from the backward pass. Defaults to false if all ranks are on one
    host, otherwise to true."""
    checkpoints: MayChange[Checkpoints] = Checkpoints()
    """Checkpoints."""
    evaluation: MayChange[Evaluation | None] = None
    """Measure held-out loss and accuracy by language during training."""
    profile: MayChange[Profile | None] = None
    """Trace some steps with torch.profiler, into RUN/profile."""
    workers: MayChange[Workers] = Workers()
    """Processes."""
    logging: MayChange[Logging] = Logging()
    """The log."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if self.start_from and self.distillation and self.distillation.copy_layers:
            raise ValueError(
                "start_from: distillation.copy_layers already sets the initial weights; remove one of them"
            )
        if self.objective and self.distillation:
            raise ValueError("objective: cannot be combined with distillation")
        if self.loss_chunk and self.distillation:
            raise ValueError("loss_chunk: distillation compares all logits; set loss_chunk to 0")
        if self.data_parallel == "fsdp":
            self._check_fsdp()
        if self.evaluation and self.evaluation.ema and self.ema is None:
            raise ValueError("evaluation.ema: the run keeps no average of the weights; set ema")
        if self.mask_rule and self.data.masking == "static":
            raise ValueError("mask_rule: masks of the shards are fixed; set data.masking to dynamic")
        for number, phase in enumerate(self.phases):
            if phase.mask_rule and self.data.masking == "static":
                raise ValueError(
                    f"phases.{number}.mask_rule: masks of the shards are fixed; set data.masking to dynamic"
                )
            if phase.rotary_base is not None and self.model.positions != "rotary":
                raise ValueError(
                    f"phases.{number}.rotary_base: model.positions is {self.model.positions}, not rotary"
                )
            if phase.warmup is not None and self.schedule.span == "run":
                raise ValueError(
                    f"phases.{number}.warmup: with schedule.span run there is one warm-up, schedule.warmup"
                )
        return self

    def _check_fsdp(self) -> None:
        """Raises ValueError for settings that need whole weights on a rank."""
        if self.optimizer.kind == "muon":
            raise ValueError(
                "optimizer.kind: muon needs whole matrices; use adamw, lamb or stable_adamw, or set"
                " data_parallel to ddp"
            )
        if self.checkpoints.format == "whole":
            raise ValueError(
                "checkpoints.format: with data_parallel fsdp no rank has all weights; use auto or sharded"
            )
        if self.fit_micro_batch:
            raise ValueError(
                "fit_micro_batch: with data_parallel fsdp no rank can try a micro-batch alone; remove it, and"
                " forecast the memory with `bertmill plan --gpu-memory-gb`"
            )
        if self.stability.check_ranks_every:
            raise ValueError(
                "stability.check_ranks_every: with data_parallel fsdp the ranks have no copies to compare;"
                " remove it"
            )
