"""Memory of a GPU in one phase of a training run, and the largest micro-batch that fits into it.

Weights, gradients, moments and the bf16 copy take 18 bytes for each parameter. Activations take some bytes
for each token, layer and hidden unit, and logits 2.4 bytes for each masked token and subword. The factors are
fitted to peaks measured on H100 and H200 (benchmarks/results/train_throughput.jsonl). A test compares them.

With ``data_parallel: fsdp`` a GPU keeps its share of weights, gradients and moments. Beside it, embeddings
and heads are whole during a step, and so are the two layers that run and are gathered next.
"""

import math

from bertmill.planning.forecast import parameters
from bertmill.planning.rates import MemoryRates
from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model.config import ModelConfig
from trainer.recipe_config import Phase

_GIB = 2**30
_SHARE_BYTES = 16
"""For each parameter that a GPU keeps: weight, gradient and two moments in fp32."""
_WHOLE_BYTES = 14
"""For each parameter that is whole during a step: weight, gradient, the buffer of its sum, a bf16 copy."""
_LAYERS_AT_A_TIME = 2


def training_gib(
    config: TrainConfig, vocab_size: int, tokens: int, rates: MemoryRates, gpus: int = 1
) -> float:
    """GiB that PyTorch allocates on each of ``gpus`` GPUs with micro-batches of ``tokens`` tokens."""
    model = config.model.with_vocabulary(vocab_size)
    layers, hidden = model.layers, model.hidden_size
    recomputed = min(config.recompute_layers, layers)
    kept = layers - recomputed
    factor = rates.bytes_per_unit[_kind(config)] * (2 if config.precision == "fp32" else 1)
    # A recomputed layer keeps its input in bf16, and the backward pass restores one layer at a time.
    units = factor * (kept + (1 if recomputed else 0)) + 2 * recomputed
    masked = _masked_share(config, rates) * tokens
    logits = min(masked, config.loss_chunk or masked) * vocab_size * rates.logit_bytes
    return (_state_bytes(config, model, rates, gpus) + tokens * units * hidden + logits) / _GIB


def _state_bytes(config: TrainConfig, model: ModelConfig, rates: MemoryRates, gpus: int) -> float:
    """Bytes of weights, gradients, moments and copies."""
    count = parameters(model)
    if config.data_parallel == "ddp" or gpus == 1:
        return rates.bytes_per_parameter * count
    layer = 0
    if not model.share_layers and model.layers > 1:
        layer = count - parameters(model.model_copy(update={"layers": model.layers - 1}))
    whole = count - layer * model.layers + _LAYERS_AT_A_TIME * layer
    # Plain layers under autocast keep bf16 copies of all weights until the backward pass.
    copies = 2 * count if config.kernels == "plain" and config.precision == "bf16" else 0
    return _SHARE_BYTES * count / gpus + _WHOLE_BYTES * whole + copies


def _masked_share(config: TrainConfig, rates: MemoryRates) -> float:
    """The largest share of tokens that a step masks."""
    rules = [config.mask_rule, *(phase.mask_rule for phase in config.phases)]
    set_rates = [rate for rule in rules if rule for rate in (rule.rate, rule.end_rate) if rate is not None]
    return max(set_rates, default=rates.masked_share)


def _kind(config: TrainConfig) -> str:
    kernels = "plain" if config.kernels == "plain" else "fused"
    return f"modern {kernels}" if config.model.style == "modern" else kernels


def micro_batch_tokens(phase: Phase, gpus: int) -> int:
    """Tokens of a full micro-batch: no more than a GPU's share of the global batch."""
    share = math.ceil(phase.global_batch / gpus) * phase.max_seq_length
    return min(phase.micro_batch_tokens, share)


def largest_micro_batch(
    config: TrainConfig, phase: Phase, vocab_size: int, gib: float, rates: MemoryRates, gpus: int = 1
) -> int:
    """The most tokens, a power of two, that fit into a GPU of ``gib`` GiB, or 0 if no sequence fits."""
    tokens = 1 << (phase.max_seq_length - 1).bit_length()
    if not _fits(training_gib(config, vocab_size, tokens, rates, gpus), gib, rates):
        return 0
    while _fits(training_gib(config, vocab_size, 2 * tokens, rates, gpus), gib, rates):
        tokens *= 2
    return tokens


def _fits(needed: float, gib: float, rates: MemoryRates) -> bool:
    return needed + rates.reserved_gib <= gib


def check_memory(config: TrainConfig, vocab_size: int, gpus: int, gib: float, rates: MemoryRates) -> None:
    """Raises ConfigError that names the first phase that does not fit, and a setting that does."""
    for number, phase in enumerate(config.phases):
        tokens = micro_batch_tokens(phase, gpus)
        needed = training_gib(config, vocab_size, tokens, rates, gpus)
        if _fits(needed, gib, rates):
            continue
        fitting = largest_micro_batch(config, phase, vocab_size, gib, rates, gpus)
        fsdp = "data_parallel: fsdp, " if config.data_parallel == "ddp" and gpus > 1 else ""
        advice = (
            f"set it to {fitting}"
            if fitting
            else f"even one sequence does not fit; set {fsdp}recompute_layers: {config.model.layers}, "
            "or use larger GPUs"
        )
        raise ConfigError(
            f"phases.{number}.micro_batch_tokens: {tokens:,} tokens of BERT-{config.model.size} with"
            f" {vocab_size:,} subwords need {needed + rates.reserved_gib:.1f} GiB, the GPU has {gib:g};"
            f" {advice}"
        )
