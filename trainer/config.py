"""The config of a training run: every field, its default, its range and what it does."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trainer.model_config import ModelConfig


def _no_fp16(value: Any) -> Any:
    """Raises ValueError for half precision, whose range would need a scaled loss."""
    if str(value).lower() in ("fp16", "float16", "half"):
        raise ValueError(
            "fp16 is not offered: small gradients vanish in it unless the loss is scaled, and a scale can"
            " collapse; bf16 has the range of fp32, and GPUs without it train in fp32"
        )
    return value


Precision = Annotated[Literal["fp32", "bf16"], BeforeValidator(_no_fp16)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the config; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Run(Section):
    """The name under which a run is found again, and where it lies."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    """Name of the run. The same name goes on where the run stopped; another name starts from step 0."""
    storage: str
    """Folder or URI under which the run's folder is made; every worker must reach it."""
    accept_changes: list[str] = []
    """Fields (dotted, or a section) that may differ from those the run was started with."""
    restart: bool = False
    """Start at step 0 when the run has checkpoints but none of them can be used."""


class Data(Section):
    """The corpus and how it is read."""

    manifest: str
    """The corpus manifest: a path or URI."""
    vocabulary_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Refuse a corpus of another vocabulary than this one."""
    masking: Literal["static", "dynamic"] = "static"
    """The masks of the shards, or fresh ones for every epoch by the corpus' own masking rule."""
    shuffle_window: Annotated[int, Field(ge=1, le=1024)] = 8
    """Row groups whose rows are shuffled together; more mixes better and reads more at once."""
    read_threads: Annotated[int, Field(ge=1, le=256)] = 2
    """Threads that read and pack ahead, in each worker."""
    read_ahead: Annotated[int, Field(ge=0, le=1024)] = 2
    """Steps that are read ahead."""
    cache_bytes: Annotated[int, Field(ge=1 << 20)] = 512 << 20
    """Memory for decoded row groups, in each worker."""
    disk_cache: str | None = None
    """Local folder, shared by the ranks of a node, that keeps row groups of remote shards."""
    disk_cache_bytes: Annotated[int, Field(ge=1 << 20)] = 32 << 30
    """Size of that folder at most."""
    fixed_shapes: bool | None = None
    """Fill every micro-batch of a length up to one shape, so that a compiled network is compiled once.
    By default as ``compile``."""
    check_shards: bool = True
    """Before step 0, compare size, columns and row counts of every shard with the manifest."""


class BatchWarmup(Section):
    """Smaller global batches at the start of a phase, growing in equal stairs."""

    start: Positive
    """Rows of the first global batch."""
    steps: Positive
    """Steps until the full global batch."""
    stairs: Annotated[int, Field(ge=1, le=1000)] = 8
    """Number of sizes before the full one."""


class Phase(Section):
    """A part of the run with one sequence length."""

    max_seq_length: Annotated[int, Field(ge=16, le=8192)]
    """Which set of the corpus is trained."""
    global_batch: Positive
    """Rows of a global batch: over all ranks and micro-batches."""
    micro_batch_tokens: Positive
    """Tokens of a micro-batch at most; what fits into a device's memory."""
    steps: Positive | None = None
    """Optimizer steps. Either steps or epochs."""
    epochs: Positive | None = None
    """Passes over the rows of this length; the last batch may be short."""
    learning_rate: Annotated[float, Field(gt=0, lt=10)]
    """Peak learning rate of the phase."""
    warmup: Annotated[float, Field(ge=0)] | None = None
    """With schedule.span phase: this phase's warm-up, instead of schedule.warmup."""
    batch_warmup: BatchWarmup | None = None
    """Grow the global batch from a smaller one."""

    @model_validator(mode="after")
    def _consistent(self) -> "Phase":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.micro_batch_tokens < self.max_seq_length:
            raise ValueError(
                f"micro_batch_tokens {self.micro_batch_tokens} cannot hold a sequence"
                f" of {self.max_seq_length} tokens"
            )
        if self.batch_warmup and self.batch_warmup.start > self.global_batch:
            raise ValueError("batch_warmup.start is larger than global_batch")
        return self


class Distillation(Section):
    """A teacher whose predictions the network learns beside the masked tokens (DistilBERT)."""

    teacher: str
    """Hugging Face directory, run or checkpoint of the teacher."""
    copy_layers: bool = True
    """Begin with the teacher's embeddings, heads and evenly chosen layers."""
    soft: Annotated[float, Field(ge=0)] = 5.0
    """Weight of the divergence from the teacher's predictions."""
    token: Annotated[float, Field(ge=0)] = 2.0
    """Weight of the ordinary loss."""
    hidden: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the angle between the last hidden states."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """Both predictions are softened by it."""


class Optimizer(Section):
    """The update rule. Biases and norms get no weight decay."""

    kind: Literal["adamw", "lamb", "muon"] = "adamw"
    """AdamW, LAMB, or Muon for the matrices with AdamW for the rest."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the moments."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""


class Schedule(Section):
    """The factor on the learning rate at each step."""

    shape: Literal["linear", "polynomial", "cosine", "wsd", "constant"] = "linear"
    """Shape of the decay."""
    span: Literal["run", "phase"] = "run"
    """One warm-up and decay over the whole run (BERT 2018), or in each phase (LAMB in two phases)."""
    warmup: Annotated[float, Field(ge=0)] = 0.01
    """Warm-up: a share of the span below 1, a number of steps from 1 on."""
    decay: Annotated[float, Field(gt=0)] = 0.2
    """For wsd, the final decay: a share of the span below 1, a number of steps from 1 on."""
    power: Annotated[float, Field(gt=0)] = 1.0
    """For polynomial: the exponent."""
    end: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the peak at the end."""


class Stability(Section):
    """Clipping, and which steps are skipped."""

    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient of all parameters together; null does not clip."""
    spike_sigma: Annotated[float, Field(gt=0)] | None = 6.0
    """Skip a step whose gradient norm lies this many deviations above the last ones; null never does."""
    spike_window: Annotated[int, Field(ge=8, le=4096)] = 128
    """Number of accepted steps in that comparison."""
    max_skipped: Positive = 20
    """Skipped steps in a row after which the run stops."""
    check_ranks_every: Annotated[int, Field(ge=0)] = 0
    """Steps between comparisons of the parameters of all ranks; 0 never compares."""


class Evaluation(Section):
    """Measuring on the corpus' validation rows, of the length that is being trained."""

    every_steps: Positive
    """Optimizer steps between two measurements; the last step is measured too."""
    rows: Positive | None = 20_000
    """Rows at most, of all languages; null takes all."""


class Checkpoints(Section):
    """When the state is saved and how much is kept."""

    every_steps: Positive | None = 1000
    """Steps between checkpoints."""
    every_seconds: Annotated[float, Field(gt=0)] | None = 600.0
    """Seconds between checkpoints; what comes first counts."""
    keep: Positive = 3
    """Verified checkpoints that are kept."""
    max_failed: Positive = 3
    """Failed saves in a row after which the run stops."""
    format: Literal["whole", "sharded"] = "whole"
    """whole: rank 0 saves everything. sharded: every rank saves its part, for many ranks and large models."""


class Workers(Section):
    """Processes that train together."""

    num_workers: Positive = 1
    """Number of ranks."""
    use_gpu: bool = False
    """One GPU for each rank."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 1
    """CPUs that Ray reserves for each rank, which are also its threads."""
    max_failures: Annotated[int, Field(ge=-1)] = 3
    """Restarts of the workers after a failure; -1 never gives up."""
    collective_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Time after which a rank that does not answer counts as dead."""


class Logging(Section):
    """What is written down."""

    every_steps: Positive = 10
    """Steps between lines of the log and points in TensorBoard."""
    tensorboard: bool = True
    """Write TensorBoard events beside the JSON lines."""
    samples: bool = False
    """Write the row ids of every global batch; large, for proofs of the data order."""


class TrainConfig(Section):
    """A training run, from shards to checkpoints."""

    run: Run
    """Name and place."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 12345
    """Seed of every random choice."""
    model: ModelConfig = ModelConfig()
    """The network; its vocabulary size is taken from the corpus."""
    start_from: str | None = None
    """Begin with the weights of this Hugging Face directory, run or checkpoint (continued pretraining)."""
    distillation: Distillation | None = None
    """Learn from a teacher."""
    data: Data
    """The corpus."""
    phases: Annotated[list[Phase], Field(min_length=1)]
    """Trained one after another."""
    optimizer: Optimizer = Optimizer()
    """The update rule."""
    schedule: Schedule = Schedule()
    """The learning rate over the steps."""
    stability: Stability = Stability()
    """Clipping and skipping."""
    precision: Precision = "fp32"
    """bf16 runs the network under autocast; weights and optimizer stay fp32."""
    compile: bool = False
    """Compile the network with torch.compile."""
    compile_cache: str | None = None
    """Folder that keeps what was compiled for the next start; on storage that outlasts a node, if nodes
    come and go. It holds code: nobody else may write there. By default a temporary folder of the host."""
    compile_mode: Literal["default", "max-autotune-no-cudagraphs"] = "default"
    """Mode of torch.compile; max-autotune tries many kernels for minutes before the first step."""
    kernels: Literal["auto", "fused", "plain"] = "auto"
    """fused: BERT's layers as hand-made kernels with bf16 between them (bf16 on a GPU with Triton, post-norm,
    no attention dropout). plain: torch's operations. auto: fused where possible."""
    checkpoints: Checkpoints = Checkpoints()
    """Saving."""
    evaluation: Evaluation | None = None
    """Held-out loss and accuracy by language, while training."""
    workers: Workers = Workers()
    """Processes."""
    logging: Logging = Logging()
    """Metrics."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if self.start_from and self.distillation and self.distillation.copy_layers:
            raise ValueError("start_from: distillation.copy_layers gives the first weights already")
        for number, phase in enumerate(self.phases):
            if phase.warmup is not None and self.schedule.span == "run":
                raise ValueError(f"phases.{number}.warmup: schedule.span is run, so there is one warm-up")
        return self
