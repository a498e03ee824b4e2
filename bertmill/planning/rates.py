"""The rates, prices and assumptions behind forecasts, as planning/rates.json holds them."""

import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import ConfigError, reason_of

RATES_PATH = Path(__file__).with_name("rates.json")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StageRate(_Section):
    """One stage of a build."""

    amount: Literal["compressed_mb", "documents", "text_mb", "written_tokens", "tasks"]
    """The unit of the stage's work."""
    per_core_second: float
    """Amount that one core handles in a second of CPU time."""
    serial_seconds: float
    """Seconds of one core at the start and the end. The training of the vocabulary is separate."""
    rounds: int
    """Times that Ray Data runs tasks and the driver waits for all of them. A shuffle has two."""
    task_gb: float
    """Peak memory of a task."""
    gets_per_task: int
    puts_per_task: int


class Speedup(_Section):
    """Wall times on one core and on two, by stage, and their ratios."""

    measured: str
    seconds: dict[str, tuple[float, float]]
    ratios: dict[str, float]


class VocabularyTraining(_Section):
    """The one task that trains the vocabulary."""

    measured: str
    base_seconds: float
    """For any number of words."""
    seconds_per_million_words: float
    """For distinct words of all languages together."""
    most_million_words: float
    """Distinct words that fit into the default of vocabulary.max_letters."""
    bounded_text_mb: float
    """Text in many languages that has as many words."""


class RoundCosts(_Section):
    """The time in which a round of tasks starts and ends."""

    measured: str
    seconds: float
    seconds_per_core: float
    """For each core of a node."""


class BuildRates(_Section):
    """The stages of a build."""

    measured: str
    cores: int
    stages: dict[str, StageRate]
    vocabulary_training: VocabularyTraining
    round_costs: RoundCosts
    two_core_speedup: Speedup


class CorpusRatios(_Section):
    """Amounts per megabyte (10^6 bytes) of compressed dumps."""

    measured: str
    documents_per_compressed_mb: float
    """Of 104 Wikipedias, 60 M pages in 100 GB. The first pages of a dump, as in a sample, are longer."""
    text_mb_per_compressed_mb: float
    tokens_per_text_byte: float
    documents_mb_per_text_mb: float
    shard_bytes_per_token: float
    moved_bytes_per_token: float
    """Bytes of a token id in the files of the shuffle, compressed."""
    copied_mb_per_compressed_mb: float
    """Copies of the pages of a bzip2 dump (benchmarks/results/reuse.md)."""


class DriverCosts(_Section):
    """Overhead of the driver and of Ray."""

    about: str
    kb_per_unit: float
    """Driver memory for a unit or a bucket."""
    base_gb: float
    """Driver memory of a build of any size."""
    plan_units_per_second: float
    tasks_per_second: float
    """Tasks that the driver starts in a second."""
    overhead: float
    """Core time of a stage over the CPU time of its transforms."""


class TrainingRate(_Section):
    """Rows per second of one GPU for one model and sequence length."""

    model: Literal["base", "large"]
    max_seq_length: int
    vocab_size: int
    rows_per_second: float
    origin: Literal["ours", "reference", "scaled"]
    """Measured with this trainer, measured with another program, or derived from another length."""
    device: str | None = None
    date: datetime.date | None = None
    what: str


class MemoryRates(_Section):
    """GPU memory of training in bf16."""

    measured: str
    bytes_per_parameter: float
    bytes_per_unit: dict[str, float]
    """Bytes of activations for each token, layer and hidden unit, by kind of kernels and layers."""
    logit_bytes: float
    """Bytes for each masked token and subword."""
    masked_share: float
    reserved_gib: float
    """What PyTorch does not count: the CUDA context, fragmentation, the buffers of the all-reduce."""


class TrainingRates(_Section):
    """Training on GPUs."""

    about: str
    device: str
    rates: list[TrainingRate]
    assumed: str
    peak_tflops: float
    fallback_mfu: float
    """MFU of a model that has no rate."""
    hidden_communication: float
    """Share of the step's compute time that hides a gradient all-reduce beside the backward pass."""
    node_allreduce_gb_s: float
    """Within a node. 288: 440 MB in 1.53 ms on two H200 (benchmarks/results/several_cards.md)."""
    network_allreduce_gb_s: dict[str, float]
    """By kind of network: GB/s of an all-reduce between nodes, all GPUs of a node together."""
    memory: MemoryRates
    checkpoint_gb_s: float


class Prices(_Section):
    """List prices in USD."""

    about: str
    core_hour: float
    gpu_hour: float
    gb_month: float
    put_thousand: float
    get_thousand: float


class Rates(_Section):
    """All of rates.json."""

    about: str
    build: BuildRates
    corpus: CorpusRatios
    driver: DriverCosts
    training: TrainingRates
    prices: Prices


def load_rates(path: Path = RATES_PATH) -> Rates:
    """The rates in a file, by default those that come with this version.

    Raises ConfigError when the file is missing or invalid.
    """
    try:
        return Rates.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {reason_of(first)}") from error
