"""Chooses the kernels of a run: by the config, after a trial on every rank's device, the same on all ranks.

The choice of matmul algorithms is kept in the run's folder (``kernels.json``), so that a resumed run
computes the same bits as one that never stopped.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch
from pydantic import TypeAdapter, ValidationError

from cluster import storage
from schemas.errors import BertmillError, ConfigError, StorageError
from trainer.config import TrainConfig
from trainer.distributed.ranks import Ranks
from trainer.model.attention import Kernel, choose_kernel, fused_obstacle
from trainer.model.config import ModelConfig
from trainer.monitoring.start_times import use_compile_cache

logger = logging.getLogger(__name__)

_FILE = "kernels.json"
FUSED = Kernel("fused", "packed tokens, each layer one function, bf16 between layers")


@dataclass(frozen=True)
class MatmulSetup:
    """What the algorithms of matmuls depend on, besides the model."""

    device: str
    """Name of the GPU type."""
    cublaslt: int
    """Version of cuBLASLt."""
    tokens: int
    """Largest size of a micro-batch."""


@dataclass(frozen=True)
class AlgorithmChoice(MatmulSetup):
    """The content of ``kernels.json``."""

    algorithms: Mapping[str, str]
    """Matmul -> algorithm, as the hexadecimal digits of 64 bytes."""

    def __post_init__(self) -> None:
        if any(len(bytes.fromhex(text)) != 64 for text in self.algorithms.values()):
            raise ValueError("an algorithm does not have 64 bytes")


_CHOICE = TypeAdapter(AlgorithmChoice)


def precision_of(config: TrainConfig) -> torch.dtype:
    """The type in which the network computes."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def planned_kernel(config: TrainConfig, model: ModelConfig, device: torch.device) -> Kernel:
    """The kernels of ``model`` on ``device``, without trying them. Raises ConfigError for impossible ones."""
    kernel = choose_kernel(model, device, precision_of(config))
    if config.kernels == "plain":
        return kernel
    obstacle = fused_obstacle(model, kernel, precision_of(config))
    if obstacle is None:
        return FUSED
    if config.kernels == "fused":
        raise ConfigError(f"kernels: fused layers are not possible: {obstacle}")
    return kernel


def choose_kernels(config: TrainConfig, model: ModelConfig, run_uri: str, ranks: Ranks) -> Kernel:
    """The kernels that all ranks use: the planned ones if they pass a trial on every device, else plain ones.

    Also chooses the matmul algorithms of fused layers. Raises ConfigError on all ranks when the config
    requires unavailable kernels.
    """
    kernel, error = None, None
    try:
        if config.compile:
            use_compile_cache(config.compile_cache)
        kernel = planned_kernel(config, model, ranks.device)
    except ConfigError as caught:
        error = caught
    ranks.fail_together(error)
    assert kernel is not None  # noqa: S101 - or an error was raised
    fused = ranks.sum_on_host([int(kernel.name == FUSED.name)])[0]
    failure = None
    if kernel.name == FUSED.name:
        failure = "not possible on another rank" if fused < ranks.world_size else _trial(config, model, ranks)
    failures = ranks.sum_on_host([int(failure is not None)])[0]
    if not failures:
        if kernel.name == FUSED.name:
            _use_algorithms(config, model, run_uri, ranks)
        return kernel
    reason = f"the trial of fused layers failed: {failure or 'on another rank'}"
    if config.kernels == "fused":
        ranks.fail_together(ConfigError(f"kernels: {reason}"))
    if failure is not None:
        logger.warning("kernels: %s; training with plain layers", reason)
    plain = choose_kernel(model, ranks.device, precision_of(config))
    return plain._replace(reason=reason)


def _trial(config: TrainConfig, model: ModelConfig, ranks: Ranks) -> str | None:
    from trainer.model.kernel_check import fused_failure

    lengths = sorted({phase.max_seq_length for phase in config.phases})
    return fused_failure(model, lengths, ranks.device)


def _use_algorithms(config: TrainConfig, model: ModelConfig, run_uri: str, ranks: Ranks) -> None:
    """Makes all ranks use the saved algorithms, or those that rank 0 chooses and saves now."""
    from trainer.kernels.cublaslt import cublaslt
    from trainer.kernels.matmuls import use_algorithms

    device = torch.cuda.get_device_name(ranks.device)
    version = cublaslt(ranks.device).version
    choice: AlgorithmChoice | None = None
    if ranks.rank == 0:
        setup = MatmulSetup(device, version, max(phase.micro_batch_tokens for phase in config.phases))
        try:
            choice = _saved(run_uri, setup) or _new(run_uri, setup, model, ranks.device)
        except BertmillError as error:
            logger.warning("kernels: %s; torch chooses the algorithms of matmuls", error)
    choice = ranks.broadcast_from_rank0(choice)
    if choice is not None and (choice.device, choice.cublaslt) != (device, version):
        logger.warning(
            "kernels: rank %d has %s with cuBLASLt %d, rank 0 has %s with %d; torch chooses the algorithms of"
            " its matmuls", ranks.rank, device, version, choice.device, choice.cublaslt,
        )  # fmt: skip
        choice = None
    use_algorithms(ranks.device, {} if choice is None else choice.algorithms)


def _saved(run_uri: str, setup: MatmulSetup) -> AlgorithmChoice | None:
    """The choice in the run's folder, if it was made for the same device, library and size of micro-batch."""
    uri = storage.join(run_uri, _FILE)
    if not storage.exists(uri):
        return None
    try:
        choice = _CHOICE.validate_json(storage.read_bytes(uri))
    except ValidationError:
        logger.warning("kernels: %s is damaged; choosing the algorithms of matmuls again", uri)
        return None
    changed = [
        field.name for field in fields(setup) if getattr(choice, field.name) != getattr(setup, field.name)
    ]
    if changed:
        logger.warning("kernels: %s differs in %s; choosing the algorithms of matmuls again", uri, changed)
        return None
    return choice


def _new(run_uri: str, setup: MatmulSetup, model: ModelConfig, device: torch.device) -> AlgorithmChoice:
    from trainer.kernels.matmuls import choose_algorithms, matmuls_of_layer

    matmuls = matmuls_of_layer(
        model.hidden_size, model.intermediate_size, gated=model.activation == "geglu",
        tanh=model.activation == "gelu_tanh", bias=model.bias, pre_norm=model.norm == "pre",
    )  # fmt: skip
    choice = AlgorithmChoice(**asdict(setup), algorithms=choose_algorithms(matmuls, setup.tokens, device))
    try:
        storage.put_bytes(storage.join(run_uri, _FILE), json.dumps(asdict(choice), indent=1).encode())
    except StorageError as error:
        logger.warning("kernels: the choice of algorithms could not be saved: %s", error)
    return choice
